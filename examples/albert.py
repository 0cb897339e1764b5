"""Where along depth does a chemist's ALBERT converge, and is its block contracting? rxnmapper's network, on reactions.

    pip install 'kann[gallery]'
    python examples/albert.py [folder]      # writes the page and the figures there; "gallery" if none is named

ALBERT applies one block twelve times: a true autonomous map along depth, of all positions of a reaction together. The
weights are those inside the package; it is not imported. Reactions are made here from known classes of reactions and
common fragments. Whatever is held out is held out with its fragment: no fragment is on both sides.
"""

import importlib.util
import re
import sys
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import AlbertForMaskedLM

import kann
from kann.analysis.intervals import interval_of_mean

BLOCK = "albert.encoder.albert_layer_groups.0"
"""The block that is applied twelve times."""

LAYERS, MORE = 12, 36
"""How often the network applies its block, and how often it is applied to see where that leads."""

MASK, MASKED = 14, 0.15
"""The number of the symbol that masks others, and the fraction of symbols that are masked."""

TOKEN = re.compile(
    r"\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|/|:|~|@|\?|>>?|\*|\$|%[0-9]{2}|[0-9]"
)
"""A symbol of the language of molecules (SMILES), as the package cuts it."""

ACYLS = (
    *("CC(=O)", "CCC(=O)", "CC(C)C(=O)", "C1CCCCC1C(=O)", "c1ccccc1C(=O)", "Fc1ccc(cc1)C(=O)", "COc1ccc(cc1)C(=O)"),
    *("Clc1cccc(c1)C(=O)", "n1ccccc1C(=O)", "Cc1ccc(cc1)C(=O)", "N#Cc1ccc(cc1)C(=O)", "c1ccccc1CC(=O)"),
)
AMINES = (
    "NCC",
    "NCc1ccccc1",
    "N1CCCCC1",
    "N1CCOCC1",
    "Nc1ccccc1",
    "Nc1ccc(F)cc1",
    "NC1CCCCC1",
    "NCCOC",
    "N(C)Cc1ccccc1",
)
ALCOHOLS = ("OC", "OCC", "OC(C)C", "OCc1ccccc1", "OCCOC")
ARYLS = (
    "c1ccccc1",
    "c1ccc(F)cc1",
    "c1ccc(OC)cc1",
    "c1cccnc1",
    "c1ccc(C)cc1",
    "c1ccc(C#N)cc1",
    "c1cc(Cl)ccc1",
    "c1ccsc1",
)
ALKYLS = ("CC", "CCCC", "C1CCCCC1C", "c1ccccc1C", "COCC", "C=CC", "CC(C)C", "N#CCC")
CLASSES = {
    "amide coupling": (ACYLS, AMINES, "{0}O.{1}.CCN=C=NCCCN(C)C.CN(C)C=O>>{0}{1}"),
    "acid chloride": (ACYLS, AMINES, "{0}Cl.{1}.CCN(CC)CC.ClCCl>>{0}{1}"),
    "esterification": (ACYLS, ALCOHOLS, "{0}O.{1}.O=S(=O)(O)O>>{0}{1}"),
    "hydrolysis": (ACYLS, ALCOHOLS, "{0}{1}.[Na+].[OH-].CO>>{0}O"),
    "Suzuki coupling": (ARYLS, ARYLS, "{0}Br.OB(O){1}.O=C([O-])[O-].[K+].[K+]>>{0}-{1}"),
    "alkylation": (ALKYLS, AMINES, "{0}Br.{1}.O=C([O-])[O-].[K+].[K+]>>{0}{1}"),
    "sulfonamide": (ARYLS, AMINES, "{0}S(=O)(=O)Cl.{1}.c1ccncc1>>{0}S(=O)(=O){1}"),
}
"""For each class of reactions two lists of fragments, and the reaction of one fragment of each."""


def reactions() -> tuple[list[str], list[str]]:
    """Every second reaction of all classes, and its first fragment."""
    found = [(text.format(*pair), pair[0]) for a, b, text in CLASSES.values() for pair in product(a, b)]
    texts, fragments = zip(*found[::2], strict=True)
    return list(texts), list(fragments)


