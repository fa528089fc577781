"""Reports a training to people and programs: progress, callbacks, loggers.

An error in progress or loggers never ends a training; an error in a callback does. Begin with `progress.py` and
`callbacks.py`.
"""
