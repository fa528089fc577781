"""Deep deterministic policy gradient, and TD3: off-policy agents that learn from a replay buffer.

`ddpg.py` is the agent with its losses, `config.py` the settings of both, and `backend.py` computes gradients;
`compiled_backend.py` is compiled. TD3 is the same agent under another configuration. The replay buffer is
`hybridppo/rollouts/replay.py`, and the loop that fills it `runners/off_policy.py`. Begin with `ddpg.py`.
"""
