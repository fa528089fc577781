"""Placement `auto`: tries a few candidates on the user's own work, and chooses the fastest.

`auto.py` is called by a training, and makes placements from their names. `search.py` decides which candidates are worth
a trial, and `trials.py` tries one.
"""
