"""The command line.

A command is a frozen dataclass: its fields are its flags, and `run` does the work. `main.py` lists the commands and
turns errors into one message. `train.py` has `train` and `resume`, `tools.py` all others. Begin with `main.py`.
"""
