"""Trainings in several processes and on several machines: learners, remote samplers and environments, a server.

A training has a strategy: `Strategy` (`strategy.py`) for one process, and one for each way to distribute: learners
(`learners.py`), workers in a Ray cluster (`over_ray.py`), and a parameter server (`central_server.py`). Agents,
samplers and placements do not know about them.
"""
