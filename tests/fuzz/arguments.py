"""Wrong arguments for every public name: good calls in which one or two arguments are replaced."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch
from hypothesis import strategies as st
from matplotlib.figure import Figure
from torch import nn

import kann
from kann.reporting.inputs import PageTable
from tests.explaining.networks import Reader
from tests.reporting.histories import history
from tests.systems import nested, noisy_states

DTYPES = ("f8", "f4", "f2", "g", ">f8", "i8", "u1", "?", "c16", "O", "U2", "M8[s]")
FILLS = (0.0, 1.0, np.nan, np.inf, 1e200, -1e-200)
TENSOR_TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64)


@st.composite
def arrays(draw):
    """Numpy arrays of any rank from 0 to 4, also empty, of many types, with numbers that few expect."""
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    array = rng.normal(size=shape)
    if array.size and draw(st.booleans()):
        array.reshape(-1)[0] = draw(st.sampled_from(FILLS))
    with np.errstate(all="ignore"):
        if draw(st.booleans()):
            array = np.asarray(np.nan_to_num(array, posinf=9)).astype(draw(st.sampled_from(DTYPES)))
    kind = draw(st.sampled_from(("plain", "plain", "masked", "list", "transposed")))
    if kind == "masked":
        return np.ma.masked_array(array, np.zeros(shape, bool))
    if kind == "list":
        return array.tolist()
    if kind == "transposed":
        return array.T
    return array


@st.composite
def near_misses(draw):
    """States of the right width that hold a number which is none, or that are of another kind."""
    values = noisy_states(np.random.default_rng(0), sequences=3, steps=5, d=4)
    values[tuple(draw(st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(0, 3))))] = draw(
        st.sampled_from(FILLS)
    )
    form = draw(st.sampled_from(("padded", "rows", "list", "tensor", "states", "single", "big-endian", "half")))
    return {
        "padded": values,
        "rows": values.reshape(-1, 4),
        "list": list(values),
        "tensor": torch.tensor(values),
        "states": kann.States.from_padded(values),
        "single": values[:, :1],
        "big-endian": values.astype(">f8"),
        "half": np.clip(np.nan_to_num(values), -9, 9).astype("f2"),
    }[form]


def tensors():
    """Tensors of many types, also sparse ones, ones without numbers, and nested ones."""
    special = (
        lambda: torch.eye(4).to_sparse(),
        lambda: torch.ones(3, 5, 4, device="meta"),
        lambda: torch.ones(3, 5, 4, requires_grad=True),
        nested,
        lambda: torch.tensor(3),
    )
    plain = [lambda dtype=dtype: torch.ones(3, 5, 4).to(dtype) for dtype in TENSOR_TYPES]
    return st.sampled_from((*special, *plain)).map(lambda make: make())


def raises(*arguments, **named):
    raise ZeroDivisionError("a function of the user's own")


NONSENSE = (
    *(
        None,
        True,
        False,
        "",
        "x",
        "svd",
        b"bytes",
        0,
        1,
        -1,
        2,
        10**9,
        -(10**15),
        10**30,
        0.5,
        -0.5,
        1e308,
        np.nan,
        np.inf,
    ),
    *(1j, [], (), {}, set(), [None], ["a"], [[1.0], [1.0, 2.0]], [np.ones((2, 4)), np.ones((3, 5))], object(), print),
    *(
        Path("/nonexistent/x"),
        "s3",
        np.float32(2),
        np.int8(1),
        np.array(None),
        range(3),
        slice(2),
        Ellipsis,
    ),
    *(raises, lambda h: None, lambda h: h, lambda h: (h, h), lambda h: h[:1], lambda h: "x", lambda h: h * np.nan),
    *(nn.Linear(4, 2), nn.Linear(7, 2), nn.ReLU(), nn.GRU(4, 3), scipy.sparse.eye(4), kann.Moments(), kann.KannError),
)


def anything():
    """Something that should not be there, or that only looks as if it should."""
    return st.one_of(arrays(), near_misses(), tensors(), st.sampled_from(NONSENSE))


@dataclass(frozen=True)
class Good:
    """What good calls pass. Made anew for each case, since a call may change it."""

    folder: Path

    def __post_init__(self):
        rng = np.random.default_rng(0)
        padded = noisy_states(rng, sequences=3, steps=8, d=4)
        states = kann.States.from_padded(padded, inputs=rng.normal(size=(3, 8, 2)))
        fill = object.__setattr__
        fill(self, "padded", padded)
        fill(self, "states", states)
        fill(self, "koopman", kann.fit(states, rank=3))
        fill(self, "trust", kann.trust(self.koopman, states, folds=3))
        fill(self, "driven", kann.fit(states, driven=True))
        outputs = np.arange(24.0)[:, None]
        fill(self, "fitted_readout", kann.stand_ins.fit_readout(self.driven, states, outputs, products=False))
        more = kann.States.from_padded(noisy_states(rng, sequences=6, steps=8, d=4), inputs=rng.normal(size=(6, 8, 2)))
        last = kann.stand_ins.fit_readout(self.driven, more, np.arange(6.0)[:, None], products=False)
        fill(self, "last_readout", last)
        fill(self, "gated", kann.fit(states, driven="bilinear", rank=2, ridge=1e-3))
        fill(self, "moments", kann.Moments.of(states))
        fill(self, "model", nn.ModuleDict({"rnn": nn.GRU(2, 4, batch_first=True), "head": nn.Linear(4, 2)})["rnn"])
        fill(self, "axes", Figure().add_subplot())
        fill(self, "points", _points())


@functools.cache
def _points() -> kann.FixedPoints:
    """The fixed points of a small network, searched for once."""
    torch.manual_seed(0)
    return kann.find_fixed_points(kann.recording.step_of(nn.GRU(2, 4)), np.zeros((2, 4)))


def stack(samples: list[Any]) -> Any:
    """A user's function that joins samples, and says in its own words what it cannot join."""
    try:
        return torch.stack([torch.as_tensor(each) for each in samples])
    except Exception as error:
        raise kann.KannError("these samples cannot be stacked") from error


