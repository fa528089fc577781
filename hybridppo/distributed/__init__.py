"""Trainings in several processes and on several machines: learners, remote samplers and environments, a server.

A training has a team (`local.py` for one process), and each way to distribute has its own: `team.py` has the learners
of `MultiLearner`, `central_server.py` and `central_learner.py` those of `Central`, and `over_ray.py` workers in a Ray
cluster. Agents, samplers and placements do not know about them. Begin with `local.py` and `teams.py`.
"""
