"""A run's policy as a file for other machines, checked against the agent on what its environment gives.

    hybridppo.export("runs/CartPole-v1-20260101-120000-seed0", "policy.onnx")
    hybridppo.export("runs/CartPole-v1-20260101-120000-seed0", "policy.npz")

ONNX needs `pip install hybridppo[onnx]`; NumPy's form needs nothing, here or there.
"""

import json
import logging
import shutil
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray

from hybridppo.agents import PPO
from hybridppo.environments.frame_stack import stacked
from hybridppo.environments.making import require_single
from hybridppo.environments.named import make_env
from hybridppo.environments.options import EnvSource
from hybridppo.errors import ConfigurationError, TrainingError
from hybridppo.loading import load
from hybridppo.networks.making import Networks
from hybridppo.run_directory.directory import RunDirectory, WhichCheckpoint
from hybridppo.settings import Settings
from hybridppo.spaces.gaussian import DiagonalGaussian
from hybridppo.tools import numpy_policy
from hybridppo.tools.policies import TorchPolicy, arrays_of
from hybridppo.validation import require_whole

Array = NDArray[Any]
Call = Callable[[Any, Any, Any], tuple[Any, Any, Any]]
"""Observation, mask and state of the environment to action, outputs and next state."""

TOLERANCE = 1e-4
"""How far outputs may lie from torch's, absolutely and in proportion."""


@dataclass(frozen=True)
class Exported:
    """What was written."""

    path: Path
    steps_checked: int
    """On how many observations the file gave what the agent gives."""
    largest_difference: float
    """Between an output of the file's and torch's."""


def export(
    run_dir: str | Path,
    file: str | Path,
    *,
    checkpoint: WhichCheckpoint = "latest",
    check_steps: int = 200,
    env: EnvSource | None = None,
    agent: type[PPO] | None = None,
    networks: Networks | None = None,
) -> Exported:
    """Write the policy of a run: the most probable action, with normalisation, masks and memory inside.

    Args:
        run_dir: of the run.
        file: `.onnx`, or `.npz` for NumPy, beside which its module is written, `numpy_policy.py`.
        checkpoint: as for `hybridppo.load`, like `agent` and `networks`.
        check_steps: on how many observations of the environment the file is compared with the agent; 0 for none.
        env: as for `hybridppo.resume`, for the comparison.
        agent: as for `hybridppo.load`.
        networks: as for `hybridppo.load`.

    Raises:
        ConfigurationError: for a policy that has no such form, and where packages are missing.
        TrainingError: where the file does not give what the agent gives; nothing is written then.
    """
    path = Path(file)
    kinds: dict[str, Callable[[TorchPolicy, Path], Call]] = {".onnx": _as_onnx, ".npz": _as_numpy}
    if path.suffix.lower() not in kinds:
        raise ConfigurationError(f"the file must end with {' or '.join(kinds)}, got {path.name!r}")
    check_steps = require_whole("check_steps", check_steps, 0)
    player = load(run_dir, checkpoint, agent=agent, networks=networks)
    if not isinstance(player, PPO):
        raise ConfigurationError(
            f"{type(player).__name__} cannot be exported, only PPO's policies can: `agent.save(file)` keeps any agent"
        )
    policy = TorchPolicy(player).eval()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".export-", dir=path.parent) as folder:
        written = Path(folder) / f"policy{path.suffix.lower()}"
        call = kinds[path.suffix.lower()](policy, written)
        difference = 0.0
        if check_steps:
            settings = Settings.read(RunDirectory.open(run_dir))
            options = settings.environment
            source = require_single(settings.source(env), "the comparison of what is exported (check_steps)")
            if isinstance(source, str):
                source = partial(make_env, source, imports=options.imports, **(options.env_kwargs or {}))
            if options.frame_stack > 1 and callable(source):
                source = partial(stacked, source, options.frame_stack)
            difference = _compare(player, policy, call, source, check_steps)
        written.replace(path)
    if path.suffix.lower() == ".npz":
        shutil.copyfile(numpy_policy.__file__, path.parent / "numpy_policy.py")
    return Exported(path, check_steps, difference)


