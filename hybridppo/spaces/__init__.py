"""What follows from a gymnasium space: what an observation is made of, and how an action is drawn.

Here: the rows that observations become, images, masks, action distributions, spaces as JSON. Not here: environments
(`environments/`), and the networks that look at a row (`networks/`). Each kind of space is a file
(`box.py`, `choices.py`, ...), listed in `registry.py`. Begin with `base.py`, which says what a kind is, and
`observations.py`. Everything is free of torch when imported, for worker processes.
"""
