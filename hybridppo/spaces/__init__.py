"""Everything that follows from a gymnasium space: the row of an observation, and the distribution of actions.

Here: the rows that observations become, images, masks, action distributions, spaces as JSON. Not here: environments
(`environments/`), and the networks that take rows (`networks/`). Each kind of space is a file (`box.py`, `choices.py`,
...), listed in `registry.py`. Begin with `base.py`, which defines a kind, and `observations.py`. Only `on_tensors.py`
loads torch when it is imported, so worker processes can import the rest.
"""
