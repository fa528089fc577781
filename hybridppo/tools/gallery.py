"""Pretrained agents: those of the package, and those on the Hugging Face Hub, which `push_to_hub` puts there.

    agent = hybridppo.pretrained("Hopper-v5")
    hybridppo.evaluate_agent(agent, "Hopper-v5").return_mean
    hybridppo.push_to_hub("runs/first", "user/ppo-CartPole-v1")
    agent = hybridppo.pretrained("user/ppo-CartPole-v1")

A model on the Hub has safetensors, JSON, a page and a video. It needs huggingface_hub (the extra `hub`), which reads
the token of `hf auth login` or `HF_TOKEN`.
"""

import contextlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from gymnasium.wrappers import TransformObservation

from hybridppo.agents.policies import PoliciesConfig
from hybridppo.agents.registry import AnyAgent, AnyConfig, agent_class
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.errors import ConfigurationError, HybridPPOError, hint, is_installed, pip_install, shown, shown_error
from hybridppo.evaluation import environments_for, evaluate
from hybridppo.loading import load
from hybridppo.run_directory.directory import RunDirectory, WhichCheckpoint
from hybridppo.run_directory.files import as_json, read_object
from hybridppo.settings import Settings
from hybridppo.system.messages import markdown_table, shown_number
from hybridppo.system.validation import require_bools
from hybridppo.tools.play import play
from hybridppo.tools.report import VIDEO

FOLDER = resources.files("hybridppo.tools") / "pretrained"
AGENT_FILE, CARD_FILE = "agent.safetensors", "card.json"
PAGE_FILE, VIDEO_FILE = "README.md", "replay.mp4"
"""The files of a model on the Hub."""
PAGE = resources.files("hybridppo.tools") / "model_card.md"
"""The text of a model's page, with a name in braces for each part."""
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
        HybridPPOError: if the Hub has no such agent, or cannot be reached.
    """
    every = cards()
    if _is_on_hub(name):
        return read_object(downloaded(name, CARD_FILE).resolve()) or {}  # the cache has links
    if not isinstance(name, str) or name not in every:
        meant = hint(str(name), None, every)
        raise ConfigurationError(f"there is no trained agent {name!r}, but there are: {', '.join(every)}{meant}")
    return every[name]


def _is_on_hub(name: str) -> bool:
    return isinstance(name, str) and "/" in name and not file_of(name, ".json").is_file()


def pretrained(name: str, *, env: EnvSource | None = None, revision: str | None = None) -> AnyAgent:
    """A trained agent, on the CPU: of the package, or downloaded from the Hugging Face Hub.

    Args:
        name: a name that `hybridppo agents` lists, usually the id of the environment; or `USER/NAME` on the Hub (the
            extra `hub`), as `push_to_hub` has put it there.
        env: the environment that the agent will act in, an id or a function, whose spaces are compared with the
            agent's; None for the environment of its training. For an agent of the Hub, None makes no environment: its
            card is a stranger's, and may name any function.
        revision: a branch, tag or commit of the model on the Hub.

    Raises:
        ConfigurationError: if there is no such agent, or huggingface_hub is not installed.
        EnvError: if the environment cannot be made, or has other spaces than the agent.
        HybridPPOError: if the Hub has no such agent, or cannot be reached.
    """
    options = EnvironmentOptions()
    if _is_on_hub(name):
        agent = load(downloaded(name, AGENT_FILE, revision))
    else:
        card = card_of(name)
        with resources.as_file(file_of(name, ".safetensors")) as file:
            agent = load(file)
        if env is None:
            env, options = card["env"], EnvironmentOptions(env_kwargs=card["env_kwargs"])
    if env is not None:
        environments_for(agent, env, 1, options).close()
    return agent


def downloaded(name: str, file: str, revision: str | None = None) -> Path:
    """A file of a model on the Hub, in huggingface_hub's cache.

    Raises:
        ConfigurationError: if huggingface_hub is not installed, or this is no name of a model.
        HybridPPOError: if there is no such file, or the Hub cannot be reached.
    """
    require_hub(name)
    with reaching_hub(name):
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(name, file, revision=revision, library_name="hybridppo"))


def require_hub(name: str) -> None:
    """Refuse what is no name of a model on the Hub, or a missing package.

    Raises:
        ConfigurationError: naming it.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise ConfigurationError(f"the name must be USER/NAME of a model on the Hugging Face Hub, got {shown(name)}")
    if not is_installed("huggingface_hub"):
        raise ConfigurationError(f"the Hugging Face Hub needs huggingface_hub: {pip_install('hub')}")


