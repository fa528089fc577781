"""Exports a run's policy to a file for other machines, and compares the file with the agent.

    hybridppo.export("runs/CartPole-v1-20260101-120000-seed0", "policy.onnx")
    hybridppo.export("runs/CartPole-v1-20260101-120000-seed0", "policy.npz")
    hybridppo.export("runs/CartPole-v1-20260101-120000-seed0", "policy.pt2")

ONNX needs the extra `onnx`; the forms for NumPy (`.npz`) and for torch and C++ (`.pt2`) need no further package. A file
describes its inputs and outputs as JSON (names, order, shapes, types and bounds of the parts of an observation and an
action): in the metadata `hybridppo` of ONNX, in the extra file `hybridppo.json` of `.pt2`, and in `Policy.about` for
NumPy.
"""

import contextlib
import io
import json
import logging
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import reduce
from importlib import resources
from operator import getitem
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from hybridppo._version import __version__
from hybridppo.agents import PPO
from hybridppo.agents.ddpg import DDPG
from hybridppo.distributions.base import Distribution
from hybridppo.distributions.categorical import Categorical
from hybridppo.distributions.gaussian import BoxDistribution
from hybridppo.distributions.joint import Factor, JointDistribution
from hybridppo.distributions.own import MakeDistribution
from hybridppo.distributions.state_dependent import StateDependentGaussian
from hybridppo.errors import ConfigurationError, TrainingError, is_installed, pip_install
from hybridppo.loading import load_policies
from hybridppo.networks.actors import arrays_of, twin_of
from hybridppo.networks.making import Networks
from hybridppo.networks.numpy_actors import CELLS, NumpyTwin
from hybridppo.run_directory.directory import WhichCheckpoint
from hybridppo.run_directory.files import making, replace_synced
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.items import VaryingKind
from hybridppo.spaces.kinds import ChoicesKind, Kind, first_of, kind_of, map_parts, parts_of
from hybridppo.spaces.masks import MaskedObservation
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.spaces.rows import RowPart
from hybridppo.spaces.serialization import key_to_json, space_to_json
from hybridppo.system.validation import require_path, require_whole
from hybridppo.tools import numpy_policy

Player = PPO | DDPG
"""An agent with one policy; TD3 is a DDPG."""
Call = Callable[[Any, Any, Any], tuple[Any, Any, Any]]
"""Takes observation, mask and state; returns the parts of an action, the outputs and the next state."""
Form = tuple[bytes, Call]
"""The contents of a file, and a function that acts by them."""

_MODULE = resources.files("hybridppo.tools") / "numpy_policy.py"
ABOUT_FILE = "hybridppo.json"
"""The extra file of a `.pt2` that describes its inputs and outputs."""
STEPS_OF_AN_EPISODE = 20
"""Steps after which the state of a recurrent policy is reset in the comparison."""
TOLERANCE = 1e-4
"""The absolute and relative tolerance of outputs."""


