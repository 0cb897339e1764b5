"""How far from optimal balanced coordinates are: ``python -m kann_experiments.sentiment.live.optimum RUNS ARCH SEED``.

Subspaces are learned by gradient through the running network from training reviews, chosen on validation reviews, and
judged on test reviews, as balanced coordinates are. Each is judged too with a completion that does not drift: a
constant is added to the coordinates, so that on training reviews a step from completed states is right in the mean.
"""

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kann.live._intervene import replacement
from kann.live.completion import Curve, Regression, fit_fills
from kann.live.evaluation import Scorer, score_runs
from kann.recording.recurrent import step_of
from kann.recording.runner import evaluation_mode
from kann.recording.sequence_data import SequenceData
from kann.typing import Array, Float
from kann.zoo.sentiment_network import SentimentNetwork
from kann_experiments.results import write_json
from kann_experiments.sentiment.corpus import Corpus, load_corpus
from kann_experiments.sentiment.live.bench import LAYER, Bench, make_bench
from kann_experiments.sentiment.live.learned import Candidate, Learner, Start, best
from kann_experiments.sentiment.live.measurements import coordinates
from kann_experiments.sentiment.task import CONFIGS, JUDGED, split, trained
from kann_experiments.training import generator

COUNTS = (1, 2, 4)
"""Dimensions of the subspaces that are learned."""

BALANCED_RATES, RANDOM_RATES = (0.3, 0.1), (3.0, 2.0, 1.0, 1.0)
"""Starts from balanced and from random directions, by their rates of learning relative to the usual one."""

SEVERAL = (8, 16)
"""Further numbers of coordinates, of which no subspace is learned."""

LEARNED, STEADY = ("balanced", "random"), ("balanced", "modes")
"""From where subspaces are learned, and for which coordinates the completion that does not drift is judged."""

PAIRS = 50_000
"""States, at most, from which steps are made to see how completions drift."""


def measure(
    network: SentimentNetwork, corpus: Corpus, *, seed: int, path: Path, steps: int, counts: tuple[int, ...] = COUNTS
) -> dict[str, Any]:
    """Measure one network, and write what is known so far to ``path`` on the way."""
    found: dict[str, Any] = {"numbers": {}, "paths": {}, "seconds": {}}
    began = time.monotonic()

    def done(stage: str, **numbers: float) -> None:
        found["numbers"] |= numbers
        found["seconds"][stage] = round(time.monotonic() - began, 1)
        write_json(path, found)

    with evaluation_mode(network):
        bench = make_bench(network, corpus, seed=seed)
        chosen = coordinates(bench, seed)
        done("bench")
        learning, validation = split(corpus.train)
        learner = Learner(network, bench.spread, chosen["balanced"], learning=learning, validation=validation)
        rng = generator(seed, JUDGED, 7)
        starts = {}
        for count in counts:
            own = chosen["balanced"][:, :count]
            starts |= {f"balanced_{count}_{i}": Start(own, rate=rate) for i, rate in enumerate(BALANCED_RATES)}
            starts[f"shifted_{count}_0"] = Start(own, rate=0.0, shift_rate=1.0)
            starts |= {
                f"random_{count}_{i}": Start(learner.random_directions(count, rng), rate=rate)
                for i, rate in enumerate(RANDOM_RATES)
            }
        paths = dict(zip(starts, learner.learn(list(starts.values()), rng=rng, steps=steps), strict=True))
        found["paths"] = {
            name: {key: [getattr(each, key) for each in own] for key in ("step", "kept", "loss")}
            for name, own in paths.items()
        }
        done("learned")
        winners = {
            f"{kind}_{count}": best(
                [each for name, own in paths.items() if name.startswith(f"{kind}_{count}_") for each in own]
            )
            for kind in ("balanced", "shifted", "random")
            for count in counts
        }
        tests = learner.padded(bench.judged)
        linear = {f"start_{count}": paths[f"balanced_{count}_0"][0] for count in counts} | winners
        kept, _ = learner.judge_candidates(tests, list(linear.values()))
        done("linear", **{f"linear_{name}": float(own) for name, own in zip(linear, kept, strict=True)})
        for count in (*counts, *SEVERAL):
            done(f"test {count}", **_completed(bench, chosen, winners, count))
    return found["numbers"]


