"""What agents share.

`agent.py` is the base of PPO and DDPG, `loop.py` the optimisation loop, and `recorded_step.py` records its steps.
`checks.py` checks configurations, `schedules.py` has the numbers that change in the course of a training, `memory.py`
says what needs memory, `acting.py` checks the arguments of `act`, and `saving.py` writes an agent to a file.
"""