class TorchPolicy(nn.Module):
    """The policy as a module: maps inputs by name (`input_names`), batches `[B, ...]`, to a tuple (`output_names`).

    Each part of an observation is an input in the shape and type of its space. `action_mask` is `[B, n]`, and `state`
    is `[B, state_size]`, zeros at the start of an episode.

    Raises:
        ConfigurationError: for actions that cannot be exported.
    """

    def __init__(self, agent: Player) -> None:
        super().__init__()
        self.actor: nn.Module = agent.actor
        space: Any = agent.observation_space
        self._masked = space if isinstance(space, MaskedObservation) else None
        self.mask_size = 0 if self._masked is None else self._masked.num_actions
        keys = None
        if isinstance(agent, PPO):
            keys, space = agent.config.actor_keys, agent.given_space
        pairs = zip(kind_of(space).leaves, _paths(space), strict=True)
        self.parts = [(leaf, path) for leaf, path in pairs if keys is None or str(path[0]) in keys]
        """The parts of an observation that the actor sees, and their keys."""
        for leaf, _ in self.parts:
            if isinstance(leaf, VaryingKind):
                what = f"observations of {leaf.space} cannot be exported: an exported policy takes arrays of one shape"
                raise ConfigurationError(f"{what} (agent.save makes a file that takes them)")
        self.is_image = len(self.parts) == 1 and self.parts[0][0].image is not None and not self.mask_size
        """Whether the actor takes an image as it is."""
        self.state_size = 0 if agent.memory is None else agent.memory.state_size
        self._lay_out_row(agent)
        names = _names("observation", [path for _, path in self.parts])
        own = [(tuple(leaf.space.shape), torch.from_numpy(np.zeros(0, _dtype(leaf))).dtype) for leaf, _ in self.parts]
        self._inputs = dict(zip(names, own, strict=True))
        """The shape of each input, without the batch, and its type."""
        optional = {"action_mask": (self.mask_size, torch.int8), "state": (self.state_size, torch.float32)}
        self._inputs |= {name: ((size,), dtype) for name, (size, dtype) in optional.items() if size}
        self.input_names = list(self._inputs)
        self.action_space = agent.action_space
        found = agent.distribution
        # The deterministic action does not depend on how others are drawn.
        whole = JointDistribution([found.normal if isinstance(found, StateDependentGaussian) else found], list)
        leaves = kind_of(agent.action_space).leaves
        if len(leaves) != len(whole.factors):
            raise ConfigurationError("a distribution of one's own of several parts of an action cannot be exported")
        self.actions = list(zip(leaves, whole.factors, strict=True))
        """The parts of an action: the space and how it is drawn."""
        self.output_names = [
            *_names("action", _paths(self.action_space)),
            "outputs",
            *(["next_state"] if self.state_size else []),
        ]
        """The parts of an action, the outputs of the network, and the next state of a recurrent policy."""

    def _lay_out_row(self, agent: Player) -> None:
        """Find the places of the inputs in the actor's row; the actor ignores other parts, which become zeros."""
        whole = ObservationEncoder(agent.observation_space)
        sizes = [whole.layout.num_numbers, *(image.num_bytes for image in whole.layout.images)]
        numbers, *images = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
        end = len(numbers) - self.mask_size
        seen = agent.config.actor_parts if isinstance(agent, PPO) else None
        parts = [part for key, part in whole.by_key.items() if seen is not None and key in seen]
        parts = parts or [RowPart(slice(0, end), slice(None))]
        kept = [numbers[part.numbers] for part in parts]
        self.kept = np.concatenate([*kept, numbers[end:]])
        """Which numbers of the actor's row are inputs, in their order; a mask is last."""
        index = np.concatenate([*kept, *(image for part in parts for image in images[part.images])])
        self.num_numbers = len(index)
        """The length of an observation as a row: numbers with choices one-hot, and then images."""
        places = np.full(sum(sizes), len(index) + self.mask_size)  # of a zero, after the inputs
        places[[*index, *numbers[end:]]] = np.arange(len(index) + self.mask_size)
        self.register_buffer("places", torch.from_numpy(places), persistent=False)

    def example(self, size: int) -> dict[str, Tensor]:
        """Inputs of a batch of this size."""
        return {name: torch.zeros(size, *shape, dtype=dtype) for name, (shape, dtype) in self._inputs.items()}

    def inputs(self, observation: Any, action_mask: Any, state: Array | None) -> dict[str, Array]:
        """The inputs for one observation of the environment, a batch of one each."""
        arrays: list[Array] = [
            leaf.checked(reduce(getitem, path, observation))[None].astype(_dtype(leaf)) for leaf, path in self.parts
        ]
        if self._masked is not None:
            arrays.append(self._masked.choices.flat_mask(action_mask)[None].astype(np.int8))
        if self.state_size:
            arrays.append(np.zeros((1, self.state_size), np.float32) if state is None else state)
        return dict(zip(self.input_names, arrays, strict=True))

    def parts_of(self, action: Any) -> list[Any]:
        """The parts of one action of the environment, in the order of `actions`."""
        return list(kind_of(self.action_space).values(action))

    def forward(self, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """Outputs of a batch of inputs. Choices are int64, numbers float32."""
        rows = next(iter(inputs.values()))
        if not self.is_image:
            flat: tuple[list[Tensor], list[Tensor]] = [], []  # numbers, images
            for name, (leaf, _) in zip(self.input_names, self.parts, strict=False):
                part = inputs[name].reshape(inputs[name].shape[0], math.prod(leaf.space.shape))
                if type(leaf) is ChoicesKind:  # one-hot
                    choices = np.repeat(np.arange(len(leaf.sizes)), leaf.sizes)
                    options = np.concatenate([*map(np.arange, leaf.sizes)]) + leaf.starts[choices]
                    part = part.long()[:, torch.tensor(choices)] == torch.tensor(options)
                flat[leaf.image is not None].append(part.float())
            mask = [inputs["action_mask"].float()] if self.mask_size else []
            nothing = torch.zeros_like((flat[0] + flat[1])[0][:, :1])
            rows = torch.cat((*flat[0], *flat[1], *mask, nothing), dim=-1)[:, self.get_buffer("places")]
        after: tuple[Tensor, ...] = ()
        if self.state_size:
            starts = torch.zeros_like(inputs["state"][:, 0], dtype=torch.bool)
            of_step, states = self.actor(rows.unsqueeze(0), inputs["state"], starts.unsqueeze(0))
            outputs, after = of_step[0], (states[0],)
        else:
            outputs = self.actor(rows)
        parts = [self._part(factor, outputs) for _, factor in self.actions]
        return *parts, outputs, *after

    def _part(self, factor: Factor, outputs: Tensor) -> Tensor:
        """A part of the deterministic action, `[B, *space]`."""
        # Also of what is not sampled on tensors.
        part: Any = Distribution.on(factor.distribution, "cpu")
        return part.to_env(part.mode(outputs[:, factor.outputs]))

    def about(self) -> dict[str, Any]:
        """A description of the inputs and outputs as JSON: their parts, by name and in order."""
        inputs: list[dict[str, Any]] = [
            {"name": name, "shape": list(shape), "dtype": str(dtype).removeprefix("torch.")}
            for name, (shape, dtype) in self._inputs.items()
        ]
        for each, (leaf, path) in zip(inputs, self.parts, strict=False):
            each |= {"keys": [key_to_json(key) for key in path], "space": space_to_json(leaf.space)}
            if type(leaf) is ChoicesKind:
                each |= {"sizes": leaf.sizes, "first": leaf.starts.tolist()}
        choices = kind_of(self.action_space).mask_parts if self.mask_size else []
        return {
            "hybridppo": __version__,
            "inputs": inputs,
            "outputs": self.output_names,
            "action_mask": [{"name": name, "size": size} for name, size in choices],
            "action_space": space_to_json(self.action_space),
            "action": [
                {**self._about_part(leaf, factor), "output": name}
                for name, (leaf, factor) in zip(self.output_names, self.actions, strict=False)
            ],
        }

    def _about_part(self, leaf: Kind[Any], factor: Factor) -> dict[str, Any]:
        part: Any = factor.distribution
        start, size = factor.outputs.start, part.size if isinstance(part, BoxDistribution) else part.output_size
        place = {"start": start, "stop": start + size}
        found = {"name": leaf.path, **place, "space": space_to_json(leaf.space)}
        if isinstance(part, BoxDistribution):
            return {**found, "kind": "numbers", "squashed": hasattr(part, "center")}
        if not isinstance(part, Categorical):
            return {**found, "kind": "own"}
        first = np.broadcast_to(part.start, leaf.space.shape)
        return {**found, "kind": "choices", "sizes": part.sizes, "first": first.ravel().tolist()}


def numpy_form(policy: TorchPolicy) -> tuple[dict[str, Any], dict[str, Array]]:
    """The description and the arrays that `numpy_policy.py` reads.

    Raises:
        ConfigurationError: for networks that it cannot compute.
    """
    twin, own = twin_of(policy.actor), [array.numpy() for array in arrays_of(policy.actor)]
    are_known = all(isinstance(factor.distribution, BoxDistribution | Categorical) for _, factor in policy.actions)
    if not are_known or not isinstance(twin, NumpyTwin) or (twin.encoded is not None and not twin.encoded.is_plain):
        raise ConfigurationError(
            "NumPy's form of a policy has only perceptrons with tanh or ReLU, recurrent or not, and the library's "
            "distributions of actions: export it as .onnx or .pt2"
        )
    arrays: dict[str, Array] = {}
    if twin.normalizes is not None:
        *own, mean, variance = own
        times = twin.normalizes.num_numbers // len(mean)  # the moments of stacked frames are those of one frame
        arrays = {"mean": np.tile(mean, times)[policy.kept], "variance": np.tile(variance, times)[policy.kept]}
    if twin.cell is not None:
        names = ("weight_input", "weight_state", "bias", "bias_state")[: CELLS[twin.cell].num_arrays]
        arrays |= dict(zip(names, own, strict=False))
        own = own[len(names) :]
    if len(own) % 2:
        arrays["feature_log_std" if twin.explores else "log_std"] = own.pop(0)
    for number in range(len(own) // 2):
        arrays |= {f"weight_{number}": own[2 * number], f"bias_{number}": own[2 * number + 1]}
    for number, (_, factor) in enumerate(policy.actions):
        part = factor.distribution
        if isinstance(part, BoxDistribution):
            arrays |= {f"{name}_{number}": array for name, array in vars(part).items() if isinstance(array, np.ndarray)}
    about = {
        **policy.about(),
        "memory": twin.cell,
        "memory_size": twin.cell_size,
        "state_size": policy.state_size,
        "num_layers": len(own) // 2,
        "activation": twin.activation,
        "observation_size": policy.num_numbers,
        "mask_size": policy.mask_size,
    }
    return about, arrays


def _paths(space: Any) -> list[tuple[Any, ...]]:
    """The keys of each part of a space, in the order of `Kind.leaves`; () for a space without parts."""
    if not isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple)):
        return [()]
    return [(key, *rest) for key, part in parts_of(space) for rest in _paths(part)]


