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
import warnings
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from hybridppo.agents import PPO
from hybridppo.errors import ConfigurationError, TrainingError, pip_install
from hybridppo.loading import load, policies_of_run
from hybridppo.networks.making import Networks
from hybridppo.run_directory.directory import WhichCheckpoint
from hybridppo.run_directory.files import making, replace_synced
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.kinds import first_of
from hybridppo.system.validation import require_path, require_whole
from hybridppo.tools import numpy_policy
from hybridppo.tools.exported_policy import Player, TorchPolicy, arrays_of

Call = Callable[[Any, Any, Any], tuple[Any, Any, Any]]
"""Takes observation, mask and state; returns the parts of an action, the outputs and the next state."""
Form = tuple[bytes, Call]
"""The contents of a file, and a function that acts by them."""

_MODULE = Path(numpy_policy.__file__)
ABOUT_FILE = "hybridppo.json"
"""The extra file of a `.pt2` that describes its inputs and outputs."""
STEPS_OF_AN_EPISODE = 20
"""Steps after which the state of a recurrent policy is reset in the comparison."""
TOLERANCE = 1e-4
"""The absolute and relative tolerance of outputs."""


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
    policy: str | None = None,
) -> Exported:
    """Write the policy of a run: the most probable action, with normalisation, masks and memory inside.

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
    agents = policies_of_run(run_dir, load(run_dir, checkpoint, agent=agent, networks=networks))
    player = _policy_of(agents, policy)
    exported = TorchPolicy(player).eval()
    module = path.parent / "numpy_policy.py" if suffix == ".npz" else None
    if module is not None and module.exists() and module.read_text("utf-8", "replace") != _MODULE.read_text("utf-8"):
        raise ConfigurationError(f"{module} is there already, and is another module: move it, or name another folder")
    data, call = _FORMS[suffix](exported)
    difference = 0.0
    if check_steps:
        difference = _compare(player, exported, call, check_steps)
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
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
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
    return data, _call(policy, lambda arrays: session.run(None, dict(zip(policy.input_names, arrays, strict=True))))


def _as_torch(policy: TorchPolicy) -> Form:
    file = io.BytesIO()  # torch's writer of files ends the whole process if the disk is full
    with _only_errors_logged():
        torch.export.save(_traced(policy), file, extra_files={ABOUT_FILE: json.dumps(policy.about(), allow_nan=False)})
        module = torch.export.load(io.BytesIO(file.getvalue())).module()

    def run(arrays: list[Array]) -> Any:
        return [output.numpy() for output in module(tuple(map(torch.from_numpy, arrays)))]

    return file.getvalue(), _call(policy, run)


def _traced(policy: TorchPolicy) -> torch.export.ExportedProgram:
    """The policy as a graph, for batches of any size."""
    alone = deepcopy(policy).requires_grad_(False)
    for tensor in (*alone.parameters(), *alone.buffers()):
        tensor.data = tensor.data.clone()  # its own storage: all parameters of an agent, also the critic's, share one
    inputs, batch = policy.example(2), torch.export.Dim("batch")
    return torch.export.export(alone, (inputs,), dynamic_shapes=(tuple({0: batch} for _ in inputs),))


def _call(policy: TorchPolicy, run: Callable[[list[Array]], Any]) -> Call:
    """Acts on one observation, with `run`, which computes outputs from inputs, both in order, for a batch of one."""

    def call(observation: Any, action_mask: Any, state: Any) -> tuple[Any, Any, Any]:
        found = run(policy.inputs(observation, action_mask, state))
        num_parts = len(policy.actions)
        action = [part[0] for part in found[:num_parts]]
        return action, found[num_parts][0], found[-1] if policy.state_size else None

    return call


def _as_numpy(policy: TorchPolicy) -> Form:
    about, arrays = arrays_of(policy)
    text = json.dumps({"format": numpy_policy.FORMAT, **about}, allow_nan=False).encode()
    file: Any = io.BytesIO()
    np.savez(file, about=np.frombuffer(text, np.uint8), **arrays)  # type: ignore[arg-type]
    file.seek(0)
    reader = numpy_policy.Policy(file)

    def call(observation: Any, action_mask: Any, state: Any) -> tuple[Any, Any, Any]:
        inputs = [array[0] for array in policy.inputs(observation, action_mask, None)]
        mask = inputs[1] if policy.mask_size else None
        outputs, _ = reader.outputs(inputs[0], action_mask=mask, state=state)
        action, state = reader.act(inputs[0], action_mask=mask, state=state)
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
    if isinstance(space, gym.spaces.Dict):
        return {key: _sample(part, generator) for key, part in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_sample(part, generator) for part in space.spaces)
    if not isinstance(space, gym.spaces.Box) or space.dtype == np.uint8:
        return space.sample()
    low, high = (np.clip(bound.astype(np.float64), -50.0, 50.0) for bound in (space.low, space.high))
    return np.asarray(generator.uniform(low, high)).astype(space.dtype)


def _random_mask(space: "gym.Space[Any]", generator: np.random.Generator) -> Any:
    """A random mask that allows at least one action of every choice."""
    if isinstance(space, gym.spaces.Dict):
        return {key: _random_mask(part, generator) for key, part in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_random_mask(part, generator) for part in space.spaces)
    if isinstance(space, gym.spaces.MultiBinary):
        return generator.integers(0, 3, space.shape).astype(np.int8)
    if not isinstance(space, (gym.spaces.Discrete, gym.spaces.MultiDiscrete)):
        return None
    sizes = [int(space.n)] if isinstance(space, gym.spaces.Discrete) else space.nvec.ravel().tolist()
    masks = [generator.integers(0, 2, size).astype(np.int8) for size in sizes]
    for mask in masks:
        mask[generator.integers(len(mask))] = 1
    return np.concatenate(masks)


def _compare(agent: Player, policy: TorchPolicy, call: Call, steps: int) -> float:
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
            is_same = _are_close(action, policy.parts_of(expected)) or _are_close(action, policy.parts_of(follows))
            if not (is_close and is_same):
                raise TrainingError(
                    f"the file does not give what the agent gives: at step {step}, {action} and not {expected}, from "
                    f"outputs {found.tolist()} and not {outputs.tolist()}"
                )
    finally:
        hook.remove()
    return difference


def _are_close(some: list[Array], others: list[Array]) -> bool:
    pairs = zip(some, others, strict=True)
    return all(np.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE) for one, other in pairs)