def _as_onnx(policy: TorchPolicy, path: Path) -> Call:
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise ConfigurationError(f"ONNX needs {', '.join(missing)}: pip install hybridppo[onnx]")
    import onnxruntime

    outputs = ["action", "outputs", *(["next_state"] if policy.state_size else [])]
    batch = torch.export.Dim("batch")
    arguments = policy.example(2)
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)  # of the exporter, about packages that it could make use of
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the exporter, about itself
            torch.onnx.export(
                policy,
                arguments,
                path,
                input_names=policy.input_names,
                output_names=outputs,
                dynamic_shapes=tuple({0: batch} for _ in arguments),
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    finally:
        logger.setLevel(level)
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])

    def call(observation: Any, action_mask: Any, state: Any) -> tuple[Any, Any, Any]:
        arrays = policy.inputs(observation, action_mask, state)
        found: Any = session.run(None, dict(zip(policy.input_names, arrays, strict=True)))
        return found[0][0], found[1][0], found[2] if policy.state_size else None

    return call


def _as_numpy(policy: TorchPolicy, path: Path) -> Call:
    about, arrays = arrays_of(policy)
    text = json.dumps({"format": numpy_policy.FORMAT, **about}).encode()
    np.savez(path, about=np.frombuffer(text, np.uint8), **arrays)  # type: ignore[arg-type]
    reader = numpy_policy.Policy(path)

    def call(observation: Any, action_mask: Any, state: Any) -> tuple[Any, Any, Any]:
        inputs = [array[0] for array in policy.inputs(observation, action_mask, None)]
        mask = inputs[1] if policy.mask_size else None
        outputs, _ = reader.outputs(inputs[0], action_mask=mask, state=state)
        action, state = reader.act(inputs[0], action_mask=mask, state=state)
        return action, outputs, state

    return call


def _compare(agent: PPO, policy: TorchPolicy, call: Call, make: Callable[[], Any], steps: int) -> float:
    """Act in the environment by `agent.act`, and ask the file, too; the largest difference of outputs."""
    env: Any = make()
    if not isinstance(env, gym.Env):
        env.close()
        raise ConfigurationError("the comparison needs one environment, and the function makes a vector: pass another")
    difference = 0.0
    try:
        observation, info = env.reset(seed=0)
        state: Any = None
        theirs: Any = None
        for step in range(steps):
            mask = info.get("action_mask") if policy.mask_size else None
            with torch.no_grad():
                before = None if state is None else state[None]
                inputs = [torch.as_tensor(array) for array in policy.inputs(observation, mask, before)]
                outputs = policy(*inputs)[1][0].numpy()
            expected, state = agent.act(observation, action_mask=mask, state=state)
            action, found, theirs = call(observation, mask, theirs)
            difference = max(difference, float(np.abs(found - outputs).max()))
            is_close = np.allclose(found, outputs, rtol=TOLERANCE, atol=TOLERANCE)
            is_same = np.allclose(action, expected, rtol=TOLERANCE, atol=TOLERANCE)
            if not is_same and not isinstance(agent.distribution, DiagonalGaussian):
                # Of two choices as good as equal, rounding may take either, by the file's own outputs.
                follows = agent.distribution.to_env(agent.distribution.mode(found[None]))[0]
                is_same = np.array_equal(action, follows)
            if not (is_close and is_same):
                raise TrainingError(
                    f"the file does not give what the agent gives: at step {step}, {action} and not {expected}, from "
                    f"outputs {found.tolist()} and not {outputs.tolist()}"
                )
            observation, _, terminated, truncated, info = env.step(expected)
            if terminated or truncated:
                observation, info = env.reset()
                state = theirs = None
    finally:
        env.close()
    return difference
