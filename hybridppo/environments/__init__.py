"""Environments as a sampler sees them: vectors, their autoreset modes, checks, restarts, saved states.

Here: one interface (`base.py`) over sub-environments stepped in this process (`sync.py`) and gymnasium's vector
environments (`vector.py`), made from an id or a function (`making.py`). Not here: who steps them (`runners/`), and what
their spaces mean (`spaces/`). Begin with `base.py`. Everything is free of torch, for worker processes.
"""
