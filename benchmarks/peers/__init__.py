"""PPO of other libraries on the cases of `cases.py`, a file for each. They do not need this library.

`turn.py` runs one. `run(case, checkouts)` returns what `cases.work_done` does, or why the library cannot take the case.
"""

import importlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from cases import Case

TURNS = {
    "stable-baselines3": "sb3",
    "sb3-contrib": "sb3_contrib",
    "SBX": "sbx",
    "CleanRL": "cleanrl",
    "LeanRL": "leanrl",
    "skrl": "skrl",
    "Tianshou": "tianshou",
    "TorchRL": "torchrl",
    "RLlib": "rllib",
    "Sample Factory": "sample_factory",
    "rsl_rl": "rsl_rl",
    "rl_games": "rl_games",
    "PufferLib": "pufferlib",
    "PureJaxRL": "purejaxrl",
}
"""The libraries that are measured, and the files of their turns."""
GAMES = ("stable-baselines3", "rl_games")
"""Those whose turns preprocess Atari games."""


def run(name: str, case: Case, checkouts: Path | None = None) -> dict[str, Any]:
    """A turn of a library, on one torch thread. `checkouts` is the argument of `turn.py`."""
    if case.env_id.startswith("ALE/") and name not in GAMES:
        return {"left_out": "its turn does not preprocess Atari games"}
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found: dict[str, Any] = importlib.import_module(f"peers.{TURNS[name]}").run(case, checkouts)
    return found


def network(case: Case, space: gym.Space[Any], outputs: int) -> torch.nn.Sequential:
    """The case's network from a space's observations, flat or images of [H, W, C] bytes, to this many outputs."""
    assert space.shape is not None
    layers: list[torch.nn.Module] = [_Numbers(case.has_images)]
    inputs = space.shape[0]
    if case.has_images:
        for before, after, kernel, stride in ((space.shape[-1], 32, 8, 4), (32, 64, 4, 2), (64, 64, 3, 1)):
            layers += [torch.nn.Conv2d(before, after, kernel, stride), torch.nn.ReLU()]
        layers.append(torch.nn.Flatten())
        inputs = torch.nn.Sequential(*layers)(torch.zeros(1, *space.shape)).shape[-1]
    for before, after in pairwise((inputs, *case.hidden_sizes)):
        layers += [torch.nn.Linear(before, after), torch.nn.ReLU() if case.has_images else torch.nn.Tanh()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(case.hidden_sizes[-1], outputs))


class _Numbers(torch.nn.Module):
    """Observations as float32; bytes of images, [..., H, W, C], as numbers from 0 to 1 of [..., C, H, W]."""

    def __init__(self, has_images: bool) -> None:
        super().__init__()
        self.has_images = has_images

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        return seen.movedim(-1, -3).float() / 255 if self.has_images else seen.float()
