"""A policy to take away: an ONNX file or NumPy arrays, without the library."""