def score(outputs: Any, untouched: Any) -> Any:
    """A user's metric: how far the outputs are from those of the network by itself."""
    return -np.abs(outputs - untouched).reshape(len(outputs), -1).mean(axis=1)


def in_force(**arguments: Any) -> None:
    """Enter an intervention and leave it."""
    with kann.intervene(**arguments):
        pass


def watch_once(**arguments: Any) -> None:
    """Make a monitor and let it look once."""
    kann.Monitor(**arguments).update()


watch_once.__signature__ = inspect.signature(kann.Monitor)  # type: ignore[attr-defined]
in_force.__signature__ = inspect.signature(kann.intervene)  # type: ignore[attr-defined]


def bypassed(**arguments: Any) -> None:
    """Bypass layers and leave the block."""
    with kann.depth.bypass(**arguments):
        pass


bypassed.__signature__ = inspect.signature(kann.depth.bypass)  # type: ignore[attr-defined]


Call = tuple[Callable[..., Any], dict[str, Any]]


def calls(good: Any) -> dict[str, Call]:
    """A good call of every public name, and of every public method of a public class: a function and its arguments."""
    koopman, driven, states, moments = good.koopman, good.driven, good.states, good.moments
    h, weight = states.values[:5], np.ones((2, 4))
    readout, trust = nn.Linear(4, 2), good.trust
    probe, reader = torch.randn(6, 5, 2), Reader(nn.GRU(2, 3, batch_first=True), nn.Linear(3, 1))
    both, blocks = nn.Sequential(good.model), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    deep = np.random.default_rng(0).normal(size=(8, 5, 4))
    return {
        "agreement": (kann.agreement, {"koopman": koopman, "states": states, "readout": readout, "threshold": 0.0}),
        "agreement at every step": (
            kann.agreement,
            {"koopman": koopman, "states": states, "readout": readout, "at": "every", "outputs": "labels"},
        ),
        "copying": (kann.relative_error, {"koopman": kann.copying, "states": states}),
        "contributions": (kann.contributions, {"koopman": koopman, "h": h, "weight": weight, "bias": np.ones(2)}),
        "decision_map": (
            kann.decision_map,
            {"koopman": koopman, "mode": 0, "readout": readout, "grid": np.ones(3) + 0j},
        ),
        "find_fixed_points": (
            kann.find_fixed_points,
            {"step": kann.recording.step_of(good.model), "initial": h[:2], "inputs": np.zeros(2), "tolerance": 1e-6}
            | {"slow_tolerance": 1e-3, "recipe": kann.fixed_points.Recipe()},
        ),
        "fit": (kann.fit, {"data": good.padded, "rank": 2, "basis": "svd", "lengths": [8, 3, 2], "ridge": 0.0}),
        "fit grouped": (kann.fit, {"data": states, "rank": "auto", "groups": [0, 1, 2]}),
        "trust each step": (
            kann.depth.trust,
            {"maps": kann.depth.fit(deep, ridge=0.1, rank=2), "states": deep, "folds": 3, "groups": None}
            | {"level": 0.9, "seed": 0},
        ),
        "fit each step": (
            kann.depth.fit,
            {"states": deep, "ridge": 0.1, "rank": 2, "basis": "svd", "offset": True, "lengths": None, "groups": None},
        ),
        "fit driven": (kann.fit, {"data": states, "driven": True, "offset": True, "ridge": 1e-3, "over_ranks": False}),
        "fit bilinear": (
            kann.fit,
            {"data": states, "driven": "bilinear", "rank": 2, "features": "squares", "lift": "squares", "ridge": 1e-3}
            | {"where": np.ones(24, dtype=bool)},
        ),
        "features": (kann.features.Fourier, {"count": 3, "seed": 0, "width": 1.0}),
        "features.Components": (kann.features.Components, {"count": 3}),
        "features.Tokens": (kann.features.Tokens, {"count": 3}),
        "stand_in": (kann.stand_in, {"koopman": good.gated, "vocabulary": np.ones((3, 2)), "dtype": torch.float64}),
        "stand_in readout": (kann.stand_in, {"koopman": driven, "readout": good.fitted_readout}),
        "fit_readout": (
            kann.stand_ins.fit_readout,
            {"koopman": koopman, "states": states, "outputs": np.ones((24, 1)), "products": False},
        ),
        "save_onnx": (kann.stand_ins.save_onnx, {"koopman": good.gated, "path": good.folder / "step.onnx"}),
        "save_onnx readout": (
            kann.stand_ins.save_onnx,
            {"koopman": driven, "path": good.folder / "read.onnx", "readout": good.fitted_readout},
        ),
        "StandIn lengths": (
            kann.stand_in(driven, readout=good.last_readout).forward,
            {"inputs": torch.ones(2, 3, 2), "initial": torch.ones(2, 4), "lengths": torch.tensor([3, 2])},
        ),
        "StandIn": (kann.stand_in(good.gated).forward, {"inputs": torch.ones(2, 3, 2), "initial": torch.ones(2, 4)}),
        "Bilinear.at": (good.gated.at, {"u": np.ones(2), "around": h[0], "states": None}),
        "Bilinear.matrices": (good.gated.matrices, {"inputs": np.ones((3, 2))}),
        "Bilinear.pushes": (good.gated.pushes, {"inputs": np.ones((3, 2))}),
        "Bilinear.encode": (good.gated.encode, {"h": h}),
        "Bilinear.decode": (good.gated.decode, {"z": good.gated.encode(h)}),
        "Bilinear.predict": (good.gated.predict, {"h": h, "steps": 1, "inputs": np.ones((5, 2))}),
        "Bilinear.rollout": (good.gated.rollout, {"h": h, "steps": 3, "inputs": np.ones((5, 3, 2))}),
        "Bilinear.simulate": (good.gated.simulate, {"inputs": np.ones((5, 3, 2)), "initial": h}),
        "Bilinear.load": (kann.Bilinear.load, {"path": good.folder / "absent.npz", "features": None}),
        "hybrid": (kann.hybrid, {"koopman": koopman, "states": states, "known": 2}),
        "importance": (kann.importance, {"koopman": koopman, "states": states}),
        "magnitude": (kann.magnitude, {"koopman": koopman, "h": h}),
        "orthogonality": (kann.orthogonality, {"koopman": koopman}),
        "project": (kann.project, {"koopman": koopman, "h": h}),
        "readout_of": (
            kann.recording.readout_of,
            {"model": nn.Sequential(good.model, nn.Linear(4, 2)), "layer": "0", "name": "1"},
        ),
        "reconstruct": (kann.reconstruct, {"koopman": koopman, "h": h, "modes": [0], "part": "real"}),
        "record": (
            kann.record,
            {"model": both, "data": torch.ones(2, 5, 2), "layer": "0", "lengths": [5, 2], "inputs": True, "state": "h"},
        ),
        "record into": (
            kann.record,
            {
                "model": both,
                "data": torch.ones(2, 5, 2),
                "into": good.folder / "recorded.zarr",
                "axis": "time",
                "initial": False,
            }
            | {"batch_size": 2, "max_sequences": 2, "device": "cpu", "progress": False},
        ),
        "record depth": (
            kann.record,
            {"model": blocks, "data": torch.ones(2, 5, 4), "layer": ["0", "1"], "axis": "depth", "embedding": True}
            | {"forward": lambda model, batch: model(batch), "collate": torch.stack},
        ),
        "relative_error": (kann.relative_error, {"koopman": driven, "states": states, "reduce": "mean"}),
        "report": (
            kann.report,
            {"path": good.folder / "report.html", "koopman": koopman, "states": states, "readout": readout, "modes": 2}
            | {"tokens": [["a"] * 8] * 3, "labels": [0, 1, 0], "title": "t", "trust": trust},
        ),
        "report all": (
            kann.report,
            {"path": good.folder / "report.html", "koopman": koopman, "states": states, "readout": readout, "modes": 1}
            | {
                "signals": list(good.padded[..., :1]),
                "channels": ["a"],
                "classes": ["a", "b"],
            }
            | {"others": {"c": koopman, "driven": driven}, "fixed_points": good.points, "about": "a"}
            | {"effects": None, "movers": None, "sentences": ["a"], "choices": ["b"], "alone": {0: (0.9, 0.5)}}
            | {"step_seconds": 0.1, "step_name": "step", "outputs": "class", "threshold": 0.5, "network_outputs": None}
            | {"steps": None, "step_names": None, "memory": None, "title": "t", "line": "GRU", "matter": [0]}
            | {
                "verdict": ("found", "93 %"),
                "summary": ["a"],
                "tables": [PageTable(title="t", head=["a"], rows=[["1"]])],
            },
        ),
        "distance": (
            kann.distance,
            {"a": driven, "b": driven, "kind": "response", "readouts": (weight, weight), "steps": 4, "modes": 2}
            | {"rank": 2, "weights": "equal", "level": 0.9},
        ),
        "compare": (
            kann.compare,
            {"networks": {"a": driven, "b": driven}, "kind": "spectrum", "readouts": None, "steps": 4, "modes": 2}
            | {"rank": 2, "weights": "equal", "intervals": False, "level": 0.9, "progress": False},
        ),
        "Monitor": (
            watch_once,
            {"model": both, "probe": probe, "every": 1, "layer": "0", "state": "h", "inputs": True, "rank": 2}
            | {"groups": 3, "history": kann.live.History(), "lengths": [5, 4, 3, 5, 5, 5], "balance": False},
        ),
        "Monitor.update": (kann.Monitor(both, probe, groups=3).update, {"step": 3, "loss": 0.5}),
        "History.load": (kann.live.History.load, {"path": good.folder / "absent.npz"}),
        "History.save": (history().save, {"path": good.folder / "history.npz"}),
        "History.figure": (history().figure, {"name": "slow"}),
        "explain": (
            kann.explain,
            {"model": reader, "data": torch.randn(12, 6, 2), "labels": [0, 1] * 6, "tokens": [["a"] * 6] * 12}
            | {"readout": nn.Linear(3, 1), "groups": list(range(12)), "layer": "rnn", "state": "h", "axis": "time"}
            | {"lengths": None, "classes": ["a", "b"], "channels": ["force", "gate"], "outputs": "class"}
            | {"step_seconds": 0.1, "seconds": 2.0}
            | {"collate": stack, "batch_size": 4, "device": "cpu", "seed": 0, "progress": False},
        ),
        "Explanation.open": (kann.Explanation.open, {"folder": good.folder / "absent", "readout": None}),
        "film": (
            kann.plots.film,
            {"path": good.folder / "film.html", "histories": history(), "title": "t", "about": "a"},
        ),
        "trust": (
            kann.trust,
            {"koopman": koopman, "states": states, "folds": 3, "groups": [0, 1, 2], "level": 0.9, "seed": 1}
            | {"untrained": states},
        ),
        "trust where": (
            kann.trust,
            {"koopman": kann.fit(states, where=lambda u: u[:, 0] < 9), "states": states, "folds": 3}
            | {"where": lambda u: u[:, 0] < 9},
        ),
        "movers": (
            kann.movers,
            {"koopman": koopman, "states": states, "tokens": [["a"] * 8] * 3, "readout": readout, "modes": [0]}
            | {"by": "tokens", "level": 0.9},
        ),
        "movers of inputs": (kann.movers, {"koopman": koopman, "states": states, "by": "inputs", "names": ["a", "b"]}),
        "pseudospectrum": (
            kann.pseudospectrum,
            {"koopman": koopman, "data": states, "grid": np.ones((2, 2)) + 0j},
        ),
        "effects": (
            kann.effects,
            {"model": nn.Sequential(good.model), "data": torch.ones(8, 5, 2), "coordinates": np.eye(4)}
            | {"states": states, "koopman": koopman, "counts": (1,), "fill": "linear", "draws": 1}
            | {"layer": "0", "state": "h", "groups": list(range(8)), "seed": 0}
            | {"readout": None, "metric": score, "labels": None, "outputs": "class", "threshold": 0.0}
            | {"forward": lambda model, batch: model(batch)[0], "collate": stack, "batch_size": 2, "device": "cpu"}
            | {"lengths": None, "max_sequences": 8, "progress": False},
        ),
        "balance": (
            kann.balance,
            {"model": nn.Sequential(good.model), "data": torch.ones(8, 5, 2), "layer": "0", "state": "h"}
            | {"outputs": "values", "labels": None, "sequences": 6, "draws": 1, "seed": 0, "progress": False}
            | {"forward": lambda model, batch: model(batch)[0], "batch_size": 2, "device": "cpu"},
        ),
        "memory": (
            kann.memory,
            {"model": nn.Sequential(good.model), "data": torch.ones(8, 5, 2), "layer": "0", "state": "h"}
            | {"channels": ["a", "b"], "sequences": 6, "untrained": False, "step_seconds": 0.1, "seed": 0}
            | {"forward": lambda model, batch: model(batch)[0], "batch_size": 2, "device": "cpu", "progress": False},
        ),
        "fit_span": (kann.depth.fit_span, {"states": deep, "first": 0, "last": 2, "ridge": 0.1, "groups": None}),
        "untrained_twin": (kann.recording.untrained_twin, {"model": good.model, "seed": 0}),
        "intervene": (
            in_force,
            {"model": both, "coordinates": koopman, "states": states, "keep": [0], "remove": None, "fill": "linear"}
            | {"layer": "0", "state": "h"},
        ),
        "bypass": (bypassed, {"model": blocks, "first": "0", "last": "0", "operator": koopman}),
        "step_of": (kann.recording.step_of, {"model": both, "layer": "0"}),
        "plots": (
            kann.plots.draw_spectrum,
            {"koopman": koopman, "ax": good.axes, "others": {"b": driven.eigenvalues}, "trust": trust},
        ),
        "Koopman.encode": (koopman.encode, {"h": h}),
        "Koopman.decode": (koopman.decode, {"z": koopman.encode(h)}),
        "Koopman.predict": (driven.predict, {"h": h, "steps": 1, "inputs": np.ones((5, 2))}),
        "Koopman.rollout": (koopman.rollout, {"h": h, "steps": 3, "inputs": None}),
        "Koopman.simulate": (driven.simulate, {"inputs": np.ones((5, 3, 2)), "initial": h}),
        "Koopman.load": (kann.Koopman.load, {"path": good.folder / "absent.npz"}),
        "Mode": (koopman.modes[0].horizon, {"eps": 0.5}),
        "Moments.of": (kann.Moments.of, {"states": states, "inputs": True}),
        "Moments.update": (
            kann.Moments().update,
            {"values": good.padded, "lengths": [1, 2, 3], "inputs": np.ones((3, 8, 2))},
        ),
        "Moments.load": (kann.Moments.load, {"path": good.folder / "absent.npz"}),
        "Moments.__add__": (moments.__add__, {"other": moments}),
        "Moments.__sub__": (moments.__sub__, {"other": moments}),
        "States": (
            kann.States,
            {"values": states.values, "lengths": [8, 8, 8], "inputs": states.inputs, "reverse": False, "parts": ()},
        ),
        "States.from_padded": (
            kann.States.from_padded,
            {"values": good.padded, "lengths": [1, 2, 3], "inputs": np.ones((3, 8, 2))},
        ),
        "States.from_sequences": (kann.States.from_sequences, {"sequences": list(good.padded), "inputs": None}),
        "States.open": (kann.States.open, {"path": good.folder / "absent.zarr"}),
        "States.ranges": (states.ranges, {"max_rows": 3}),
    }


