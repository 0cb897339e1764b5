"""How much each word pushes the logit, by gradients: Captum's gradient × input and integrated gradients."""

import contextlib
import importlib.util
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from kann.backends.arrays import as_numpy
from kann.errors import KannWarning
from kann.typing import Array, Float, Int
from kann.zoo.sentiment_network import SentimentNetwork

STEPS = 50
"""Steps from the embedding 0, that of padding, to the words' own: Captum's default."""

AT_A_TIME = 8
"""Of these steps so many are taken together: more would need gigabytes for the longest reviews."""

MISSING = (
    "Captum is not installed, so that deleted words are not compared with integrated gradients and gradient × input; "
    "pip install captum, or 'kann[bench]'"
)
"""What is said if Captum is not there."""


def captum_is_installed() -> bool:
    """Whether Captum can be imported."""
    return importlib.util.find_spec("captum") is not None


def captum_attributions(network: SentimentNetwork) -> dict[str, Callable[..., Float[Array, "b t"]]]:
    """Captum's two ways to say how much each word pushes the logit up; none if Captum is not installed."""
    if not captum_is_installed():
        warnings.warn(MISSING, KannWarning, stacklevel=2)
        return {}
    from captum.attr import InputXGradient, IntegratedGradients  # pyright: ignore[reportMissingImports]

    gradient, integrated = InputXGradient(_logits(network)), IntegratedGradients(_logits(network))

    def by_gradient(ids: Int[Tensor, "b t"], lengths: Int[Tensor, " b"]) -> Float[Array, "b t"]:
        with _differentiable(network):
            found = gradient.attribute(_embedded(network, ids), additional_forward_args=lengths)
        return as_numpy(found.detach().sum(dim=-1))

    def by_integration(ids: Int[Tensor, "b t"], lengths: Int[Tensor, " b"]) -> Float[Array, "b t"]:
        with _differentiable(network):
            found = integrated.attribute(
                _embedded(network, ids),
                additional_forward_args=lengths,
                n_steps=STEPS,
                internal_batch_size=AT_A_TIME * len(ids),
            )
        return as_numpy(found.detach().sum(dim=-1))

    return {"gradient": by_gradient, "integrated": by_integration}


def _embedded(network: SentimentNetwork, ids: Int[Tensor, "b t"]) -> Float[Tensor, "b t p"]:
    return network.embedding(ids).detach().requires_grad_()


def _logits(network: SentimentNetwork) -> Callable[[Tensor, Tensor], Tensor]:
    """The network from word embeddings on."""

    def logits(embedded: Float[Tensor, "b t p"], lengths: Int[Tensor, " b"]) -> Float[Tensor, " b"]:
        h = network.recurrent(embedded)[0]
        return network.readout(h[torch.arange(len(h), device=h.device), lengths - 1]).squeeze(-1)

    return logits


@contextlib.contextmanager
def _differentiable(network: SentimentNetwork) -> Iterator[None]:
    """Gradients on, and the recurrent layer in training mode: cuDNN differentiates in no other. It has no dropout."""
    before = network.recurrent.training
    network.recurrent.train()
    try:
        with torch.enable_grad():
            yield
    finally:
        network.recurrent.train(before)
