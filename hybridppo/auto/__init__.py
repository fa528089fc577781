"""Placement `auto`: tries a few candidates on the user's own work, and chooses the fastest.

`auto.py` is called by a training. `search.py` decides which candidates are worth a trial, and `trials.py` tries one.
`comparison.py` tries all candidates for a table. `named.py` turns names of placements into placements.
"""
