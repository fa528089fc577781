"""Deep deterministic policy gradient, and TD3: off-policy agents that learn from a replay buffer.

`ddpg.py` is the agent with its networks and losses, and `config.py` has the hyperparameters of both. TD3 is the same
agent with another configuration. The replay buffer is in `hybridppo/rollouts/replay.py`. Begin with `ddpg.py`.
"""
