"""Exports a policy to a file that works without this library: ONNX, a torch program, or NumPy arrays."""
