"""The loops that drive samplers and agents.

Here: the loop (`runner.py`) and how it gets rollouts (`turns.py`), the choice of sampler and loop (`assembly.py`),
evaluation, profiling. Samplers are in `samplers/`, those in worker processes in `workers/`. Begin with
`runner.py`.
"""
