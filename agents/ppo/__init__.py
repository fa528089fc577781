"""Proximal policy optimization.

The whole update reads from top to bottom in four files: `ppo.py` is the agent, which prepares a batch of a rollout;
`batch.py` cuts it into minibatches; `backend.py` computes gradients by autograd; `loss.py` has the loss. The loop is
that of every agent, `agents/common/loop.py`. Faster gradients of the library's own loss are in `numpy_backend.py` and
`compiled_backend.py`. Begin with `ppo.py`.
"""