def _names(prefix: str, paths: Sequence[Sequence[Any]]) -> list[str]:
    """A name for each part, such as `observation.camera`. Graphs of torch allow only letters, digits, `_` and dots."""
    names = [".".join((prefix, *(re.sub(r"\W+", "_", str(key)) for key in path))) for path in paths]
    return [name if names.count(name) == 1 else f"{name}.{number}" for number, name in enumerate(names)]


def _dtype(leaf: Kind[Any]) -> "np.dtype[Any]":
    """The type of an input: its space's, if all network formats have it, else float32."""
    dtype = np.dtype(leaf.space.dtype)
    return dtype if dtype.kind in "bi" or dtype.name in ("uint8", "float32", "float64") else np.dtype(np.float32)


@dataclass(frozen=True)
class Exported:
    """The result of an export."""

    path: Path
    steps_checked: int
    """The number of observations on which file and agent agree."""
    largest_difference: float
    """The largest difference between outputs of the file and of torch."""


def export(
    run_dir: str | Path,
    file: str | Path,
    *,
    checkpoint: WhichCheckpoint = "latest",
    check_steps: int = 1000,
    agent: type[PPO] | None = None,
    networks: Networks | None = None,
    action_distribution: MakeDistribution | None = None,
    policy: str | None = None,
) -> Exported:
    """Write the policy of a run: its deterministic action, with normalisation, masks and hidden state inside.

    Args:
        run_dir: the run directory.
        file: `.onnx`; `.pt2` for torch and C++ (`torch.export`); or `.npz` for NumPy, beside which its module
            `numpy_policy.py` is written. An existing file is replaced when the new one is complete; a different file
            named `numpy_policy.py` is not replaced.
        checkpoint: as for `hybridppo.load`.
        check_steps: number of observations on which the file is compared with the agent; 0 to skip this. They are drawn
            from the observation space, with masks that allow some actions.
        agent: as for `hybridppo.load`.
        networks: as for `hybridppo.load`.
        action_distribution: as for `hybridppo.load`.
        policy: the name of the policy to export, if the run has several.

    Raises:
        ConfigurationError: if the policy cannot be written in this form, or packages are missing.
        RunDirectoryError: if the file cannot be written.
        TrainingError: if the results of the file and of the agent differ; then nothing is written.
    """
    path = require_path("file", file)
    suffix = path.suffix.lower()
    if suffix not in _FORMS:
        raise ConfigurationError(f"the file must end with one of {', '.join(_FORMS)}, got {path.name!r}")
    check_steps = require_whole("check_steps", check_steps, 0)
    agents = load_policies(run_dir, checkpoint, agent=agent, networks=networks, action_distribution=action_distribution)
    player = _policy_of(agents, policy)
    exported = TorchPolicy(player).eval()
    module = path.parent / "numpy_policy.py" if suffix == ".npz" else None
    if module is not None and module.exists() and module.read_text("utf-8", "replace") != _MODULE.read_text("utf-8"):
        raise ConfigurationError(f"{module} is there already, and is another module: move it, or name another folder")
    data, call = _FORMS[suffix](exported)
    difference = 0.0
    if check_steps:
        difference = _compare(player, exported, call, check_steps, module is not None)
    with making(path):
        if module is not None:
            replace_synced(module, _MODULE.read_bytes())
        replace_synced(path, data)
    return Exported(path, check_steps, difference)


