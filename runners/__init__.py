"""The loops that drive samplers and agents.

Here: the loop (`runner.py`), the loop with a replay buffer (`off_policy.py`), how a loop gets its rollouts
(`turns.py`), the choice of sampler and loop (`assembly.py`), evaluation and profiling. Samplers are in `samplers/`,
those with worker processes in `workers/`, and evaluations during a training in `evaluators/`. Begin with `runner.py`.
"""
