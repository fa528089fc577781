"""Compiled environments on a device, with the rollout that their kernels write there.

    on_device = EnvironmentsOnDevice(environments, distribution, device, num_steps=128)
    on_device.restart(seed)
    on_device.act(t)                # draws the actions of row t from `rollout.outputs[t]`, which torch has written
    on_device.step(t)               # writes row t of the rollout, and row t + 1 of its observations

Kernels are launched into torch's current stream, on tensors that do not move, and nothing waits; so a loop over rows
can be recorded as a graph. The state is saved and begun by the host's environments, whose random numbers are the same.
"""

import numpy as np
import torch
from torch import Tensor

from hybridppo.compiled.cuda_building import LAUNCHERS, THREADS, blocks_for, shape_of
from hybridppo.compiled.kernels import FusedDistribution, bounds_of
from hybridppo.environments.compiled import CompiledEnvironments
from hybridppo.rollouts.rollout import Rollout
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.on_tensors import CriticRowsOnDevice
from hybridppo.system.devices import accelerator_of


def _rollout(environments: CompiledEnvironments, num_steps: int, num_outputs: int, device: torch.device) -> Rollout:
    """A rollout whose final observations are as kernels write them."""
    definition, leading, kind = environments.definition, (num_steps, environments.num_envs), "float32"
    finals = leading if definition.episode_length else (1, 1)  # else episodes are never truncated
    action_kind = str(_action_dtype(environments)).removeprefix("torch.")
    layout: dict[str, tuple[tuple[int, ...], str]] = {
        "observations": ((num_steps + 1, environments.num_envs, environments.encode.size), kind),
        "outputs": ((*leading, num_outputs), kind),
        "actions": ((*leading, max(1, definition.action_size)), action_kind),
        "rewards": (leading, kind),
        "finals": ((*finals, environments.written.size), kind),
        **dict.fromkeys(("terminated", "truncated", "absent"), (leading, "bool")),
    }
    return Rollout.on_device(layout, device)


def has_launcher(device: torch.device) -> bool:
    """Whether kernels can be launched on devices of this type."""
    return device.type in LAUNCHERS


class EnvironmentsOnDevice:
    """The state and the rollout of `E` environments with `N` columns, and the kernels that write them.

    Args:
        environments: the environments on the host.
        distribution: distribution of the actions.
        device: a device of a type that has a launcher.
        num_steps: `T`.

    Raises:
        DeviceError: if kernels cannot be compiled for the device.
        EnvError: if the environment's functions cannot be compiled.
    """

    def __init__(
        self,
        environments: CompiledEnvironments,
        distribution: FusedDistribution,
        device: torch.device,
        *,
        num_steps: int,
    ) -> None:
        definition = environments.definition
        self.host, self.distribution, self.device, self.num_steps = environments, distribution, device, num_steps
        self.accelerator = accelerator_of(device)
        self._launcher = launcher = LAUNCHERS[device.type](definition, device)
        self._shape = shape_of(definition)
        self.rollout = _rollout(environments, num_steps, distribution.output_size, device)
        num_envs, columns = len(environments.states), environments.num_envs
        self.written = self.rollout.observations
        """`[T + 1, N, written]`, as kernels write them."""
        self._of_critics: CriticRowsOnDevice | None = None
        if environments.whole is not None:
            self.written = torch.zeros((num_steps + 1, columns, environments.written.size), device=device)
            self._of_critics = CriticRowsOnDevice(environments.whole, device)
        self.changed = [torch.zeros_like(torch.from_numpy(array), device=device) for array in self._on_host]
        """The tensors besides the rollout that a step changes and the next step reads."""
        self._states, *_, self._present = self.changed
        self._seed = torch.zeros(2, dtype=torch.int64, device=device)
        self._noise = torch.zeros((columns, distribution.noise_size), device=device)
        self._num_scales = num_scales = distribution.free_size
        self._scales = torch.zeros((columns, max(1, num_scales)), device=device)  # kernels take no empty tensors
        self._for_env = torch.zeros(self.rollout.actions.shape[1:], dtype=_action_dtype(environments), device=device)
        self._bounds = [torch.from_numpy(bound).to(device) for bound in bounds_of(distribution)]
        self._blocks = self._shape.blocks(num_envs)
        # Passed once, because each costs the host some microseconds.
        held = {name: launcher.array(tensor) for name, tensor in self.rollout.columns().items()}
        own = [launcher.array(self._states, definition.state), *map(launcher.array, self.changed[1:])]
        held["observations"] = launcher.array(self.written)
        results = [held[name] for name in ("observations", "rewards", "terminated", "truncated", "absent", "finals")]
        for_env, noise = launcher.array(self._for_env), launcher.array(self._noise)
        self._step_before = *own, definition.episode_length
        self._step_after = for_env, *results
        self._act_before = launcher.array(self._seed)
        drawn = held["outputs"], noise, held["actions"], for_env, launcher.array(self._scales)
        self._act_after = *drawn, *map(launcher.array, self._bounds)

    def restart(self, seed: int) -> None:
        """Reset every environment, the `i`-th with `seed + i`, before row 0."""
        observations = self.host.reset(seed)
        self.put()
        self.rollout.observations[0].copy_(torch.from_numpy(observations))

    def put(self) -> None:
        """Copy the state of the host's environments to the device."""
        for tensor, array in zip(self.changed, self._on_host, strict=True):
            tensor.copy_(torch.from_numpy(array))

    def take(self) -> None:
        """Copy the state to the host's environments, to be saved. This waits for the device."""
        for tensor, array in zip(self.changed, self._on_host, strict=True):
            array[:] = tensor.cpu().numpy()

    @property
    def _on_host(self) -> list[Array]:
        return [self.host.states.view(np.uint8), self.host.randoms, self.host.lengths, self.host.present]

    def set_seed(self, low: int, high: int) -> None:
        """Set the seed of the noise of the next rollout, in halves of 32 bits."""
        self._seed.copy_(torch.tensor([low, high]))

    def act(self, t: int) -> None:
        """Draw the actions of a row from the actor's outputs."""
        if self._num_scales:
            self._scales.copy_(self.rollout.outputs[t, :, -self._num_scales :].exp())
        self._launcher.launch("act_all", blocks_for(len(self._scales)), THREADS, self._act_before, t, *self._act_after)

    def step(self, t: int) -> None:
        """Step all environments: write row `t`, and row `t + 1` of the observations."""
        self._launcher.launch("step_all", self._blocks, self._shape.threads, *self._step_before, t, *self._step_after)
        if self._of_critics is not None:
            self.rollout.observations[t + 1].copy_(self._of_critics.whole(self.written[t + 1], self._present))

    def finals(self, rows: Tensor) -> Tensor:
        """The final observations `[n, obs]` of these rows of the flat rollout, `[T * N]`."""
        finals: Tensor = self.rollout.finals
        if self._of_critics is None:
            return finals.flatten(0, 1)[rows]
        if not len(rows):
            return finals.new_zeros(0, self.rollout.observations.shape[-1])
        num_agents, numbers = self._present.shape[1], torch.arange(len(rows), device=self.device)
        cut = (self.rollout.truncated & ~self.rollout.terminated).view(-1, num_agents)[rows // num_agents]
        finals = finals.view(-1, num_agents, self.written.shape[2])[rows // num_agents]
        seen = self._of_critics.whole(finals.masked_fill(~cut[..., None], 0.0), cut)
        return seen.view(*cut.shape, -1)[numbers, rows % num_agents]


def _action_dtype(environments: CompiledEnvironments) -> torch.dtype:
    return torch.float32 if environments.definition.action_kind == "numbers" else torch.int64
