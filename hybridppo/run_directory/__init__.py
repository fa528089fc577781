"""Everything that one training run leaves on disk.

Here: the run directory (`directory.py`), its checkpoints, its lines of metrics, and files that are whole or not there.
Not here: what a checkpoint holds, which is its owners' to say (`Runner.save`). Begin with `directory.py`.
"""
