"""Reports for tests: small ones of every kind, made of systems that are known."""

import base64
import gzip
import json
import re
from dataclasses import dataclass, replace

import numpy as np

import kann
from kann.live.results import Effects, Memory
from kann.reporting._report import report
from kann.reporting.inputs import PageTable
from tests.systems import wide_states

NASTY = "</script><img src=x onerror=alert(1)>"


def turning_states(count=6, steps=30, seed=0):
    """A rotation that decays, a slow direction, and a fast one, mixed into five units."""
    rng = np.random.default_rng(seed)
    angle = 0.3
    core = np.zeros((5, 5))
    core[:2, :2] = 0.95 * np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    core[2, 2], core[3, 3], core[4, 4] = 0.99, 0.6, -0.5
    mix = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    sequences = []
    for i in range(count):
        path = [rng.normal(size=5)]
        for _ in range(steps + i - 1):
            path.append(path[-1] @ core + 0.01 * rng.normal(size=5))
        sequences.append(np.array(path) @ mix)
    return kann.States.from_sequences(sequences)


class Linear:
    """A linear readout that needs no torch."""

    def __init__(self, weight, bias):
        self.weight, self.bias = weight, bias

    def __call__(self, h):
        """Outputs of states."""
        return h @ self.weight.T + self.bias


def text_report(path, *, states=None, outputs=1, **settings):
    """A report about text, with a token that would break out of a careless page."""
    states = turning_states() if states is None else states
    rng = np.random.default_rng(1)
    tokens = [[f"word{t}" for t in range(length)] for length in states.lengths.tolist()]
    tokens[0][1] = NASTY
    tokens[2][0] = "needle"
    readout = Linear(rng.normal(size=(outputs, states.dim)), rng.normal(size=outputs))
    koopman = kann.fit(states)
    return report(
        path,
        koopman,
        states,
        tokens=tokens,
        readout=readout,
        labels=["good" if i % 2 else f"bad {NASTY}" for i in range(len(states))],
        classes=[f"class {i}" for i in range(max(outputs, 2))],
        others={f"rank 2 {NASTY}": kann.fit(states, rank=2)},
        title=f"Text {NASTY}",
        about=f"About {NASTY}",
        **settings,
    )


def signal_report(path):
    """Write a report about signals."""
    states = turning_states()
    signals = [np.sin(np.arange(length) / 3) for length in states.lengths]
    return report(path, kann.fit(states), states, signals=signals)


def many_report(path, *, count=130_000):
    """A report of more sequences than a call in JavaScript takes arguments."""
    rng = np.random.default_rng(2)
    states = kann.States(values=rng.normal(size=(2 * count, 2)), lengths=np.full(count, 2))
    readout = Linear(rng.normal(size=(1, 2)), 0.0)
    return report(path, kann.fit(states), states, tokens=[["good", "film"]] * count, readout=readout)


def wide_report(path):
    """A report of an operator of rank 140, of which some modes are judged."""
    states = wide_states(np.random.default_rng(0))
    kann.report(path, kann.fit(states), states)
    return path


def long_report(path, *, steps=150_000):
    """A report of one sequence with more words than a call in JavaScript takes arguments."""
    states = kann.States(values=np.random.default_rng(3).normal(size=(steps, 2)), lengths=np.array([steps]))
    return report(path, kann.fit(states), states, tokens=[[f"w{i}" for i in range(steps)]])


def single_report(path):
    """A report of one sequence that is too short to be cut into blocks, so that no steps are held out."""
    states = kann.States(values=np.random.default_rng(3).normal(size=(80, 2)), lengths=np.array([80]))
    return report(path, kann.fit(states), states)


class Points:
    """Fixed points whose kinds are markup."""

    points = np.zeros((2, 6))
    kinds = (NASTY, "<a href='https://example.org'>here</a>")


def rank_deficient_states():
    """Four sequences of 20 states that fill three of six directions."""
    rng = np.random.default_rng(4)
    return kann.States.from_padded(rng.normal(size=(4, 20, 3)) @ rng.normal(size=(3, 6)))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ReverseStates(kann.States):
    """States of a direction that reads from the end."""

    reverse: bool = True


def as_reverse(states):
    """The same states, as those of a direction that reads from the end."""
    return ReverseStates(values=states.values, lengths=states.lengths)


def odd_report(path):
    """A report of a reverse direction, of modes with infinite residuals, and of points with hostile names."""
    states = as_reverse(rank_deficient_states())
    tokens = [[f"word{t}" for t in range(20)]] * 4
    return report(path, kann.fit(states, basis="fourier"), states, tokens=tokens, fixed_points=Points())