NOT_PASSED = {
    "forward": "what it raises is the model's own error, and comes through as it is",
    "recording": "any options of kann.record",
}
"""Arguments that no call has, and why."""

NOT_CALLED = {
    "depth": "a module",
    "errors": "a module",
    "recording": "a module",
    "zoo": "a module",
    "AffineMap": "a result, which functions make",
    "Balance": "a result, which functions make",
    "BypassEffects": "a result, which functions make",
    "StepMaps": "a result, which functions make",
    "StepTrust": "a result, which functions make",
    "bypass_effects": "its mistakes are in tests/depth/test_bypass_effects.py",
    "profile": "its mistakes are in tests/depth/test_profile.py",
    "Profile": "a result, which functions make",
    "ConditionWarning": "a warning",
    "PrecisionWarning": "a warning",
    "UnfinishedWarning": "a warning",
    "KannError": "the error itself",
    "KannWarning": "a warning",
    "PaddingWarning": "a warning",
    "RankWarning": "a warning",
    "Contributions": "a result, which functions make",
    "FixedPoints": "a result, which functions make",
    "DependenceWarning": "a warning",
    "FewPairsWarning": "a warning",
    "Effects": "a result, which functions make",
    "Comparison": "a result, which functions make",
    "Distance": "a result, which functions make",
    "NotFiniteError": "an error",
    "ModeTrust": "a result, which functions make",
    "Pseudospectrum": "a result, which functions make",
    "Mover": "a result, which functions make",
    "Movers": "a result, which functions make",
    "Trust": "a result, which functions make",
}
"""Public names without a call of their own, and why."""
