"""Record the hidden states of PyTorch models, and take single steps of their recurrent layers."""

try:
    from kann.recording._record import record
    from kann.recording.recurrent import RecurrentStep, readout_of, step_of
    from kann.recording.untrained import untrained_twin
except ImportError as error:
    raise ImportError(f"recording needs torch ({error}): pip install 'kann[torch]'") from error

__all__ = ["RecurrentStep", "readout_of", "record", "step_of", "untrained_twin"]
