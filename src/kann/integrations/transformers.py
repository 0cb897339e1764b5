"""A callback for transformers' ``Trainer`` that logs the figures of `kann.Monitor` at each evaluation."""

from typing import Any

from kann.live._monitor import Monitor

try:
    from transformers import TrainerCallback  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise ImportError(f"this callback needs transformers ({error}): pip install 'kann[integrations]'") from error


class KoopmanCallback(TrainerCallback):  # pyright: ignore[reportGeneralTypeIssues]
    """Add the figures of `kann.Monitor` (``koopman/slow``, …) to the log at each evaluation.

    ``callback = KoopmanCallback(probe, layer="model.layers.3")``, ``Trainer(..., callbacks=[callback])``, and then
    ``callback.attach(trainer)``, so that the figures go to all loggers of the trainer. Without it they are kept in
    ``callback.monitor.history`` and in ``state.log_history`` only.

    Parameters
    ----------
    probe, options
        As in `kann.Monitor`; ``every`` counts evaluations and is 1 by default.
    """

    def __init__(self, probe: Any, **options: Any):
        self._probe = probe
        self._options: dict[str, Any] = {"every": 1} | options
        self._trainer: Any = None
        self.monitor: Monitor | None = None
        """The monitor; None before the first evaluation."""

    def attach(self, trainer: Any) -> None:
        """Let the trainer log the figures."""
        self._trainer = trainer

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Update and log."""
        if self.monitor is None:
            self.monitor = Monitor(kwargs["model"], self._probe, **self._options)
        loss = (kwargs.get("metrics") or {}).get("eval_loss")
        found = self.monitor.update(step=state.global_step, loss=loss)
        if self._trainer is not None:
            self._trainer.log(found)
        else:
            state.log_history.append({"step": state.global_step, **found})
