"""The machine: devices, BLAS, threads, signals; also seeds, checks of numbers, and numbers as text."""
