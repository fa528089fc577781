"""What the library needs of the machine: devices, BLAS, threads, signals, seeds."""
