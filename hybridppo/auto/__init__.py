"""Placement `auto`: it tries a few candidates on the user's own work, and takes the fastest.

`trials.py` tries one candidate, `search.py` decides which are worth a trial, `auto.py` is what a training calls, and
`comparison.py` tries all candidates for a table. `named.py` turns names of placements into placements.
"""
