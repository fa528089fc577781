"""Proximal policy optimization.

The whole update reads from top to bottom in four files: `ppo.py` is the agent, which prepares a batch of a rollout;
`batch.py` cuts it into minibatches; `loop.py` goes over them, with the gradient by autograd; `loss.py` has the loss.
Faster gradients, for the library's own loss, are `numpy_backend.py` and `compiled_backend.py`. Begin with `ppo.py`.
"""
