"""Record the hidden states of PyTorch models, and take single steps of their recurrent layers."""

try:
    from kann.recording._record import (
        AxisOptions,
        LayerOptions,
        record,
        record_grouped_moments,
        record_layer_moments,
        record_layers,
        record_moments,
    )
    from kann.recording._step_by_step import StepByStep, step_by_step
    from kann.recording.recurrent import RecurrentStep, readout_of, step_of
    from kann.recording.sequence_data import RunOptions
    from kann.recording.untrained import untrained_twin
except ImportError as error:
    raise ImportError(f"recording needs torch ({error}): pip install 'kann[torch]'") from error

__all__ = [
    "AxisOptions",
    "LayerOptions",
    "RecurrentStep",
    "RunOptions",
    "StepByStep",
    "readout_of",
    "record",
    "record_grouped_moments",
    "record_layer_moments",
    "record_layers",
    "record_moments",
    "step_by_step",
    "step_of",
    "untrained_twin",
]
