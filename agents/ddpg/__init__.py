"""Deep deterministic policy gradient, and TD3: off-policy agents that learn from a replay buffer.

`ddpg.py` is the agent, `config.py` the settings of both, `backend.py` the gradients; `compiled_backend.py`
computes the same as machine code. TD3 is the same agent under another configuration. Not here: the
replay buffer (`hybridppo/rollouts/replay.py`) and the loop that fills it (`runners/off_policy.py`). Begin with
`ddpg.py`.
"""