def unpacked(text, name):
    """The bytes that are packed in an element of a page."""
    data = re.search(rf'<script type="text/plain" id="{name}">(.*?)</script>', text, re.S)[1]
    return gzip.decompress(base64.b64decode(data))


def content_of(path):
    """The page, its JSON, and its packed tables as numbers (n, m)."""
    text = path.read_text(encoding="utf-8")
    page = json.loads(unpacked(text, "content"))
    tables = {}
    for name, entry in page["packed"].items():
        numbers = np.frombuffer(
            unpacked(text, f"table-{name}"), dtype={8: np.int8, 12: np.int16, 16: np.int16}[entry["bits"]]
        )
        tables[name] = numbers.reshape(len(entry["scale"]), -1).T * np.array(entry["scale"])
    return text, page, tables


def made_effects(koopman, order, kept, *, none=0.5, counts=(1, 2, 4), outputs="class"):
    """Effects in which so many of 100 decisions are kept for each number of coordinates."""
    scores = (np.arange(100) < np.array(kept)[:, None]).astype(float)
    flat = np.full_like(scores, none)
    return Effects(
        counts=counts,
        metric="agreement",
        fill="curve",
        order=order,
        koopman=koopman,
        kept_scores={"modes": scores, "pca": scores * 0.9, "readout": scores * 0.8, "random": flat},
        removed_scores={"modes": 1 - scores, "pca": flat, "readout": flat, "random": np.ones_like(scores)},
        full_scores=np.ones(100),
        none_scores=(np.arange(100) < 100 * none).astype(float),
        random_kept=np.full((2, len(counts)), none),
        random_removed=np.ones((2, len(counts))),
        judged=np.arange(100),
        outputs=outputs,
    )


def made_memory():
    """States and outputs of which half is left after each step, and an untrained copy that forgets at once."""
    squares = np.tile([1.0, 0.25, 0.0625], (2, 5, 1))
    options = {"lags": (0, 1, 2), "state_scale": 1.0, "output_scale": 1.0, "step_seconds": 0.5}
    left = {"state_squares": squares, "output_squares": squares}
    gone = {name: own[:1] * [1, 0, 0] for name, own in left.items()}
    copy = Memory(names=("all inputs",), **gone, **options)
    return Memory(names=("all inputs", "left"), untrained=copy, **left, **options)


WORDS = {"names": ["good", NASTY, "film"], "x": [0.9, 0.8, 1.0], "y": [0.5, -0.5, 0.0], "size": [9, 9, 5]}
BARS = {"names": ["b.0", NASTY], "series": [{"name": "skipped", "values": [[0.1, 0.0, 0.2], [0.6, None, None]]}]}
TABLES = [
    PageTable(
        title="Words",
        about=f"About {NASTY}.",
        head=("Word", "Adds"),
        rows=[("good", "+0.50"), (NASTY, "−0.50"), ("film", "0.00")],
        chart={"kind": "plane", "labels": [0, 1], "x_title": "keeps", "y_title": "adds", **WORDS},
    ),
    PageTable(
        title="Blocks",
        head=("Block", "Skipped"),
        rows=[("b.0", "10.0 %"), (NASTY, "60.0 %")],
        chart={"kind": "bars", "y_title": "accuracy", "levels": [[0.9, "untouched"]], **BARS},
        folded=True,
    ),
]

ORDER = (2, 0, 1, 3)
"""Modes of the turning states: number 1 is the pair that turns."""


def explained_report(path, **settings):
    """A report with everything that `kann.explain` passes: live test, movers, sentences, scores of modes."""
    states, rng = turning_states(count=12), np.random.default_rng(5)
    koopman, weight = kann.fit(states), rng.normal(size=(1, 5))
    tokens = [rng.choice(["good", "bad", NASTY, "film"], size=length).tolist() for length in states.lengths]
    options = {
        "tokens": tokens,
        "readout": Linear(weight, 0.0),
        "classes": ["negative", "positive"],
        "movers": kann.movers(koopman, states, tokens, readout=weight),
        "effects": made_effects(koopman, ORDER, (70, 98, 98)),
        "sentences": ["One mode decides.", f"It goes up on {NASTY}."],
        "choices": ["Rank 5 was chosen."],
        "alone": {2: (0.7, 0.6), 0: (0.65, 0.9)},
        "verdict": ("found", "one mode keeps 98 %"),
        "line": "layer 'rnn', 5 units",
        "memory": made_memory(),
        "tables": TABLES,
        "step_seconds": 0.5,
    }
    return report(path, koopman, states, **(options | settings))


