"""Fitted operators as torch modules and ONNX files that stand in for the network they were fitted to."""

# Nothing is imported here: a module needs torch, and an ONNX file needs onnx alone.
