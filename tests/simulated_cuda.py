"""Steps an environment by its kernels on Numba's simulator, and by the CPU's loops; run by `test_cuda_simulated.py`.

    NUMBA_ENABLE_CUDASIM=1 python tests/simulated_cuda.py NAME

Prints what was seen as one line of JSON, once everything agreed; what does not is an error.
"""

import json
import sys
from functools import partial
from typing import Any

import numpy as np
import torch
from compiled_catch import Catch
from compiled_hunt import Hunt
from compiled_kinds import Choices, Numbers
from cuda_stand_in import SimulatedLauncher, TwinLauncher
from numba import config

from hybridppo import compiled
from hybridppo.compiled import cuda_building
from hybridppo.compiled.known import compiled_form
from hybridppo.environments.making import make_environments
from hybridppo.environments.on_device import EnvironmentsOnDevice, fields
from hybridppo.runners.samplers.fused_actor import bounds_of
from hybridppo.spaces.distributions import distribution_for

ENVIRONMENTS: dict[str, tuple[Any, int, int]] = {
    # What it is, how many, and steps of two rollouts each.
    "CartPole-v1": ("CartPole-v1", 5, 40),
    "Acrobot-v1": ("Acrobot-v1", 3, 20),
    "MountainCar-v0": ("MountainCar-v0", 3, 30),
    "MountainCarContinuous-v0": ("MountainCarContinuous-v0", 3, 30),
    "Pendulum-v1": ("Pendulum-v1", 3, 30),
    "Catch": (Catch, 5, 40),
    "Choices": (Choices, 4, 30),
    "Hunt": (Hunt, 3, 16),
    "Numbers": (Numbers, 2, 12),
    "Tag": (compiled.tag(taggers=2, runners=4, episode_length=9, nearest=3, tagging_distance=0.2), 2, 12),
    "TagOnGrid": (compiled.tag_on_grid(taggers=2, runners=3, side=4, episode_length=9, exits=False), 2, 12),
    # More agents than a warp, whose threads take two each, and a state that is not the block's own.
    "in place": (compiled.tag_on_grid(taggers=3, runners=32, side=12, episode_length=6, nearest=2), 1, 7),
}
LIMITS = {"Acrobot-v1": 12, "MountainCar-v0": 12, "MountainCarContinuous-v0": 12, "Pendulum-v1": 12}
"""Of episodes, so that some are truncated."""


def side(source: Any, num_envs: int, num_steps: int, launcher: Any) -> tuple[Any, EnvironmentsOnDevice, Any]:
    environments: Any = make_environments(source, num_envs, vectorization="compiled")
    distribution: Any = distribution_for(environments.action_space)
    low, high = bounds_of(distribution)
    cuda_building.LAUNCHERS["cpu"] = launcher
    on_device = EnvironmentsOnDevice(
        environments, torch.device("cpu"), num_steps=num_steps, num_outputs=distribution.output_size,
        num_noise=distribution.noise_size, num_scales=distribution.free_size, low=low, high=high,
    )  # fmt: skip
    return environments, on_device, distribution


def main(name: str) -> None:
    assert config.ENABLE_CUDASIM
    source, num_envs, num_steps = ENVIRONMENTS[name]
    if name in LIMITS:
        from dataclasses import replace

        source = replace(compiled_form(source), episode_length=LIMITS[name])
    if name == "in place":
        cuda_building.BLOCK_MEMORY, cuda_building.MOST_THREADS = 0, 32
    ours, simulated, distribution = side(source, num_envs, num_steps, SimulatedLauncher)
    theirs, twin, _ = side(source, num_envs, num_steps, TwinLauncher)
    assert cuda_building.shape_of(ours.definition).step == ("step_all_in_place" if name == "in place" else "step_all")
    generator = np.random.default_rng(0)
    simulated.restart(7), twin.restart(7)
    size = distribution.output_size
    seen = dict.fromkeys(("terminated", "truncated", "absent", "equal", "compared"), 0)
    for rollout in range(2):
        for one in (simulated, twin):
            one.set_seed(rollout + 5, 9)
        for t in range(num_steps):
            outputs = generator.normal(size=(ours.num_envs, size)).astype(np.float32)
            for one in (simulated, twin):
                one.rollout.outputs[t] = torch.from_numpy(outputs)
                one.act(t)
            # Drawn alike but for the rounding of a logarithm; from here on, both act the same.
            torch.testing.assert_close(simulated._noise, twin._noise, rtol=2e-6, atol=2e-6)
            torch.testing.assert_close(simulated.rollout.actions[t], twin.rollout.actions[t], rtol=2e-6, atol=2e-6)
            torch.testing.assert_close(simulated._for_env, twin._for_env, rtol=2e-6, atol=2e-6)
            simulated._for_env.copy_(twin._for_env)
            for one in (simulated, twin):
                one.step(t)
            simulated.take(), twin.take()
            for field in ours.states.dtype.names:
                np.testing.assert_allclose(
                    ours.states[field], theirs.states[field], rtol=1e-6, atol=1e-6, err_msg=field
                )
                seen["equal"] += np.array_equal(ours.states[field], theirs.states[field])
                seen["compared"] += 1
            np.testing.assert_array_equal(ours.randoms, theirs.randoms)
            np.testing.assert_array_equal(ours.lengths, theirs.lengths)
            rows = (one.rollout.observations[t + 1] for one in (simulated, twin))
            torch.testing.assert_close(*rows, rtol=1e-6, atol=1e-6)
            theirs.states[:] = ours.states  # a difference of rounding is of one step, and does not grow
            twin.put(simulated.rollout.observations[t + 1].numpy(), t + 1)
        for each in fields(simulated.rollout):
            one, other = getattr(simulated.rollout, each.name), getattr(twin.rollout, each.name)
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6, msg=partial("{}: {}".format, each.name))
        for flag in ("terminated", "truncated", "absent"):
            seen[flag] += int(getattr(simulated.rollout, flag).sum())
        for one in (simulated, twin):
            one.rollout.observations[0] = one.rollout.observations[num_steps].clone()
    print(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1])
