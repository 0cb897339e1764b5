"""What a network that learnt the flip-flop does: three kinds of operators, fixed points, and live effects."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import kann
from kann.typing import Array, Float
from kann_experiments.flipflop.task import FITTED, JUDGED, LIVE, Config, FlipFlopNetwork
from kann_experiments.results import Format, Quantity
from kann_experiments.training import generator

RATES = {"30": 0.3, "10": 0.1, "01": 0.01}
"""Probabilities of a pulse in the sequences that are analysed, by the name that keys end with."""

RANK = 32
"""Coordinates of every operator. With 16 the third eigenvalue of seed 0 at a pulse rate of 0.3 is 0.961, with 24 it is
0.970."""

SEQUENCES, STEPS = 512, 200
"""How many sequences of how many steps an operator is fitted to, and judged on."""

LIVE_SEQUENCES, LIVE_STEPS = 128, 100
"""How many sequences of how many steps the running network reads."""

EFFECT_COUNTS = (1, 2, 3, 4, 8)
"""How many coordinates are kept in the running network."""

STARTS = 256
"""From how many visited states fixed points are searched."""

MEMORIES = 3
"""How many memories there are: the leading eigenvalues of an operator are to be those."""

OF_RATES: tuple[tuple[str, str, Format], ...] = (
    ("network_bits", "bits right, network", "percent"),
    ("autonomous", "|λ| of the third mode, autonomous", "number"),
    ("driven", "    driven by the pulses", "number"),
    ("quiet", "    autonomous, fitted to steps without a pulse", "number"),
    ("gated_first", "|λ| of the first mode, bilinear at u = 0", "number"),
    ("gated", "    the third mode", "number"),
    ("driven_bits", "bits right, driven operator in place of the network", "percent"),
    ("gated_bits", "    bilinear operator", "percent"),
    ("driven_error", "relative error of one step, driven, held-out sequences", "number"),
    ("gated_error", "    bilinear", "number"),
)
"""What is measured at each rate: key, name in the table, format."""

QUANTITIES = (
    *(
        Quantity(key=f"{key}_{name}", what=f"{what}, pulse rate {rate}", format=form)
        for name, rate in RATES.items()
        for key, what, form in OF_RATES
    ),
    Quantity(key="stable_points", what="stable fixed points without a pulse (2³ memories)"),
    Quantity(key="unstable_points", what="unstable fixed points without a pulse"),
    Quantity(key="point_modulus", what="    largest |λ| at a stable one, mean"),
    Quantity(key="kept_modes", what="bits unchanged, three modes kept live, bilinear at u = 0", format="percent"),
    Quantity(key="kept_driven", what="    three modes of the driven operator", format="percent"),
    Quantity(key="kept_pca", what="    three principal components", format="percent"),
    Quantity(key="kept_readout", what="    the readout's three directions", format="percent"),
    Quantity(key="kept_random", what="    three random directions", format="percent"),
)
"""The table."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AtRate:
    """Operators fitted to sequences of one pulse rate, and what they do on others."""

    autonomous: kann.Koopman
    driven: kann.Koopman
    quiet: kann.Koopman
    """Autonomous, fitted to the steps without a pulse."""
    gated: kann.Bilinear
    states: kann.States
    """The states that they were fitted to."""
    numbers: dict[str, float]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Study:
    """What was found about one trained network."""

    at_rates: dict[str, AtRate]
    """By the name of the rate."""
    points: kann.FixedPoints
    effects: dict[str, kann.Effects]
    """Live effects of the modes of the bilinear operator at u = 0, and of the driven one."""
    numbers: dict[str, float]

    @property
    def leading(self) -> dict[str, dict[str, list[float]]]:
        """The three leading moduli of each operator at each rate, as ``results.json`` holds them."""
        return {name: {kind: _moduli(koopman) for kind, koopman in _kinds(at)} for name, at in self.at_rates.items()}


def _kinds(at: AtRate) -> list[tuple[str, kann.Koopman]]:
    """The operators at one rate by name, each with eigenvalues of its own."""
    return [("autonomous", at.autonomous), ("driven", at.driven), ("quiet", at.quiet), ("bilinear", at.gated.at(None))]


def _moduli(koopman: kann.Koopman) -> list[float]:
    return np.abs(koopman.eigenvalues[:MEMORIES]).tolist()


@torch.no_grad()
def study_network(network: FlipFlopNetwork, config: Config, *, seed: int) -> Study:
    """Fit operators at each pulse rate, search fixed points, and test modes in the running network."""
    at_rates = {name: study_rate(network, config, number, seed=seed) for number, name in enumerate(RATES)}
    numbers = {f"{key}_{name}": value for name, at in at_rates.items() for key, value in at.numbers.items()}
    points = fixed_points(network, at_rates["10"].states)
    effects = live_effects(network, config, at_rates["10"], seed=seed)
    return Study(
        at_rates=at_rates,
        points=points,
        effects=effects,
        numbers=numbers | point_numbers(points) | effect_numbers(effects),
    )


