"""The state of an environment as plain data: read from its attributes, and restored in a fresh environment.

`describing.py` walks an environment and describes its attributes. `restoring.py` restores a description in an
environment that was made and reset in the same way. `nodes.py` defines descriptions. `keeping.py` does both for all
environments of a process, in bounded time, and `sharing.py` has their common part. Begin with `describing.py`.
"""
