"""A copy task that is learnt in a second: two digits of two kinds, four blanks."""

from dataclasses import replace

from kann_experiments.copy.task import CONFIGS, Config, Task
from kann_experiments.training import Training

TASK = Task(digits=2, blanks=4, letters=2)


def tiny(arch: str = "dtriv", *, iterations: int = 150, every: int = 50) -> Config:
    training = Training(iterations=iterations, schedule="linear", clip=1.0, every=every)
    return replace(CONFIGS[arch], units=12, rate=1e-2, batch=16, task=TASK, training=training)