def _completed(
    bench: Bench, chosen: Mapping[str, Float[Array, "d _"]], winners: Mapping[str, Candidate], count: int
) -> dict[str, float]:
    """Decisions kept on test reviews with the completions of `kann.effects`, and with those that do not drift."""
    directions = {name: own[:, :count] for name, own in chosen.items()}
    learned = {kind: winners[f"{kind}_{count}"].directions for kind in LEARNED if f"{kind}_{count}" in winners}
    fills: dict[str, Any] = _fitted(bench, directions | {f"learned_{kind}": own for kind, own in learned.items()})
    fills |= {f"{name}_steady": steady(fills[name], bench) for name in STEADY}
    linear = {kind: f"learned_{kind}_linear" for kind in learned}
    if learned:
        straight = {"balanced_linear": directions["balanced"]} | {linear[kind]: own for kind, own in learned.items()}
        fills |= _fitted(bench, straight, "linear")
    judged = _kept(bench, fills, bench.judging)
    numbers = {f"{name}_{count}": value for name, value in judged.items()}
    if learned:  # a subspace is learned with linear completions; the start is a candidate
        rivals = {kind: [f"learned_{kind}", linear[kind]] for kind in learned}
        rivals["balanced"] += ["balanced", "balanced_linear"]
        different = {name: fills[name] for names in rivals.values() for name in names}
        on_validation = _kept(bench, different, bench.choosing)
        numbers |= {f"validation_{name}_{count}": value for name, value in on_validation.items()}
        for kind, names in rivals.items():
            numbers[f"best_{kind}_{count}"] = judged[max(names, key=on_validation.__getitem__)]
    return numbers


def _fitted(bench: Bench, directions: Mapping[str, Float[Array, "d _"]], fill: str = "auto") -> dict[str, Any]:
    """The completion of each of several sets of directions."""
    fitted = fit_fills(list(directions.values()), bench.states, fill, spread=bench.spread)
    return dict(zip(directions, fitted, strict=True))


def _kept(bench: Bench, fills: Mapping[str, Regression | Curve], source: SequenceData) -> dict[str, float]:
    """The fraction of decisions that stay with each completion."""
    contexts = [partial(bench.replaced, replacement(fill, keep=True)) for fill in fills.values()]
    _, (_, *scores) = score_runs(source, contexts, Scorer.of("agreement"), what="completions")
    return {name: float(np.mean(own == 1)) for name, own in zip(fills, scores, strict=True)}


def steady(fill: Any, bench: Bench) -> Any:
    """Add a constant to the coordinates, so that a step from completed states does not change them in the mean.

    The mean of the next state is not the next state of the mean: networks are not linear. In a coordinate that
    remembers hundreds of steps, such a bias adds up.
    """
    states, inputs = bench.states, bench.states.inputs
    assert inputs is not None  # noqa: S101  # the bench has recorded them
    is_first = np.zeros(len(states.values), dtype=bool)
    is_first[np.asarray(states.starts)] = True
    after = np.flatnonzero(~is_first)
    after = after[:: max(1, len(after) // PAIRS)]
    device = bench.network.readout.weight.device
    before, following, read = (
        torch.as_tensor(np.asarray(each), dtype=torch.float32, device=device)
        for each in (states.values[after - 1], states.values[after], inputs[after])
    )
    on_device = fill.on(lambda values: torch.as_tensor(values, dtype=torch.float32, device=device))
    step = step_of(bench.network, LAYER)
    with torch.no_grad():
        missed = following - step(on_device.kept(before), read)
    bias = (missed.double().mean(dim=0).cpu().numpy()) @ fill.axes
    return replace(fill, mean=fill.mean - fill.axes @ bias)


def main(runs: str, arch: str, seed: str, out: str, steps: str, device: str = "cpu") -> None:
    """Measure one network."""
    corpus = load_corpus()
    folder = Path(runs) / arch / f"seed-{seed}"
    network = trained(CONFIGS[arch], corpus, seed=int(seed), folder=folder, device=device)
    numbers = measure(network, corpus, seed=int(seed), path=Path(out) / f"{arch}-{seed}.json", steps=int(steps))
    sys.stdout.write(json.dumps({arch: {seed: numbers}}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
