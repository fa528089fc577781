"""The loops that drive samplers and agents.

Begin with the loop (`runner.py`), or the loop with a replay buffer (`off_policy.py`). How a loop gets its rollouts is
in `turns.py`, the choice of sampler and loop in `assembly.py`. A sampler (`sampler.py`) fills rollouts by the inner
loop in `filling.py`; `workers.py` does so in worker processes (`worker.py`, started by `processes.py`), and
`device_sampler.py` on an accelerator. Evaluations during a training are in `evaluators/`.
"""
