"""Proximal policy optimization.

`ppo.py` is the agent, `config.py` its settings, `losses.py` the terms of its loss, and `optimizer_steps.py` puts them
together: a step of the optimizer on a minibatch, by autograd. `numpy_steps.py` and `captured_steps.py` do the same
faster. Begin with `ppo.py`.
"""
