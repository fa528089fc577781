"""What drives: the loops, and what they need around them.

Here: the loop by turns (`runner.py`) and with overlap (`overlapping.py`), which sampler and loop a placement calls for
(`assembly.py`), evaluation, profiling. Samplers are in `samplers/`, those in worker processes in `workers/`. Begin with
`runner.py`.
"""
