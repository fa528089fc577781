"""Puts agents on the Hugging Face Hub, from where `pretrained` takes them: safetensors, JSON, a page and a video.

    hybridppo.push_to_hub("runs/first", "user/ppo-CartPole-v1")
    agent = hybridppo.pretrained("user/ppo-CartPole-v1")

Needs huggingface_hub (the extra `hub`), which also reads the token: `hf auth login`, or `HF_TOKEN`.
"""

import shutil
import tempfile
from importlib import resources
from pathlib import Path
from typing import Any

from hybridppo.agents.registry import agent_class
from hybridppo.environments.options import EnvSource
from hybridppo.evaluation import evaluate
from hybridppo.loading import load
from hybridppo.run_directory.directory import RunDirectory, WhichCheckpoint
from hybridppo.run_directory.files import as_json
from hybridppo.settings import Settings
from hybridppo.system.validation import require_bools
from hybridppo.tools.gallery import AGENT_FILE, CARD_FILE, Card, changed_settings, reaching_hub, require_hub
from hybridppo.tools.play import play
from hybridppo.tools.report import VIDEO

PAGE_FILE, VIDEO_FILE = "README.md", "replay.mp4"
PAGE = resources.files("hybridppo.tools") / "model_card.md"
"""The text of a model's page, with a name in braces for each part."""


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