@contextlib.contextmanager
def reaching_hub(name: str) -> Iterator[None]:
    """A context in which an error of the Hub's client names the model and the remedy."""
    try:
        yield
    except Exception as error:
        raise HybridPPOError(
            f"the Hugging Face Hub, model {name}: {shown_error(error).splitlines()[0].rstrip('.')}. Check the name; "
            "private models and uploads need a token (hf auth login, or HF_TOKEN)"
        ) from error


def push_to_hub(
    run_dir: str | Path,
    name: str,
    *,
    checkpoint: WhichCheckpoint = "latest",
    episodes: int = 20,
    seed: int = 0,
    deterministic: bool = True,
    env: EnvSource | None = None,
    env_kwargs: dict[str, Any] | None = None,
    video: bool = False,
    private: bool = False,
) -> str:
    """Evaluate the agent of a run, and put it on the Hugging Face Hub with a model card; returns the page's address.

    Files of this name that are there already are replaced; the Hub keeps their history. The card has no paths, hosts or
    command lines of the run.

    Args:
        run_dir: the run directory.
        name: `USER/NAME` of the model; made if it does not exist.
        checkpoint: as for `hybridppo.load`.
        episodes: number of episodes of the evaluation.
        seed: seed of the evaluation.
        deterministic: take deterministic actions in the evaluation and the video.
        env: as for `hybridppo.evaluate`.
        env_kwargs: as for `hybridppo.evaluate`.
        video: record an episode as the page's video. Otherwise, `video.mp4` of the run directory is taken if it exists.
        private: make a new model private.

    Raises:
        ConfigurationError: if huggingface_hub is not installed, or an argument is invalid.
        HybridPPOError: if the Hub refuses it or cannot be reached.
        RunDirectoryError: if `run_dir` is no run directory.
    """
    require_hub(name)
    require_bools(video=video, private=private)
    directory, agent = RunDirectory.open(run_dir), load(run_dir, checkpoint)
    settings = Settings.read(directory)
    acting: dict[str, Any] = {"checkpoint": checkpoint, "seed": seed, "deterministic": deterministic}
    acting |= {"env": env, "env_kwargs": env_kwargs}
    found = evaluate(run_dir, episodes=episodes, progress=False, **acting)
    card: Card = {
        "name": name,
        "env": env if isinstance(env, str) else settings.env_id,
        "env_kwargs": settings.environment.env_kwargs if env_kwargs is None else env_kwargs,
        "agent": agent_class(agent.config).name,
        "total_steps": directory.load_checkpoint(checkpoint).env_steps,
        "seed": settings.seed,
        "settings": changed_settings(agent.config),
        "evaluation": {
            "episodes": episodes, "seed": seed, "deterministic": deterministic, "return_mean": found.return_mean,
            "return_std": found.return_std,
        },
        "versions": directory.config["versions"],
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        agent.save(folder / AGENT_FILE)
        (folder / CARD_FILE).write_text(as_json(card), encoding="utf-8")
        (folder / PAGE_FILE).write_text(page_of(card), encoding="utf-8")
        if video:
            play(run_dir, folder / VIDEO_FILE, **acting)
        elif (directory.path / VIDEO).is_file():
            shutil.copyfile(directory.path / VIDEO, folder / VIDEO_FILE)
        with reaching_hub(name):
            from huggingface_hub import HfApi

            api = HfApi(library_name="hybridppo")
            address = api.create_repo(name, private=private or None, exist_ok=True)
            api.upload_folder(repo_id=name, folder_path=folder, commit_message="Add the agent")
    return str(address)


def page_of(card: Card) -> str:
    """The model card that the Hub shows, with the metadata that it searches."""
    actions = "deterministic" if card["evaluation"]["deterministic"] else "stochastic"
    parts = {**card, **card["evaluation"], "actions": actions, "version": card["versions"]["hybridppo"]}
    parts |= {"env": as_json(card["env"]).rstrip(), "settings": as_json(card["settings"])}
    return PAGE.read_text(encoding="utf-8").format_map(parts)


def changed_settings(config: AnyConfig) -> dict[str, Any]:
    """The settings that differ from the defaults, for a card."""
    usual = {} if isinstance(config, PoliciesConfig) else type(config)().to_json()
    return {key: value for key, value in config.to_json().items() if value != usual.get(key, ...)}


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
