"""Checks an environment before training: steps it, and reports faults with their remedies."""
