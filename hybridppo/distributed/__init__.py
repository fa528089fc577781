"""Trainings in several processes and on several machines: learners, remote samplers and environments, a server.

A training has a strategy: `Strategy` (`strategy.py`) for one process, and one for each way to distribute: learners
(`learners.py`), and workers or learners in a Ray cluster (`ray_strategy.py`). Agents, samplers and placements do not
know about them.
"""
