"""What agents share.

`checks.py` checks their configurations, `schedules.py` has the numbers that change in the course of a training,
`memory.py` says what needs memory, `acting.py` looks at what `act` is given, and `saving.py` writes one to a file. Not
here: anything that one agent alone needs, which is in its own folder.
"""
