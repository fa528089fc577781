"""Proximal policy optimization.

The whole update is in four files: `ppo.py` is the agent, which prepares a batch from a rollout; `batch.py` cuts the
batch into minibatches; `backend.py` computes gradients by autograd; `loss.py` has the loss. The loop is that of every
agent, `agents/common/loop.py`. Faster gradients of the library's own loss are in `numpy_backend.py` and
`compiled_backend.py`; `backends.py` chooses. Further files: `config.py` has the settings, `normalizing.py` the running
moments, `sequences.py` batches for recurrent networks, and `pool.py` older rollouts. Begin with `ppo.py`.
"""
