"""However a model arranges sequences and steps, what is recorded is right, refused, or named as uncertain."""

import warnings
from collections import Counter

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

import kann
from kann.errors import KannError, SequenceWarning
from tests.fuzz.models import Arranging, Way, batches, described
from tests.fuzz.worker import SECONDS, refusal, within

FAR = 1e6
"""Distance of paths of different lengths."""

SAME = 1e-5
"""Rounding of float32, 1e-7, over a dozen steps; other batch sizes call other kernels."""


def outcome_of(way: Way) -> str:
    """What became of a recording: "right", "refused", "uncertain", or how it is wrong."""
    model = Arranging(way)
    data, expected = model.data(), model.expected()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with warnings.catch_warnings(record=True) as caught, within(SECONDS):
        warnings.simplefilter("always")
        try:
            states = kann.record(model, batches(data, way.batch_size), lengths="lengths", progress=False)
        except KannError as error:
            outcome, told = refusal(error)
            return "refused" if outcome == "refused" else f"wrong: {told}"
        except Exception as error:  # every other error is a failure, told with all others
            return f"wrong: {type(error).__name__}: {error}"
    if model.h is not None or any(not torch.equal(value, before[name]) for name, value in model.state_dict().items()):
        return "wrong: the model has changed"
    if any(issubclass(one.category, SequenceWarning) for one in caught):
        return "uncertain"
    runs = len(expected) // len(data)
    if sorted(states.lengths) != sorted(map(len, expected)):
        return f"wrong: {len(states)} sequences of {sorted(states.lengths)} steps for {sorted(map(len, expected))}"
    if runs == 1:
        pairs = list(zip(states, expected, strict=True))
    else:  # several runs over a batch come one after the other
        apart = np.array([[min(distance(own, path), FAR) for path in expected] for own in states])
        pairs = [(states[i], expected[j]) for i, j in zip(*linear_sum_assignment(apart), strict=True)]
    if any(distance(own, path) > SAME for own, path in pairs):
        return "wrong: rows of other sequences or steps"
    if way.flips and not states.reverse:
        return "wrong: read from the end, and not marked"
    return "right"


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference; of different lengths infinite."""
    return float(np.abs(one - other).max()) if one.shape == other.shape else np.inf


def test_recordings_of_models_that_arrange_their_batch(fuzz):
    rng, found, wrong = np.random.default_rng(fuzz.seed), Counter(), []
    for _ in range(max(60, fuzz.cases // 20)):
        way = Way.drawn(rng)
        outcome = outcome_of(way)
        found[outcome.split(":")[0]] += 1
        if outcome.startswith("wrong"):
            wrong.append(f"{outcome}\n  Way({described(way)})")
    print(f"--fuzz-seed={fuzz.seed}: {dict(found)}")  # noqa: T201
    assert not wrong, f"{len(wrong)} of {found.total()} with --fuzz-seed={fuzz.seed}:\n" + "\n".join(wrong[:20])
    assert found["right"] > found.total() / 2
