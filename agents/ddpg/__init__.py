"""Deep deterministic policy gradient, and TD3: off-policy agents that learn from a replay buffer.

`ddpg.py` is the agent with its losses, `config.py` has the hyperparameters of both, `networks.py` their networks, and
`by_autograd.py` computes gradients. TD3 is the same agent with another configuration. The replay buffer is in
`hybridppo/rollouts/replay.py`, and what fills it is in `runners/training_data.py`. Begin with `ddpg.py`.
"""
