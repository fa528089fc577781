"""What an environment is in the middle of, as plain data: taken from its attributes, and put back into a fresh one.

`describing.py` walks an environment and writes down what it holds; `restoring.py` puts that into an environment made
and reset in the same way; `nodes.py` is the form in between. `keeping.py` does both for all environments of a process,
in bounded time, and `sharing.py` is what they have in common meanwhile. Begin with `describing.py`.
"""