def far_report(path):
    """A report whose live test has one score that is far worse than nothing kept."""
    koopman = kann.fit(turning_states(count=12))
    effects = made_effects(koopman, ORDER, (70, 98, 98))
    scores = effects.kept_scores["pca"].copy()
    scores[1] = -6.0
    far = replace(effects, kept_scores={**effects.kept_scores, "pca": scores})
    return explained_report(path, effects=far)


class SaddlePoints:
    """A stable point, a saddle, an unstable point and a slow one."""

    points = np.eye(5)[:4]
    kinds = np.array(["fixed", "fixed", "fixed", "slow"])
    stable = np.array([True, False, False, False])
    eigenvalues = np.array([[0.5] * 5, [1.5, 0.5, 0.5, 0.5, 0.5], [1.5] * 5, [1.1] * 5])


def channels_report(path):
    """A report of a network that reads three channels and decides between three classes at every step."""
    states, rng = turning_states(count=8), np.random.default_rng(6)
    inputs = [rng.normal(size=(length, 3)) for length in states.lengths]
    for own, h in zip(inputs, states, strict=True):  # the first one is what moves the states
        own[1:, 0] = 100 * (h[1:] - kann.fit(states).predict(h[:-1]))[:, 0]
    states = kann.States.from_sequences(list(states), inputs=inputs)
    koopman, weight = kann.fit(states), rng.normal(size=(3, 5))
    return report(
        path,
        koopman,
        states,
        signals=inputs,
        readout=Linear(weight, 0.0),
        classes=["left", "middle", "right"],
        labels=[np.argmax(h @ weight.T, axis=1) for h in states],
        movers=kann.movers(koopman, states, readout=weight),
        effects=made_effects(koopman, ORDER, (70, 98, 98)),
        fixed_points=SaddlePoints(),
    )


def answers_report(path, *, outputs, labels):
    """A report of a network with two outputs that are yes-or-no answers or numbers."""
    states, rng = turning_states(count=8), np.random.default_rng(7)
    koopman, weight = kann.fit(states), rng.normal(size=(2, 5))
    return report(
        path,
        koopman,
        states,
        readout=Linear(weight, 0.0),
        classes=["high", "loud"],
        labels=labels,
        movers=kann.movers(koopman, states, readout=weight),
        effects=made_effects(koopman, ORDER, (70, 98, 98), outputs=outputs),
    )


def labels_report(path):
    """A report of a network that answers two questions with yes or no."""
    return answers_report(path, outputs="labels", labels=[np.array([1, 0])] * 4 + [np.array([0, 0])] * 4)


def values_report(path):
    """A report of a network that predicts two numbers."""
    return answers_report(path, outputs="values", labels=[np.array([0.5, -1.25])] * 8)


def depth_report(path):
    """A report along the depth of a network."""
    states = turning_states(count=8)
    koopman = kann.fit(states)
    return report(path, koopman, states, movers=kann.movers(koopman, states), step_name="layer")


def layered_states(rng):
    """Three layers that nearly copy, and a last that does much: one operator is worse than copying at the others."""
    kept, new, other = rng.normal(size=(3, 60, 2))
    paths = [[kept, 0.1 * other, 0 * new]] * 3 + [[kept, new, 0 * new], [kept, new, 10 * new]]
    states = np.stack([np.concatenate(parts, axis=1) for parts in paths], axis=1)
    return states + 0.01 * rng.normal(size=states.shape)


def layers_report(path, **settings):
    """A report along the depth of a network with a map for each of its layers."""
    states = layered_states(np.random.default_rng(0))
    koopman, maps = kann.fit(states), kann.depth.fit(states)
    options = {
        "steps": kann.depth.trust(maps, states),
        "step_names": ["b.0", "b.1", NASTY, "b.3"],
        "step_name": "layer",
    }
    return report(path, koopman, states, **(options | settings))


def phases_report(path):
    """A report of modes that long phases push, in a network whose decisions need nothing of its state."""
    rng = np.random.default_rng(0)
    values = np.empty((30, 140, 2))
    values[:, 0] = 3 * rng.normal(size=(30, 2))
    for step in range(1, 140):
        pushed = 0.1 * (100 <= step < 120)
        values[:, step] = values[:, step - 1] * (0.99, 0.97) + pushed + 0.01 * rng.normal(size=(30, 2))
    states = kann.States.from_padded(values)
    koopman = kann.fit(states)
    effects = made_effects(koopman, tuple(range(len(koopman.modes))), (100, 100, 100))
    ones = np.ones_like(effects.full_scores)
    removed = {**effects.removed_scores, "pca": np.full_like(effects.removed_scores["pca"], np.nan)}
    effects = replace(effects, full_scores=ones, none_scores=ones, removed_scores=removed)
    return report(path, koopman, states, effects=effects, movers=kann.movers(koopman, states))
