"""Everything that follows from a gymnasium space: the row of an observation, its checks, masks, and spaces as JSON.

Here: the rows that observations become, images, masks. Not here: action distributions (`distributions/`), environments
(`environments/`), and the networks that take rows (`networks/`). Begin with `kinds.py`, which has a class for each kind
of space, and `observations.py`. Only `on_tensors.py` loads torch when it is imported, so worker processes can import
the rest.
"""
