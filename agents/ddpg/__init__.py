"""Deep deterministic policy gradient, and TD3: off-policy agents that learn from a replay buffer.

`ddpg.py` is the agent with its losses, `config.py` has the settings of both, and `networks.py` their networks.
`backend.py` computes gradients by autograd; `compiled_backend.py` compiles the optimizer step (`compiled_loops.py`).
TD3 is the same agent with another configuration. The replay buffer is in `hybridppo/rollouts/replay.py`, and the loop
that fills it in `runners/off_policy.py`. Begin with `ddpg.py`.
"""