def _policy_of(agents: Mapping[str, Any], policy: str | None) -> Player:
    """The agent of one policy.

    Raises:
        ConfigurationError: if there is no policy of that name, or there are several and `policy` is None.
    """
    found: Player | None = (
        next(iter(agents.values())) if policy is None and len(agents) == 1 else agents.get(policy or "")
    )
    if found is None:
        asked = "name one" if policy is None else f"there is no {policy!r}"
        raise ConfigurationError(f"the run has the policies {', '.join(agents)}: {asked} (policy=..., --policy)")
    return found


def _as_onnx(policy: TorchPolicy) -> Form:
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if not is_installed(name)]
    if missing:
        raise ConfigurationError(f"ONNX needs {', '.join(missing)}: {pip_install('onnx')}")
    import onnxruntime

    with _only_errors_logged():
        program = torch.onnx.export(
            _traced(policy),
            input_names=policy.input_names,
            output_names=policy.output_names,
            dynamo=True,
            verbose=False,
        )
        assert program is not None
        program.model.metadata_props["hybridppo"] = json.dumps(policy.about(), allow_nan=False)
        data = program.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    return data, _call(policy, lambda inputs: session.run(None, inputs))


def _as_torch(policy: TorchPolicy) -> Form:
    file = io.BytesIO()  # torch's writer of files ends the whole process if the disk is full
    with _only_errors_logged():
        torch.export.save(_traced(policy), file, extra_files={ABOUT_FILE: json.dumps(policy.about(), allow_nan=False)})
        module = torch.export.load(io.BytesIO(file.getvalue())).module()

    def run(inputs: dict[str, Array]) -> Any:
        return [output.numpy() for output in module({name: torch.from_numpy(x) for name, x in inputs.items()})]

    return file.getvalue(), _call(policy, run)


