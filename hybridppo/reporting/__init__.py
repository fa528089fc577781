"""Reports a training to people and programs: progress, callbacks, trackers, advice.

An error in progress, trackers or loggers never ends a training; an error in a callback does. Begin with `progress.py`
and `callbacks.py`.
"""
