"""Trains many runs: suites of environments, searches for settings, and runs side by side; and has tuned settings."""
