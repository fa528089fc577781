"""Steps an environment by its kernels and by the CPU's loops, and compares.

    NUMBA_ENABLE_CUDASIM=1 python tests/helpers/simulated_cuda.py NAME   # on Numba's simulator
    compare(name, torch.device("cuda:0"))   # on a GPU: test_cuda_on_gpu.py

Returns what it observed once everything agreed; a script prints it as a line of JSON. A difference is an error.
"""

import json
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from compiled_catch import Catch
from compiled_hunt import Hunt
from compiled_kinds import Choices, Numbers
from cuda_stand_in import SimulatedLauncher, TwinLauncher
from numba import config

from hybridppo.compiled import cuda_building
from hybridppo.compiled.classic import compiled_form
from hybridppo.distributions.of_space import distribution_for
from hybridppo.environments.making import make_environments
from hybridppo.environments.on_device import EnvironmentsOnDevice
from hybridppo.environments.options import CriticsOptions, EnvironmentOptions

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from tagging import tag, tag_on_grid

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
    "Hunt with its state": (Hunt, 3, 16),
    "Numbers": (Numbers, 2, 12),
    "Tag": (
        tag(taggers=2, runners=4, episode_length=9, nearest=3, tagging_distance=0.2, egocentric=True),
        2,
        12,
    ),
    "TagOnGrid": (tag_on_grid(taggers=2, runners=3, side=4, episode_length=9, exits=False), 2, 12),
    # More agents than a warp, whose threads take two each, and a state that is not the block's own.
    "in place": (tag_on_grid(taggers=3, runners=32, side=12, episode_length=6, nearest=2), 1, 7),
}
LIMITS = {"Acrobot-v1": 12, "MountainCar-v0": 12, "MountainCarContinuous-v0": 12, "Pendulum-v1": 12}
"""Length of episodes, so that some are truncated."""


def side(
    source: Any, num_envs: int, num_steps: int, device: torch.device, observes: Any = "own"
) -> tuple[Any, EnvironmentsOnDevice]:
    options = EnvironmentOptions() if observes == "own" else CriticsOptions(critic_observes=observes)
    environments: Any = make_environments(source, num_envs, options, vectorization="compiled")
    distribution: Any = distribution_for(environments.action_space)
    return environments, EnvironmentsOnDevice(environments, distribution, device, num_steps=num_steps)


def compare(name: str, device: torch.device, tolerance: float = 1e-6, of_noise: float = 2e-6) -> dict[str, int]:
    """How often each event has happened, and how many fields were compared and had the same bits."""
    source, num_envs, num_steps = ENVIRONMENTS[name]
    if name in LIMITS:
        source = replace(compiled_form(source), episode_length=LIMITS[name])
    launchers = cuda_building.LAUNCHERS
    observes = "state" if name == "Hunt with its state" else "own"
    ours, tested = side(source, num_envs, num_steps, device, observes)
    before, launchers["cpu"] = launchers.get("cpu"), TwinLauncher
    theirs, twin = side(source, num_envs, num_steps, torch.device("cpu"), observes)
    del launchers["cpu"]
    if before is not None:
        launchers["cpu"] = before
    generator = np.random.default_rng(0)
    tested.restart(7), twin.restart(7)
    seen = dict.fromkeys(("terminated", "truncated", "absent", "equal", "compared"), 0)

    def same(one: torch.Tensor, other: torch.Tensor, most: float = tolerance) -> None:
        torch.testing.assert_close(one.cpu(), other, rtol=most, atol=most)

    for rollout in range(2):
        for one in (tested, twin):
            one.set_seed(rollout + 5, 9)
        for t in range(num_steps):
            outputs = torch.from_numpy(generator.normal(size=twin.rollout.outputs.shape[1:]).astype(np.float32))
            for one in (tested, twin):
                one.rollout.outputs[t] = outputs.to(one.rollout.outputs.device)
                one.act(t)
            # Drawn alike but for the rounding of a logarithm; from here on, both act the same.
            same(tested._noise, twin._noise, of_noise)
            same(tested.rollout.actions[t], twin.rollout.actions[t], of_noise)
            same(tested._for_env, twin._for_env, of_noise)
            tested._for_env.copy_(twin._for_env)
            for one in (tested, twin):
                one.step(t)
            tested.take(), twin.take()
            for field in ours.states.dtype.names:
                one, other = ours.states[field], theirs.states[field]
                np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance, err_msg=field)
                seen["equal"] += np.array_equal(one, other)
                seen["compared"] += 1
            np.testing.assert_array_equal(ours.randoms, theirs.randoms)
            np.testing.assert_array_equal(ours.lengths, theirs.lengths)
            same(tested.rollout.observations[t + 1], twin.rollout.observations[t + 1])
            theirs.states[:] = ours.states  # a difference of rounding is of one step, and does not grow
            twin.put()
            twin.rollout.observations[t + 1].copy_(tested.rollout.observations[t + 1])
        for field, tensor in tested.rollout.columns().items():
            if field != "actions":
                same(tensor, twin.rollout.columns()[field])
        for flag in ("terminated", "truncated", "absent"):
            seen[flag] += int(getattr(tested.rollout, flag).sum())
        for one in (tested, twin):
            one.rollout.observations[0] = one.rollout.observations[num_steps].clone()
    return seen


def main(name: str) -> None:
    assert config.ENABLE_CUDASIM
    if name == "in place":
        cuda_building.BLOCK_MEMORY, cuda_building.MOST_THREADS = 0, 32
    # A type of tensors whose memory is the CPU's, for the simulator to write to.
    cuda_building.LAUNCHERS["cpu"] = SimulatedLauncher
    shape = cuda_building.shape_of(compiled_form(ENVIRONMENTS[name][0]))
    assert shape.is_held == (shape.is_block_each and name != "in place")
    print(json.dumps(compare(name, torch.device("cpu"))))


if __name__ == "__main__":
    warnings.simplefilter("error", RuntimeWarning)
    main(sys.argv[1])
