"""Exports a policy to a file that needs no library: ONNX, or NumPy arrays."""
