"""Placement `auto`: tries a few candidates on the user's own work, and chooses the fastest.

`auto.py` is called by a training, makes placements from their names, and decides which candidates are worth a trial;
`trials.py` tries one.
"""
