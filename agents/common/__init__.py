"""What agents share: the checks of their configurations (`checks.py`), and errors of memory (`memory.py`).

Not here: anything that one agent alone needs, which is in its own folder.
"""
