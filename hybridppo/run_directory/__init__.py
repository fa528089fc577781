"""Everything that one training run leaves on disk.

The run directory (`directory.py`), its checkpoints, its lines of metrics, and files that are written whole or not at
all. `Runner.save` decides what a checkpoint contains. Begin with `directory.py`.
"""
