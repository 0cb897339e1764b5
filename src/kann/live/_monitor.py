"""Watch a network's operator while it trains."""

import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn

from kann.analysis._trust import trust
from kann.analysis.distances import carried_by_modes
from kann.backends.arrays import as_numpy
from kann.checks import require_flag, require_instance, require_whole_number, short_repr
from kann.data.moments import Moments
from kann.errors import KannError, KannWarning, NotFiniteError
from kann.fitting._fit import fit
from kann.fitting.balance import Balance
from kann.fitting.folds import FEWEST_FOLDS
from kann.live._balance import balance as balance_network
from kann.live.history import FIGURES, LEADING, Checkpoint, History
from kann.recording._record import record_grouped_moments
from kann.recording.layer_selection import require_module, select

PREFIX = "koopman/"
"""Prefix of the names of all figures; loggers group by it."""

EVERY = 250
"""Default number of calls of `Monitor.update`, one per step of training, from one measurement to the next: the
interval of checkpoints in the paper's experiments. On the copy task it then takes below 3 % of the time."""

FLAT_BELOW = 100.0
"""States are constant if their variance, as a fraction of their energy, is below this multiple of rounding."""


class Monitor:
    """Watch the operator of a network during training: its memories, how long they last, and when they form.

    >>> import torch
    >>> model = nn.GRU(3, 8, batch_first=True)
    >>> monitor = Monitor(model, torch.randn(20, 12, 3), every=2)
    >>> for step in range(4):
    ...     found = monitor.update(step=step, loss=1.0)  # after each step of training
    >>> monitor.history.steps.tolist(), sorted(monitor.latest)[:2]
    ([0, 2], ['koopman/coordinates', 'koopman/copying'])

    Training goes on as it would have without: random numbers, modes, buffers, gradients and the optimizer are as they
    were after each update. Of a model in `DistributedDataParallel` every rank may update its own monitor, or one alone:
    no data are exchanged. A compiled model runs as it was written.

    Parameters
    ----------
    model
        Any torch module that `kann.record` takes.
    probe
        Some dozen sequences that are run at each update, as ``data`` of `kann.record`. Always the same ones: keep them
        out of the training data, and do not shuffle them.
    every
        Number of calls of `update` from one measurement to the next, beginning with the first. Pass 1 if you call it
        once an epoch.
    layer, state
        As in `kann.record`. A single layer.
    inputs
        Whether to fit what the layer reads separately (a driven operator). By default if it is a recurrent one.
    rank
        As in `kann.fit`.
    groups
        Into how many groups sequences are put; each is held out once. At least 3.
    balance
        True, or options of `kann.balance`, to find the balanced coordinates of the probe at each update: how many the
        outputs depend on, and their singular values. It takes a backward pass; needs outputs with gradients.
    history
        The history of an earlier monitor of the same training, to be continued.
    recording
        Any other options of `kann.record`, such as ``lengths``, ``forward`` or ``batch_size``.
    """

    def __init__(
        self,
        model: nn.Module,
        probe: Any,
        *,
        every: int = EVERY,
        layer: Any = None,
        state: str = "h",
        inputs: bool | None = None,
        rank: Any = 0.99,
        groups: int = 5,
        balance: Mapping[str, Any] | bool = False,
        history: History | None = None,
        **recording: Any,
    ):
        require_module(model)
        if isinstance(probe, Iterator):
            raise KannError("probe is an iterator, which is empty after the first update; pass a list of its batches")
        self._every = require_whole_number(every, "every", too_small="never updates")
        groups = require_whole_number(groups, "groups", least=FEWEST_FOLDS, too_small="leaves too little to hold out")
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            model = model.module  # to run the wrapper would make other ranks wait
        self._model, self._probe, self._rank = model, probe, rank
        targets, single = select(self._model, layer)
        if not single:
            names = ", ".join(target.name for target in targets)
            raise KannError(
                f"layer={short_repr(layer)} names several layers ({names}); pass one, and make several monitors"
            )
        if inputs is None:
            inputs = isinstance(targets[0].module, nn.RNNBase | nn.RNNCellBase)
        require_flag(inputs, "inputs")
        self._driven = bool(inputs)
        options = {"layer": layer, "state": state, "inputs": self._driven, "batch_size": 256} | recording
        self._options = options | {"groups": groups, "progress": False}
        self._balancing = None
        if not isinstance(balance, bool | Mapping):
            raise KannError(
                f"balance={short_repr(balance)} is neither True nor False nor options; pass those of kann.balance as a "
                "dictionary"
            )
        if balance is not False:
            run = {"layer": layer, "progress": False} | recording  # all that the layer carries, unlike the operator
            self._balancing = run | ({} if balance is True else dict(balance))
        history = History() if history is None else history
        require_instance(history, History, "history")
        self.history = history
        """All updates that worked."""
        self.latest: dict[str, float] = {}
        """Result of the last update that measured."""
        self.balance: Balance | None = None
        """The balanced coordinates at the last update that found them."""
        self._calls = 0

    def update(self, step: int | None = None, *, loss: Any = None) -> dict[str, float]:
        """Record the probe, fit, and return the figures by name; an empty dict if it is not yet time again.

        ``step`` is the step of training, by default the number of calls so far. ``loss`` is kept in the history, to be
        shown beside the figures. Pass the dict to a logger as it is:

        ``koopman/slow``
            |λ| of the slowest mode that can be trusted; NaN if there is none. At 1 it is kept for ever.
        ``koopman/horizon``
            Steps until a tenth of that mode is left; infinite from |λ| = 1 on.
        ``koopman/radius``
            The largest |λ| of all modes, trusted or not.
        ``koopman/error``
            Error of predicting one step on sequences that were not fitted, as a fraction of the variance.
        ``koopman/copying``
            The same for copying the previous state. A useful operator is below it.
        ``koopman/trusted``
            How many modes can be trusted.
        ``koopman/rank``
            The number of directions that the states occupy, at most ``rank``.
        ``koopman/coordinates``
            How many balanced coordinates the outputs depend on; NaN without a gap in their singular values, which are
            ``history.values``, and without ``balance=``.

        If the network's states are NaN, infinite or constant, all of them are NaN, and training goes on.
        """
        due = self._calls % self._every == 0
        if step is None:  # after a history that went further, what follows it
            step = max(self._calls, int(self.history.steps[-1]) + 1) if len(self.history) else self._calls
        step = require_whole_number(step, "step", least=0)
        if due:
            self.history.require_later(step)
            checkpoint, directions = self._checkpoint(step, _loss_value(loss))
            self.history.add(checkpoint, directions)
            self.latest = {f"{PREFIX}{name}": checkpoint.figures[name] for name in FIGURES}
        self._calls += 1  # not before: an update that failed can be made again
        return dict(self.latest) if due else {}

    def _checkpoint(self, step: int, loss: float) -> tuple[Checkpoint, Any]:
        """Measure the network as it is now; return also the directions of its modes."""
        unknown = Checkpoint.unknown(step=step, loss=loss)
        with warnings.catch_warnings():
            if len(self.history):
                warnings.simplefilter("ignore", KannWarning)  # the first update has said it
            try:
                recorded = record_grouped_moments(self._model, self._probe, **self._options)
                groups = [part.numpy() for part in recorded if part.pairs]
            except NotFiniteError:
                return unknown, None
            if len(groups) < FEWEST_FOLDS:
                sequences = sum(part.sequences for part in groups)
                raise KannError(
                    f"the probe holds {sequences} sequences of two steps or more, and {FEWEST_FOLDS} is the least of "
                    "which one can be held out; pass some dozen"
                )
            total = sum(groups[1:], start=groups[0])
            if not _varies(total):
                return unknown, None
            koopman = fit(total, rank=self._rank, driven=self._driven)
            judged = trust(koopman, groups)
            balance = self._balanced()
        slowest = [koopman.modes[number] for number in judged.trusted[:1]]  # modes are in the order of |λ|
        figures = {
            "slow": slowest[0].modulus if slowest else math.nan,
            "radius": koopman.modes[0].modulus,
            "horizon": slowest[0].horizon() if slowest else math.nan,
            "error": float(judged.error[0]),
            "copying": float(judged.copying_error[0]),
            "trusted": float(len(judged.trusted)),
            "rank": float(koopman.rank),
            "coordinates": math.nan,
        }
        found: Any = {
            "carried": carried_by_modes(koopman),
            "trusted": np.array([mode.trusted for mode in judged.modes]),
        }
        if balance is not None:
            figures["coordinates"] = math.nan if balance.count is None else float(balance.count)
            found["values"] = balance.values[:LEADING]
        numbers, eigenvalues, directions = self.history.follow(koopman)
        modes = {"numbers": numbers, "eigenvalues": eigenvalues, **found}
        return Checkpoint(step=step, loss=loss, figures=figures, **modes), directions

    def _balanced(self) -> Balance | None:
        """Return the balanced coordinates of the probe; None if they were not asked for, or adjoints are 0 or NaN."""
        if self._balancing is None:
            return None
        try:
            self.balance = balance_network(self._model, self._probe, **self._balancing)
        except KannError:
            if not len(self.history):  # options that do not fit the model, not a training that went wrong
                raise
            return None
        return self.balance


def _loss_value(loss: Any) -> float:
    """Return a loss as a number, which may be NaN or infinite; NaN if none was given."""
    if loss is None:
        return math.nan
    if isinstance(loss, Tensor):
        loss = loss.detach()
    try:
        return float(loss)
    except (TypeError, ValueError, RuntimeError) as error:
        raise KannError(f"loss={short_repr(loss)} is no number; pass one, such as loss.item()") from error


def _varies(moments: Moments) -> bool:
    """Return True if states differ from each other by more than rounding."""
    energy = float(np.trace(as_numpy(moments.hh)))
    mean = as_numpy(moments.sum_h) / moments.states
    variance = energy - moments.states * float(mean @ mean)
    return variance > energy * max(moments.rounding, np.finfo(float).eps) * FLAT_BELOW