def _traced(policy: TorchPolicy) -> torch.export.ExportedProgram:
    """The policy as a graph, for batches of any size."""
    alone = deepcopy(policy).requires_grad_(False)
    for tensor in (*alone.parameters(), *alone.buffers()):
        tensor.data = tensor.data.clone()  # its own storage: all parameters of an agent, also the critic's, share one
    inputs, batch = policy.example(2), torch.export.Dim("batch")
    with torch.no_grad():  # with gradients, the number of images decides how convolutions take them
        return torch.export.export(alone, (inputs,), dynamic_shapes=({name: {0: batch} for name in inputs},))


def _call(policy: TorchPolicy, run: Callable[[dict[str, Array]], Any]) -> Call:
    """Acts on one observation, with `run`, which computes outputs in order from inputs by name, for a batch of one."""

    def call(observation: Any, action_mask: Any, state: Any) -> tuple[Any, Any, Any]:
        found = run(policy.inputs(observation, action_mask, state))
        num_parts = len(policy.actions)
        action = [part[0] for part in found[:num_parts]]
        return action, found[num_parts][0], found[-1] if policy.state_size else None

    return call


def _as_numpy(policy: TorchPolicy) -> Form:
    about, arrays = numpy_form(policy)
    text = json.dumps({"format": numpy_policy.FORMAT, **about}, allow_nan=False).encode()
    file: Any = io.BytesIO()
    np.savez(file, about=np.frombuffer(text, np.uint8), **arrays)  # type: ignore[arg-type]
    file.seek(0)
    reader = numpy_policy.Policy(file)

    def call(observation: Any, action_mask: Any, state: Any) -> tuple[Any, Any, Any]:
        mask = policy.inputs(observation, action_mask, None)["action_mask"][0] if policy.mask_size else None
        outputs, _ = reader.outputs(observation, action_mask=mask, state=state)
        action, state = reader.act(observation, action_mask=mask, state=state)
        return policy.parts_of(action), outputs, state

    return file.getvalue(), call


