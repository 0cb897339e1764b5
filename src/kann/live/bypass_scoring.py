"""How far a network with replaced layers is from the untouched one, and from the labels, on each sequence."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kann.backends.arrays import as_numpy
from kann.live.labels import labels_of_classes
from kann.live.scoring import outputs_of, step_weights
from kann.live.trials import Group
from kann.typing import Array, Float

IGNORED = -100
"""The label of a step that does not count, as torch's cross-entropy has it: such as the last one of a text."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Reference:
    """What the untouched network gives for a group of sequences, and what it should give."""

    logarithms: Float[Tensor, "b t o"]
    """Logarithms of its probabilities."""
    weights: Float[Tensor, "b t"]
    """1 for every step that counts, and 0 for padding."""
    labels: Any
    """(b, t) classes, `IGNORED` where there is none; or None."""

    @staticmethod
    def of(output: Any, group: Group, labels: Any) -> "Reference":
        """From the output of the untouched network."""
        outputs = outputs_of(output, len(group))
        shape = np.empty((*outputs.shape[:-1], 1)[: outputs.ndim])  # its width does not matter, and may be huge
        real = group.batch.real
        weights = torch.from_numpy(step_weights(shape, real)).to(outputs.device)
        wanted = None
        if labels is not None:
            starts = np.zeros(len(group), dtype=np.int64)
            if real is not None and real.starts is not None:
                starts = real.starts
            has_steps = outputs.ndim > 2
            found = labels_of_classes(labels, group.sequences, starts, steps=weights.shape[1], has_steps=has_steps)
            wanted = torch.from_numpy(found).to(outputs.device)
        return Reference(logarithms=log_probabilities(outputs), weights=weights, labels=wanted)

    def own_scores(self) -> dict[str, Float[Array, " b"]]:
        """The scores of the untouched network itself."""
        return self.scores(self.logarithms)

    def scores(self, logarithms: Float[Tensor, "b t o"]) -> dict[str, Float[Array, " b"]]:
        """By measure, the score of each sequence: the mean over its steps."""
        own, decided = self.logarithms, logarithms.argmax(-1)
        # Of a class that is impossible for both the product would be 0 · −∞.
        divergence = torch.nan_to_num(own.exp() * (own - logarithms), nan=0.0).sum(-1)
        found = {"kl": divergence, "agreement": (decided == own.argmax(-1)).double()}
        means = {name: _mean(values, self.weights) for name, values in found.items()}
        if self.labels is None:
            return means
        has_label = self.weights * (self.labels != IGNORED)
        wanted = self.labels.clamp(min=0)
        loss = -logarithms.gather(-1, wanted[..., None])[..., 0]
        labelled = {"loss": loss, "accuracy": (decided == wanted).double()}
        return means | {name: _mean(values, has_label) for name, values in labelled.items()}


def log_probabilities(outputs: Tensor) -> Float[Tensor, "b t o"]:
    """Logarithms of the probabilities of classes at each step; a single output is the logit of yes against no."""
    steps = outputs.reshape(len(outputs), 1, -1)
    if outputs.ndim > 2:
        steps = outputs.reshape(*outputs.shape[:2], -1)
    steps = steps.to(torch.promote_types(steps.dtype, torch.float32))
    if steps.shape[-1] == 1:
        steps = torch.cat([torch.zeros_like(steps), steps], dim=-1)
    return steps.log_softmax(-1)


def _mean(values: Tensor, weights: Tensor) -> Float[Array, " b"]:
    """The mean over the steps that count; 0 for a sequence without any."""
    return as_numpy((values.double() * weights).sum(1) / weights.sum(1).clamp(min=1))
