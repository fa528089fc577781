"""Trainings in several processes and on several machines: learners, remote samplers and environments, a server.

Agents, samplers and placements do not know about them.
"""
