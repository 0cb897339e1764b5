"""The same network before training, as a null model: what its architecture alone does with the data."""

import copy

import torch
from torch import nn

from kann.checks import require_whole_number
from kann.errors import KannError
from kann.recording.layer_selection import require_module

LARGEST_SEED = 2**63 - 1
"""torch keeps seeds in 64 bits."""


def untrained_twin(model: nn.Module, *, seed: int = 0) -> nn.Module:
    """Return a copy of a model whose parameters are drawn anew, as before training; the model itself stays as it is.

    >>> model = nn.Linear(3, 4)
    >>> _ = nn.init.ones_(model.weight)
    >>> twin = untrained_twin(model)
    >>> bool((model.weight == 1).all()), bool((twin.weight < 1).all())
    (True, True)

    Every module draws its own parameters with its ``reset_parameters``, which also resets running means. Parameters of
    a module that has no such method, as of classes written by hand, are drawn from a normal distribution with the mean
    and the standard deviation that they have: of the trained network, since its initial distribution is unknown. If
    you know how yours begins, make a new one instead. Frozen parameters are drawn anew too. Random numbers of torch are
    as before afterwards.

    Parameters
    ----------
    model
        Any torch module that can be copied.
    seed
        Of the random numbers.
    """
    require_module(model)
    seed = require_whole_number(seed, "seed", least=0, too_small="is negative")
    if seed > LARGEST_SEED:
        raise KannError(f"seed={seed} is too large for torch; pass seed<={LARGEST_SEED}")
    twin = copy.deepcopy(model)
    devices = sorted({parameter.device.index for parameter in twin.parameters() if parameter.is_cuda})
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        torch.manual_seed(seed)
        for module in reversed(list(twin.modules())):  # as they were made: a module after those inside it
            _draw_anew(module)
    return twin


def _draw_anew(module: nn.Module) -> None:
    """Draw the parameters that a module holds itself; those of modules inside it are theirs to draw."""
    # Attention and transformers of torch keep theirs private.
    reset = getattr(module, "reset_parameters", getattr(module, "_reset_parameters", None))
    if callable(reset):
        reset()
        return
    for parameter in module.parameters(recurse=False):
        if parameter.is_floating_point() and parameter.numel():
            spread = float(parameter.std()) if parameter.numel() > 1 else 0.0
            parameter.normal_(float(parameter.mean()), spread)
