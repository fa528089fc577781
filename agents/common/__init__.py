"""What agents share.

`checks.py` checks their configurations, `memory.py` says what needs memory, `acting.py` looks at what `act` is given,
and `saving.py` writes one to a file. Not here: anything that one agent alone needs, which is in its own folder.
"""
