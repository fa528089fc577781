"""Environments as a sampler sees them: vectors, their autoreset modes, checks, restarts, saved states.

Here: one interface (`base.py`) over copies that this process steps (`sub_environments.py`), of one agent or several
(`multi_agent.py`), and gymnasium's vector environments (`vector.py`), made from an id or a function (`making.py`);
compiled environments (`compiled.py`) and batched environments (`tensors.py`). Not here: who steps them (`runners/`),
and what their spaces mean (`spaces/`). Begin with `base.py`. Worker processes import only files that do not load torch:
batched environments, and files that end in `on_device.py`, do.
"""
