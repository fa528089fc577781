"""The loop that drives sampler and agent, samplers, and the callbacks of a training.

Begin with the loop (`runner.py`). What an agent learns from, and when it is sampled, is in `training_data.py`, and the
choice of the sampler in `assembly.py`. A sampler (`sampler.py`) fills rollouts by the inner loop in `filling.py`;
`workers.py` does so in processes (`worker.py`, started by `processes.py`), and `device_sampler.py` on an accelerator.
Callbacks are checkpoints (`checkpointing.py`), evaluations (`evaluation_callback.py`), traces (`profiling.py`).
"""
