"""Fitted operators as torch modules and ONNX files that stand in for the network they were fitted to."""

try:
    from kann.stand_ins.module import StandIn, stand_in
except ImportError as error:
    raise ImportError(f"stand-ins need torch ({error}): pip install 'kann[torch]'") from error
from kann.stand_ins.onnx_file import save_onnx

__all__ = ["StandIn", "save_onnx", "stand_in"]
