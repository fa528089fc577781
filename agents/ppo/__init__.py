"""Proximal policy optimization.

The whole update is in four files: `ppo.py` is the agent, which prepares a batch from a rollout; `batch.py` cuts the
batch into minibatches; `by_autograd.py` computes gradients; `loss.py` has the loss. The loop is that of every agent,
`agents/agent.py`. `by_numpy.py` and `by_numba.py` compute the same gradients faster. `config.py`
has the hyperparameters. Begin with `ppo.py`.
"""
