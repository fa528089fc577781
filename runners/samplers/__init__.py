"""Samplers that work in this process: environments, an actor, and the rollouts that they make.

`base.py` is what all samplers share, `in_process.py` steps a vector of environments, `episodes.py` one environment
episode by episode; `stepping.py` is the inner loop. Those that work in other processes are in `workers/`. Begin with
`base.py`.
"""