_FORMS: dict[str, Callable[[TorchPolicy], Form]] = {".onnx": _as_onnx, ".npz": _as_numpy, ".pt2": _as_torch}
"""For each suffix, a function that makes a policy's file."""


@contextlib.contextmanager
def _only_errors_logged() -> Iterator[None]:
    """A context that drops warnings, and logs only errors, because the exporters warn about themselves."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _sample(space: "gym.Space[Any]", generator: np.random.Generator) -> Any:
    """A member of a space. Numbers lie between -50 and 50: gymnasium may draw infinite ones, or none at all."""
    if isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
        return map_parts(lambda part: _sample(part, generator), space.spaces)
    if not isinstance(space, gym.spaces.Box) or space.dtype == np.uint8:
        return space.sample()
    low, high = (np.clip(bound.astype(np.float64), -50.0, 50.0) for bound in (space.low, space.high))
    return np.asarray(generator.uniform(low, high)).astype(space.dtype)


def _random_mask(space: "gym.Space[Any]", generator: np.random.Generator) -> Any:
    """A random mask that allows at least one action of every choice."""
    if isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
        return map_parts(lambda part: _random_mask(part, generator), space.spaces)
    if isinstance(space, gym.spaces.MultiBinary):
        return generator.integers(0, 3, space.shape).astype(np.int8)
    if not isinstance(space, (gym.spaces.Discrete, gym.spaces.MultiDiscrete)):
        return None
    sizes = [int(space.n)] if isinstance(space, gym.spaces.Discrete) else space.nvec.ravel().tolist()
    masks = [generator.integers(0, 2, size).astype(np.int8) for size in sizes]
    for mask in masks:
        mask[generator.integers(len(mask))] = 1
    return np.concatenate(masks)


def _compare(agent: Player, policy: TorchPolicy, call: Call, steps: int, is_of_environment: bool) -> float:
    """Act by `agent.act`, and compare with the file; return the largest difference of outputs."""
    space = agent.given_space if isinstance(agent, PPO) else agent.observation_space
    space.seed(0)
    generator = np.random.default_rng(0)
    given: list[Any] = []
    hook = agent.actor.register_forward_hook(lambda actor, inputs, outputs: given.append(outputs))
    difference = 0.0
    state: Any = None
    theirs: Any = None
    try:
        for step in range(steps):
            if step % STEPS_OF_AN_EPISODE == 0:
                state = theirs = None
            observation = _sample(space, generator)
            mask = _random_mask(agent.action_space, generator) if policy.mask_size else None
            expected, state = agent.act(observation, action_mask=mask, state=state)
            ours = given.pop()
            outputs = (ours[0][0] if policy.state_size else ours)[0].numpy()
            action, found, theirs = call(observation, mask, theirs)
            difference = max(difference, float(np.abs(found - outputs).max(initial=0.0)))
            is_close = np.allclose(found, outputs, rtol=TOLERANCE, atol=TOLERANCE)
            # Rounding may choose either of two nearly equal options, so the file's outputs decide.
            follows = first_of(agent.action_space)(agent.distribution.to_env(agent.distribution.mode(found[None])))
            is_same = any(_are_alike(action, policy.parts_of(own), is_of_environment) for own in (expected, follows))
            if not (is_close and is_same):
                raise TrainingError(
                    f"the file does not give what the agent gives: at step {step}, {action!r} and not {expected!r}, "
                    f"from outputs {found.tolist()} and not {outputs.tolist()}"
                )
    finally:
        hook.remove()
    return difference


def _are_alike(parts: Sequence[Any], others: Sequence[Any], is_of_environment: bool) -> bool:
    """Whether the parts of an action have the values and shapes of the agent's.

    Their types are the agent's if the action is for the environment; those of a network are int64 and float32.
    """
    for part, other in zip(parts, others, strict=True):
        of_network = np.float32 if np.issubdtype(other.dtype, np.floating) else np.int64
        if np.shape(part) != np.shape(other) or part.dtype != (other.dtype if is_of_environment else of_network):
            return False
        if is_of_environment and type(part) is not type(other):
            return False
        if not np.allclose(part, other, rtol=TOLERANCE, atol=TOLERANCE):
            return False
    return True
