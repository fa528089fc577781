"""Code that Numba compiles: environments, whose functions Python can run as well, and updates of perceptrons.

    from hybridppo import compiled

    @compiled.environment(...)                  # the guide is docs/compiled.md
    class Catch: ...

`definition.py` shows how to write an environment; `classic.py` has gymnasium's, and `examples/tagging.py` has
several agents. `sources.py` gathers its functions, `kernels.py` has the loops around them, `building.py` compiles both,
and `modules.py` keeps the result. `python_form.py` steps an environment without Numba and explains errors, and
`rehearsal.py` uses it to find errors before anything is compiled. `cuda_kernels.py` has the loops for a GPU, and
`cuda_building.py` compiles and launches them. `perceptrons.py` has the networks, also for compiled updates
(`agents/ppo/by_numba.py`); `intrinsics.py` has their matrix products, and how threads wait for each other.

Samplers and agents are elsewhere: `compiled.py` and `on_device.py` in `environments/`, `fused.py` and `on_device.py` in
`runners/filling.py`.
"""

from hybridppo._lazy import lazy_attributes

__all__, __getattr__ = lazy_attributes(__name__)