def package_folder() -> Path:
    """Where the package keeps its network; it needs no import of it."""
    package = importlib.util.find_spec("rxnmapper")
    if package is None or package.origin is None:
        raise SystemExit("pip install rxnmapper")
    return next((Path(package.origin).parent / "models" / "transformers").iterdir())


def encoded(texts: list[str], folder: Path) -> dict[str, Tensor]:
    """Numbers of the symbols, padded, and which of them are real."""
    words = {word: i for i, word in enumerate((folder / "vocab.txt").read_text().split("\n"))}
    rows = [["[CLS]", *TOKEN.findall(text), "[SEP]"] for text in texts]
    width = max(map(len, rows))
    ids = torch.tensor([[words[word] for word in row] + [words["[PAD]"]] * (width - len(row)) for row in rows])
    return {"input_ids": ids, "attention_mask": (ids != words["[PAD]"]).long()}


def along_depth(model: AlbertForMaskedLM, data: dict[str, Tensor]) -> kann.States:
    """What the block gives after each application, and before the first, for each symbol of each reaction."""
    return kann.record(model, data, layer=BLOCK, axis="depth", embedding=True, progress=False)


def interval(values: np.ndarray, groups: np.ndarray) -> str:
    """The mean and its 95 % interval over fragments."""
    means = np.array([values[groups == group].mean() for group in np.unique(groups)])
    low, high = interval_of_mean(means, 0.95)
    return f"{means.mean():.3f} ({low:.3f} – {high:.3f})"


@torch.no_grad()
def check(model: AlbertForMaskedLM, data: dict[str, Tensor], states: kann.States) -> None:
    """The recorded states are those that transformers itself returns."""
    own = model.albert(**data, output_hidden_states=True).hidden_states
    real = data["attention_mask"].bool()
    apart = max(float(np.abs(states.padded()[:, k] - h[real].numpy()).max()) for k, h in enumerate(own))
    print(f"recorded states differ from transformers' own by at most {apart:.1e}")


@torch.no_grad()
def print_convergence(model: AlbertForMaskedLM, data: dict[str, Tensor], groups: np.ndarray) -> None:
    """How far states still move after each application, far beyond the twelfth, and what would be decided there."""
    model.config.num_hidden_layers = model.albert.encoder.config.num_hidden_layers = MORE
    states = along_depth(model, data).padded()
    model.config.num_hidden_layers = model.albert.encoder.config.num_hidden_layers = LAYERS
    decided = [model.predictions(torch.from_numpy(states[:, k])).argmax(-1).numpy() for k in range(MORE + 1)]
    symbols = data["input_ids"][data["attention_mask"].bool()].numpy()
    print("\nafter   |change| / |state|       decided as after 12      decided as it was read")
    for k in (1, 2, 3, 4, 6, 8, 10, 11, 12, 13, 16, 24, 36):
        change = np.linalg.norm(states[:, k] - states[:, k - 1], axis=1) / np.linalg.norm(states[:, k], axis=1)
        same, read = (decided[k] == decided[LAYERS]).astype(float), (decided[k] == symbols).astype(float)
        cells = [interval(each, groups) for each in (change, same, read)]
        if k == LAYERS:
            cells[1] = "1"  # by definition
        print(f"{k:5}   " + "".join(f"{cell:<25}" for cell in cells))


