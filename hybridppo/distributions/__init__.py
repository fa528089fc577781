"""Probability distributions of actions.

Here: a distribution is a class in a file, with its draw, its log-probability and its entropy. `of_space.py` finds the
distribution of an action space. Not here: the networks whose outputs are the parameters of a distribution
(`networks/`), and observations (`spaces/`). Begin with `base.py`. Worker processes import it without torch.
"""
