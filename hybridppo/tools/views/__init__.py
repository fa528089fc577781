"""Shows a run: curves, reports, a live view, the agent at play."""
