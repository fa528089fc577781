"""Pretrained agents.

agent = hybridppo.pretrained("Hopper-v5")
hybridppo.evaluate_agent(agent, "Hopper-v5").return_mean
"""

import json
from importlib import resources
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from gymnasium.wrappers import TransformObservation

from hybridppo.agents.registry import AnyAgent
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.errors import ConfigurationError, meant_by
from hybridppo.evaluation import environments_for
from hybridppo.loading import load
from hybridppo.system.messages import markdown_table, shown_number

FOLDER = resources.files("hybridppo.tools") / "pretrained"
Card = dict[str, Any]
"""The model card of an agent: environment, settings, seed, versions, curve, evaluation, and the command to train it."""


def file_of(name: str, suffix: str) -> Any:
    """The file of an agent; ids such as `MinAtar/Breakout-v1` have a slash."""
    return FOLDER / f"{name.replace('/', '-')}{suffix}"


def cards() -> dict[str, Card]:
    """The cards of all agents, by name."""
    files = sorted((file for file in FOLDER.iterdir() if file.name.endswith(".json")), key=lambda file: file.name)
    found = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    return {card["name"]: card for card in found}


def card_of(name: str) -> Card:
    """The card of an agent.

    Raises:
        ConfigurationError: if there is no such agent.
    """
    every = cards()
    if not isinstance(name, str) or name not in every:
        near = meant_by(str(name), every)
        hint = f"; did you mean {near}?" if near else ""
        raise ConfigurationError(f"there is no trained agent {name!r}, but there are: {', '.join(every)}{hint}")
    return every[name]


def pretrained(name: str, *, env: EnvSource | None = None) -> AnyAgent:
    """A trained agent, on the CPU. It is part of the package: nothing is downloaded.

    Args:
        name: a name that `hybridppo agents` lists, usually the id of the environment.
        env: the environment that the agent will act in, an id or a function; None for the environment of its training.

    Raises:
        ConfigurationError: if there is no such agent.
        EnvError: if the environment cannot be made, or has other spaces than the agent.
    """
    card = card_of(name)
    with resources.as_file(file_of(name, ".safetensors")) as file:
        agent = load(file)
    options = EnvironmentOptions(env_kwargs=card["env_kwargs"] if env is None else None)
    environments_for(agent, card["env"] if env is None else env, 1, options).close()
    return agent


def table() -> str:
    """A table of all pretrained agents in Markdown."""
    heads = ("name", "return", "+-", "steps", "seed", "agent", "kB")
    return markdown_table(heads, [_line(name, card) for name, card in cards().items()])


def _line(name: str, card: Card) -> list[str]:
    returns = [shown_number(card["evaluation"][each]) for each in ("return_mean", "return_std")]
    memory = card["settings"].get("recurrent")
    agent = card["agent"] if memory is None else f"{card['agent']}, {memory}"
    size = len(file_of(name, ".safetensors").read_bytes())
    return [name, *returns, f"{card['total_steps']:,}", str(card["seed"]), agent, f"{size / 1000:.0f}"]


def places_alone(**options: Any) -> "gym.Env[Any, Any]":
    """CartPole with only the cart's position and the pole's angle as observation: balancing it needs a memory."""
    seen = Box(-np.inf, np.inf, (2,), np.float32)
    return TransformObservation(gym.make("CartPole-v1", **options), lambda observation: observation[[0, 2]], seen)
