"""A Lightning callback that logs the figures of `kann.Monitor` after each validation epoch."""

from typing import Any

from torch import Tensor

from kann.live._monitor import Monitor

try:
    from lightning.pytorch import Callback, LightningModule, Trainer  # pyright: ignore[reportMissingImports]
except ImportError as error:
    # The same project under its older name. A trainer of either package calls the hooks of both.
    try:
        from pytorch_lightning import Callback, LightningModule, Trainer  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ImportError(
            f"this callback needs lightning or pytorch_lightning ({error}): pip install 'kann[integrations]'"
        ) from error


class KoopmanCallback(Callback):
    """Log the figures of `kann.Monitor` (``koopman/slow``, …) after each validation epoch.

    ``trainer = Trainer(callbacks=[KoopmanCallback(probe, layer="rnn")])``, of ``lightning`` or ``pytorch_lightning``.
    The figures go to the trainer's logger.
    The history is ``callback.monitor.history``. On several GPUs every rank runs the probe on its own replica.

    Parameters
    ----------
    probe, options
        As in `kann.Monitor`; ``every`` counts validation epochs and is 1 by default.
    loss
        The name of a logged metric to store with the figures, such as ``"train_loss"``.
    """

    def __init__(self, probe: Any, *, loss: str | None = None, **options: Any):
        self._probe, self._loss = probe, loss
        self._options: dict[str, Any] = {"every": 1} | options
        self.monitor: Monitor | None = None
        """The monitor; None before the first validation."""

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Update and log."""
        if trainer.sanity_checking:  # before training, with the step number of the first real validation
            return
        if self.monitor is None:
            self.monitor = Monitor(pl_module, self._probe, **self._options)
        loss: Tensor | None = trainer.callback_metrics.get(self._loss) if self._loss is not None else None
        pl_module.log_dict(self.monitor.update(step=trainer.global_step, loss=loss))