@torch.no_grad()
def print_growth(model: AlbertForMaskedLM, data: dict[str, Tensor], groups: np.ndarray) -> None:
    """How a small disturbance of the first states grows from application to application, in the network itself."""
    precise = model.double()
    first = along_depth(precise, data).padded()
    noise = torch.Generator().manual_seed(0)

    def disturb(module: torch.nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        return output + 1e-6 * torch.randn(output.shape, generator=noise, dtype=output.dtype)

    hook = precise.albert.encoder.embedding_hidden_mapping_in.register_forward_hook(disturb)
    apart = np.linalg.norm(along_depth(precise, data).padded() - first, axis=2)
    hook.remove()
    model.float()
    print("\napplication   growth of a small disturbance (1: neither grows nor shrinks)")
    for k in range(1, LAYERS + 1):
        print(f"{k:11}   {interval(apart[:, k] / apart[:, k - 1], groups)}")
    whole = (apart[:, LAYERS] / apart[:, 0]) ** (1 / LAYERS)
    print(f"in the mean over all twelve {interval(whole, groups)}")


def print_spectrum(one: kann.Koopman, trust: kann.Trust) -> None:
    """The eigenvalues of the one operator, with intervals over fragments, and how many reach one."""
    print(f"\n{one}\n{trust}")
    for mode, own in list(zip(one.modes, trust.modes, strict=True))[:6]:
        low, high = own.interval
        print(f"λ = {mode.eigenvalue:.3f}, |λ| {mode.modulus:.3f} ({low:.3f} – {high:.3f}), {own.verdict}: {own.why}")
    outside = sum(low > 1 for low, _ in (own.interval for own in trust.modes))
    inside = sum(high < 1 for _, high in (own.interval for own in trust.modes))
    print(f"of {len(trust.modes)} modes {inside} shrink, {outside} grow, and of the others |λ| = 1 cannot be excluded")


@torch.no_grad()
def print_bypass(model: AlbertForMaskedLM, data: dict[str, Tensor], one: kann.Koopman, groups: np.ndarray) -> None:
    """What is still decided if the block is replaced, at all twelve applications, by the identity or the operator.

    The baseline gives back the symbol that was read. Masked symbols tell more: they must be made up from others.
    """
    real = data["attention_mask"].bool()
    hidden = torch.rand(real.shape, generator=torch.Generator().manual_seed(0)) < MASKED
    masked = data | {"input_ids": torch.where(real & hidden, MASK, data["input_ids"])}
    for what, read in (("nothing masked", data), ("of masked symbols", masked)):
        chosen = real & (hidden | (what == "nothing masked"))
        place = groups[chosen[real].numpy()]
        own, true = model(**read).logits[chosen].argmax(-1), data["input_ids"][chosen]
        decided = {"the network": own, "the symbol itself": read["input_ids"][chosen]}
        for name, operator in (("identity", None), ("one operator", one)):
            with kann.depth.bypass(model, BLOCK, BLOCK, operator):
                decided[name] = model(**read).logits[chosen].argmax(-1)
        for name, found in decided.items():
            same, right = ((found == other).double().numpy() for other in (own, true))
            print(f"{what}, {name}: as the network {interval(same, place)}, right {interval(right, place)}")


def explained(model: AlbertForMaskedLM, data: dict[str, Tensor], fragments: list[str]) -> kann.Explanation:
    """What one call says about the network along depth."""
    rows = [row[is_real.bool()] for row, is_real in zip(data["input_ids"], data["attention_mask"], strict=True)]
    return kann.explain(
        model,
        rows,
        layer=[BLOCK],
        axis="depth",
        groups=fragments,
        forward=lambda model, ids: model(ids, attention_mask=(ids != 0).long()).logits,  # 0 is padding
        progress=False,
        seconds=180,
    )


def main(folder: str = "gallery") -> None:
    """Print what was found, and write the page."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    model = AlbertForMaskedLM.from_pretrained(package_folder()).eval()
    texts, fragments = reactions()
    data = encoded(texts, package_folder())
    names = sorted(set(fragments))
    groups = np.repeat([names.index(name) for name in fragments], data["attention_mask"].sum(1).numpy())
    print(f"{len(texts)} reactions of {len(CLASSES)} classes, {len(names)} fragments, {len(groups)} symbols")
    states = along_depth(model, data)
    check(model, data, states)
    print_convergence(model, data, groups)
    print_growth(model, data, groups)
    maps = kann.depth.fit(states, groups=groups)
    steps = kann.depth.trust(maps, states, groups=groups)
    print(f"\n{steps}")
    held_out = np.isin(groups, np.arange(0, len(names), 4))
    judged = np.isin([names.index(name) for name in fragments], np.arange(0, len(names), 4))
    part = states[~held_out]
    one = kann.fit(part, rank="auto", groups=groups[~held_out])
    print_spectrum(one, kann.trust(one, part, groups=groups[~held_out]))
    print_bypass(model, {name: each[judged] for name, each in data.items()}, one, groups[held_out])
    ax = kann.plots.draw_steps(steps)
    ax.figure.savefig(target / "albert_layers.png")
    explanation = explained(model, data, fragments)
    print("", *explanation.sentences, sep="\n")
    explanation.report(target / "albert.html")


if __name__ == "__main__":
    main(*sys.argv[1:])
