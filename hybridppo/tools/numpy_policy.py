"""A trained policy in NumPy: it needs this file and the `.npz` beside it.

    policy = Policy("policy.npz")
    action, state = policy.act(observation)                  # the deterministic action
    action, state = policy.act(observation, state=state)     # if recurrent; None at the start of an episode
    action, state = policy.act(observation, action_mask=mask)

Written by `hybridppo export RUN_DIR policy.npz`. It needs neither torch nor hybridppo, and runs no code from the file.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

FORMAT = 4
FORBIDDEN = np.float32(-1e8)


class Policy:
    """The deterministic action for an observation.

    Args:
        path: of the `.npz`.

    Raises:
        ValueError: if the file is of another format than this module.
    """

    def __init__(self, path: "str | Path") -> None:
        with np.load(path, allow_pickle=False) as file:
            self._arrays = {name: file[name] for name in file.files}
        self.about: dict[str, Any] = json.loads(self._arrays.pop("about").tobytes().decode())
        """The parts of an observation and of an action in order, with their names and spaces; and the layers."""
        if self.about["format"] != FORMAT:
            raise ValueError(f"{path} has format {self.about['format']}, and this module reads {FORMAT}: take its own")

    def act(self, observation: Any, *, action_mask: Any = None, state: Any = None) -> "tuple[Any, Any]":
        """The action, as the environment takes it, and the next state.

        Args:
            observation: as the environment returns it.
            action_mask: 1 for each allowed option of each choice, 0 for the others, one choice after the other.
            state: from the last call; None at the start of an episode, and without a memory.

        Raises:
            ValueError: if an argument has another shape than the policy's, or is not finite.
        """
        outputs, state = self.outputs(observation, action_mask=action_mask, state=state)
        return self._action(outputs), state

    def outputs(self, observation: Any, *, action_mask: Any = None, state: Any = None) -> "tuple[Any, Any]":
        """The outputs of the network (logits, or means and log standard deviations), and the next state."""
        about = self.about
        row = self._row(observation)
        mask = None
        if about["mask_size"]:
            if action_mask is None:
                raise ValueError("this policy takes an action that a mask allows: pass action_mask=...")
            mask = self._numbers("action_mask", action_mask, about["mask_size"])
            row = np.concatenate((row, mask))
        elif action_mask is not None:
            raise ValueError("this policy was trained without masks: leave action_mask out")
        if "mean" in self._arrays:
            scale = np.float32(1.0) / np.sqrt(self._arrays["variance"] + np.float32(1e-8))
            row = np.clip((row - self._arrays["mean"]) * scale, -10.0, 10.0)
        if about["memory"]:
            size = about["state_size"]
            before = np.zeros(size, np.float32) if state is None else self._numbers("state", state, size)
            state = self._advanced(row, before)
            row = state[: about["memory_size"]]
            row = row if mask is None else np.concatenate((row, mask))
        elif state is not None:
            raise ValueError("this policy is not recurrent: leave state out")
        activate = np.tanh if about["activation"] == "tanh" else lambda numbers: np.maximum(numbers, 0.0)
        layers = [(self._arrays[f"weight_{i}"], self._arrays[f"bias_{i}"]) for i in range(about["num_layers"])]
        for weight, bias in layers[:-1]:
            row = activate(weight @ row + bias)
        features, (weight, bias) = row, layers[-1]
        row = weight @ features + bias
        if mask is not None:
            row[: len(mask)][mask == 0.0] = FORBIDDEN
        if "log_std" in self._arrays:
            row = np.concatenate((row, self._arrays["log_std"]))
        if "feature_log_std" in self._arrays:  # deviations of an exploration that depends on the state
            variance = np.exp(np.float32(2.0) * self._arrays["feature_log_std"]) @ (features * features)
            row = np.concatenate((row, np.float32(0.5) * np.log(variance + np.float32(1e-6))))
        return row, state

    def _row(self, observation: Any) -> Any:
        """All parts of an observation in order, choices one-hot."""
        row = []
        for part in self.about["inputs"]:
            if "keys" not in part:  # a mask or a state
                continue
            name, value, size = part["name"], observation, int(np.prod(part["shape"]))
            try:
                for key in part["keys"]:
                    value = value[_key(key)]
            except (IndexError, KeyError, TypeError):
                raise ValueError(f"the observation has no {name}, got {observation!r}") from None
            if "sizes" not in part:
                row.append(self._numbers(name, value, size))
                continue
            for number, options, first in zip(np.ravel(value), part["sizes"], part["first"], strict=True):
                if number - first not in range(options):
                    raise ValueError(f"{name} must be from {first} to {first + options - 1}, got {value}")
                row.append(np.eye(options, dtype=np.float32)[int(number) - first])
        return np.concatenate(row)

    def _numbers(self, name: str, value: Any, size: int) -> Any:
        array = np.asarray(value, np.float32).reshape(-1)
        if array.size != size:
            raise ValueError(f"{name} must have {size} numbers, got {array.size}")
        if not np.isfinite(array).all():  # the action would not be finite either
            raise ValueError(f"{name} must have finite numbers, got {array}")
        return array

    def _advanced(self, row: Any, state: Any) -> Any:
        """The state of the memory after a step."""
        arrays, size = self._arrays, self.about["memory_size"]
        of_row = arrays["weight_input"] @ row + arrays["bias"]
        of_state = arrays["weight_state"] @ state[:size]
        if self.about["memory"] == "lstm":
            gates = of_row + of_state
            let_in, keep, let_out = (_sigmoid(part) for part in np.split(gates[: 3 * size], 3))
            cell = keep * state[size:] + let_in * np.tanh(gates[3 * size :])
            return np.concatenate((let_out * np.tanh(cell), cell))
        reset, update = (_sigmoid(part) for part in np.split(of_row[: 2 * size] + of_state[: 2 * size], 2))
        new = np.tanh(of_row[2 * size :] + reset * (of_state[2 * size :] + arrays["bias_state"]))
        return new + update * (state - new)

    def _action(self, outputs: Any) -> Any:
        parts = enumerate(self.about["action"])
        return _joined(self.about["action_space"], iter([self._part(i, part, outputs) for i, part in parts]))

    def _part(self, number: int, part: "dict[str, Any]", outputs: Any) -> Any:
        own, space, arrays = outputs[part["start"] : part["stop"]], part["space"], self._arrays
        if part["kind"] == "choices":
            ends = np.cumsum(part["sizes"])
            best = [choice.argmax() for choice in np.split(own, ends[:-1])]
            dtype = space.get("dtype", "int8" if space["type"] == "MultiBinary" else "int64")
            # A single choice is a number, as gymnasium's spaces draw it: an array of no axis cannot be a key.
            return (np.asarray(best) + np.asarray(part["first"])).reshape(_shape_of(space)).astype(dtype)[()]
        mean = own.reshape(_shape_of(space))
        if part["squashed"]:
            mean = arrays[f"center_{number}"] + arrays[f"half_width_{number}"] * np.tanh(mean)
        bounded = np.asarray(np.clip(mean, arrays[f"low_{number}"], arrays[f"high_{number}"]))
        return (bounded if space["dtype"].startswith("float") else bounded.round()).astype(space["dtype"])


def _sigmoid(numbers: Any) -> Any:
    # By tanh: no exponential that overflows.
    return np.float32(0.5) * (np.tanh(np.float32(0.5) * numbers) + np.float32(1.0))


def _joined(space: "dict[str, Any]", parts: Any) -> Any:
    """An action of a space, from its parts in order."""
    if space["type"] == "Dict":
        return {_key(key): _joined(of_key, parts) for key, of_key in space["spaces"]}
    if space["type"] == "Tuple":
        return tuple(_joined(each, parts) for each in space["spaces"])
    return next(parts)


def _key(key: Any) -> Any:
    return tuple(map(_key, key)) if isinstance(key, list) else key


def _shape_of(space: "dict[str, Any]") -> Any:
    return space["shape"] if "shape" in space else np.shape(space.get("nvec", 0))