def study_rate(network: FlipFlopNetwork, config: Config, number: int, *, seed: int) -> AtRate:
    """Operators at the pulse rate of this number, judged on other sequences of the same rate."""
    rate = list(RATES.values())[number]
    pulses, _ = config.task.draw(generator(seed, FITTED, number), SEQUENCES, rate=rate, steps=STEPS)
    others, answer = config.task.draw(generator(seed, JUDGED, number), SEQUENCES, rate=rate, steps=STEPS)
    states, held_out = (_record(network, part) for part in (pulses, others))
    autonomous, driven = kann.fit(states, rank=RANK), kann.fit(states, rank=RANK, driven=True)
    quiet = kann.fit(states, rank=RANK, where=_reads_nothing)
    gated = kann.fit(states, rank=RANK, driven="bilinear", features="squares")
    moduli = _moduli(gated.at(None))
    numbers = {
        "network_bits": _bits_right(network(others), answer),
        "autonomous": _moduli(autonomous)[-1],
        "driven": _moduli(driven)[-1],
        "quiet": _moduli(quiet)[-1],
        "gated_first": moduli[0],
        "gated": moduli[-1],
        "driven_bits": _bits_right(_read_out(network, driven.simulate(others.numpy())), answer),
        "gated_bits": _bits_right(_read_out(network, gated.simulate(others.numpy())), answer),
        "driven_error": kann.relative_error(driven, held_out),
        "gated_error": kann.relative_error(gated, held_out),
    }
    return AtRate(autonomous=autonomous, driven=driven, quiet=quiet, gated=gated, states=states, numbers=numbers)


def _record(network: FlipFlopNetwork, pulses: Float[Tensor, "s t b"]) -> kann.States:
    """States with what led to each, the state before the first step included, since operators start there too."""
    return kann.record(network, pulses, layer="recurrent", inputs=True, initial=True, progress=False)


def _reads_nothing(inputs: Array) -> Array:
    return (inputs == 0).all(-1)


def _read_out(network: FlipFlopNetwork, states: Float[Array, "s t d"]) -> Float[Tensor, "s t b"]:
    return network.readout(torch.as_tensor(states, dtype=torch.float32))


def _bits_right(outputs: Float[Tensor, "s t b"], answer: Float[Tensor, "s t b"]) -> float:
    return float((outputs.sign() == answer).float().mean())


def fixed_points(network: FlipFlopNetwork, states: kann.States) -> kann.FixedPoints:
    """Fixed points while no pulse is read, searched from states that the network visits."""
    rows = np.linspace(1, len(states.values) - 1, STARTS).astype(int)
    initial = np.asarray(states.values)[rows]
    return kann.find_fixed_points(network.recurrent, initial, inputs=np.zeros(network.recurrent.input_size))


def point_numbers(points: kann.FixedPoints) -> dict[str, float]:
    """How many fixed points are stable and not, and how fast states return to a stable one."""
    is_fixed = points.kinds == "fixed"
    moduli = np.abs(points.eigenvalues[is_fixed & points.stable]).max(axis=1, initial=0.0)
    modulus = np.nan
    if len(moduli):
        modulus = float(moduli.mean())
    return {
        "stable_points": float((is_fixed & points.stable).sum()),
        "unstable_points": float((is_fixed & ~points.stable).sum()),
        "point_modulus": modulus,
    }


def same_bits(outputs: Any, untouched: Any) -> Float[Array, " s"]:
    """The fraction of bits of each sequence that are as the untouched network answers them."""
    return (np.sign(outputs) == np.sign(untouched)).reshape(len(outputs), -1).mean(axis=1)


def live_effects(network: FlipFlopNetwork, config: Config, at: AtRate, *, seed: int) -> dict[str, kann.Effects]:
    """What the running network still answers if only some coordinates of its state are kept."""
    pulses, _ = config.task.draw(generator(seed, LIVE, 0), LIVE_SEQUENCES, rate=RATES["10"], steps=LIVE_STEPS)
    settings: dict[str, Any] = {
        "layer": "recurrent",
        "readout": network.readout,
        "metric": same_bits,
        "counts": EFFECT_COUNTS,
        "fill": "linear",
        "progress": False,
    }
    operators = {"modes": at.gated.at(None), "driven": at.driven}
    return {name: kann.effects(network, pulses, koopman, at.states, **settings) for name, koopman in operators.items()}


def effect_numbers(effects: dict[str, kann.Effects]) -> dict[str, float]:
    """Bits that are unchanged with three coordinates kept."""
    at = EFFECT_COUNTS.index(MEMORIES)
    kept = effects["modes"].kept
    numbers = {f"kept_{name}": float(kept[name][at]) for name in ("modes", "pca", "readout", "random")}
    return numbers | {"kept_driven": float(effects["driven"].kept["modes"][at])}
