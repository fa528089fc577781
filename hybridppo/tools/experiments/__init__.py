"""Many runs: suites of environments, searches for settings, runs side by side."""
