"""The command line: a file for each command.

A command is a frozen dataclass whose fields are its flags and whose `run` returns an exit code; `main.py` lists them,
and turns errors into one message. Not here: what the commands do, which is the library's. Begin with `main.py`.
"""
