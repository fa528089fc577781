"""Everything that one training run leaves on disk.

The run directory (`directory.py`) with its checkpoints, lines of metrics, rows of a replay buffer and lock; an agent in
one file. Files are written whole or not at all. `Runner.save` decides what a
checkpoint contains. Begin with `directory.py`.
"""
