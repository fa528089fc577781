"""Whether this machine works and how fast it is: `doctor`, and a comparison of distributions."""
