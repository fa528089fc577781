"""Acceptance: what this library promises of a GPU, tried on the machine at hand, case by case.

    $ python -m hybridppo.tools.diagnosis.acceptance --output acceptance

Here: what a case is and what it finds (`case.py`), the cases (`results.py`, `behaviour.py`, `kinds.py`, `tensors.py`,
`on_device.py`, listed in `catalogue.py`), running them one by one, each in a process of its own, and going on where a
run was broken off (`running.py`), and the report (`report.py`). A case that the machine cannot run says why. Not here:
what needs a checkout (the tests, the measurements), which `scripts/gpu_acceptance.py` adds. Begin with `catalogue.py`.
"""
