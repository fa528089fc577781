"""The placement that is measured: a few candidates are tried on the user's own work, and the fastest is taken.

`trials.py` tries one, `search.py` decides which are worth a trial, `auto.py` puts that before a training, and
`comparison.py` tries all of them for a table. What names choose, `auto` among them, is `named.py`.
"""
