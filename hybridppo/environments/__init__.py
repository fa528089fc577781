"""Environments as a sampler sees them: vectors, their autoreset modes, checks, restarts, saved states.

Here: one interface (`base.py`) over sub-environments stepped in this process (`sync.py`) and gymnasium's vector
environments (`vector.py`), made from an id or a function (`making.py`); several agents (`many_agents.py`), compiled
environments (`compiled.py`) and environments of tensors (`tensors.py`). Not here: who steps them (`runners/`), and what
their spaces mean (`spaces/`). Begin with `base.py`. Worker processes import only files that do not load torch:
environments of tensors, and files that end in `on_device.py`, do.
"""
