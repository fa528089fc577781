"""The machine: devices, BLAS, threads, signals, seeds."""
