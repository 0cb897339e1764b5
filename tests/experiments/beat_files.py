"""Heartbeats as the files of the UCR archive, and a size of the experiment that takes a second."""

from dataclasses import replace

import numpy as np
from kann_experiments.ecg.beats import Counts
from kann_experiments.ecg.task import CONFIGS, Config

from kann.zoo.autoencoder import Beats, draw_beats

COUNTS = Counts(train=12, test=30, normal=25, samples=140)


def some_beats(normal: int = 120, anomalous: int = 60) -> Beats:
    return draw_beats(np.random.default_rng(5), normal=normal, anomalous=anomalous)


def tiny(arch: str = "lstm", **changes) -> Config:
    return replace(CONFIGS[arch], units=10, decoder_units=12, batch=32, **{"epochs": 3} | changes)


def as_txt(beats: Beats) -> str:
    rows = np.column_stack([beats.labels, beats.values])
    return "".join("".join(f"  {value: .7e}" for value in row) + "\n" for row in rows)


def as_ts(beats: Beats) -> str:
    head = "#made up\n@problemName ECG5000\n@timeStamps false\n@classLabel true 1 2 3 4 5\n@data\n"
    return head + "".join(f"{_series(row)}:{label}\n" for row, label in zip(beats.values, beats.labels, strict=True))


def as_arff(beats: Beats) -> str:
    head = "%made up\n@Relation ECG5000\n@attribute att1 numeric\n@attribute  target {1,2,3,4,5}\n\n@data\n"
    return head + "".join(f"{_series(row)},{label}\n" for row, label in zip(beats.values, beats.labels, strict=True))


def _series(row) -> str:
    return ",".join(f"{value:.8g}" for value in row)


WRITERS = {".txt": as_txt, ".ts": as_ts, ".arff": as_arff}


def two_splits() -> dict[str, Beats]:
    """Both splits with the numbers of `COUNTS`, mixed."""
    whole = some_beats(normal=COUNTS.normal, anomalous=COUNTS.train + COUNTS.test - COUNTS.normal)
    order = np.random.default_rng(6).permutation(len(whole.labels))
    parts = {"TRAIN": order[: COUNTS.train], "TEST": order[COUNTS.train :]}
    return {name: Beats(values=whole.values[at], labels=whole.labels[at]) for name, at in parts.items()}
