"""What Numba compiles: environments, one source of plain functions for Python and for the CPU's own code; perceptrons.

    from hybridppo import compiled

    @compiled.environment(...)                  # the guide is docs/compiled.md
    class Catch: ...

`definition.py` says how an environment is written; `cartpole.py` is the shortest one, and `examples/tagging.py` has
several agents.
`sources.py` gathers its functions, `kernels.py` are the loops around them, `building.py` compiles both, and
`modules.py` keeps the result. `python_form.py` is the same without Numba, with errors explained, and `rehearsal.py`
steps that before anything is compiled, to find mistakes. `cuda_kernels.py` are the loops for a GPU, which
`cuda_building.py` compiles and launches. `update_modules.py`, `perceptrons.py` and `adam.py` are for compiled updates.
Matrix products are tiles (`tiles.py`, `tile_sizes.py`), and threads wait for each other in `meeting.py` (`signals.py`).

Not here: who steps environments (`compiled.py` and `on_device.py` in `environments/`, `fused.py` and `on_device.py` in
`runners/samplers/`), and who learns.
"""

from typing import TYPE_CHECKING

from hybridppo._lazy import lazy_attributes

if TYPE_CHECKING:
    from hybridppo.compiled.definition import Definition, environment
    from hybridppo.compiled.random_numbers import integers, normal, uniform

__all__ = ["Definition", "environment", "integers", "normal", "uniform"]

__getattr__ = lazy_attributes(
    __name__,
    {
        "hybridppo.compiled.definition": "Definition environment",
        "hybridppo.compiled.random_numbers": "integers normal uniform",
    },
)
