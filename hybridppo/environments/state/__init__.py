"""What an environment is in the middle of, as plain data: taken from its attributes, and put back into a fresh one.

`describing.py` walks an environment and writes down what it holds; `restoring.py` puts that into an environment made
and reset in the same way; `nodes.py` is the form in between. Begin with `describing.py`.
"""
