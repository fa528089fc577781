"""Everything that one training run leaves on disk.

The run directory (`directory.py`), its checkpoints and agents' files (`checkpoints.py`), the rows of a replay buffer
(`replay_rows.py`), lines of metrics and locks (`files.py`). Files are written whole or not at all. Begin with
`directory.py`.
"""
