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

from hybridppo.agents.registry import name_of
from hybridppo.environments.options import EnvSource
from hybridppo.errors import ConfigurationError
from hybridppo.evaluation import environment_of, evaluate_agent, like_training
from hybridppo.loading import is_agent_file, load
from hybridppo.run_directory.directory import METRICS, RunDirectory, WhichCheckpoint, path_of
from hybridppo.run_directory.files import as_json, read_lines
from hybridppo.settings import Settings
from hybridppo.system.messages import shown_returns
from hybridppo.system.validation import require_bools
from hybridppo.tools.gallery import AGENT_FILE, CARD_FILE, Card, changed_settings, curve_of, reaching_hub, require_hub
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
    path = path_of(run_dir)
    if is_agent_file(path):
        raise ConfigurationError(f"{run_dir} is an agent's file: name its run, which the model card describes")
    directory = RunDirectory.open(path)
    agent = load(run_dir, checkpoint)
    source, options = environment_of(run_dir, env, env_kwargs)
    acting: dict[str, Any] = {"seed": seed, "deterministic": deterministic}
    found = evaluate_agent(agent, source, episodes=episodes, **acting, progress=False, **like_training(options))
    returns = {"return_mean": found.return_mean, "return_std": found.return_std}
    settings, lines = Settings.read(directory), read_lines(directory.path / METRICS)
    card: Card = {
        "name": name,
        "env": settings.env_id if env is None or not isinstance(env, str) else env,
        "env_kwargs": options.env_kwargs,
        "agent": name_of(agent.config),
        "total_steps": directory.load_checkpoint(checkpoint).env_steps,
        "seed": settings.seed,
        "settings": changed_settings(agent.config),
        "evaluation": {"episodes": episodes, **acting, **returns},
        "curve": curve_of(lines),
        "versions": directory.config["versions"],
    }
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        agent.save(folder / AGENT_FILE)
        (folder / CARD_FILE).write_text(as_json(card), encoding="utf-8")
        (folder / PAGE_FILE).write_text(page_of(card), encoding="utf-8")
        if video:
            play(run_dir, folder / VIDEO_FILE, checkpoint=checkpoint, env=env, env_kwargs=env_kwargs, **acting)
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
    from huggingface_hub import EvalResult, ModelCardData

    evaluation, kwargs = card["evaluation"], card["env_kwargs"]
    mean, deviation = evaluation["return_mean"], evaluation["return_std"]
    result = EvalResult(
        task_type="reinforcement-learning", task_name="reinforcement-learning", dataset_type=card["env"],
        dataset_name=card["env"], metric_type="mean_reward", metric_value=f"{mean:.2f} +/- {deviation:.2f}",
    )  # fmt: skip
    data = ModelCardData(
        library_name="hybridppo",
        tags=[card["env"], card["agent"], "reinforcement-learning", "deep-reinforcement-learning", "hybridppo"],
        model_name=card["agent"],
        eval_results=[result],
    )
    text = PAGE.read_text(encoding="utf-8").format(
        agent=card["agent"].upper(), env=card["env"], name=card["name"], episodes=evaluation["episodes"],
        returns=shown_returns(mean, deviation, evaluation["episodes"]).capitalize(), seed=evaluation["seed"],
        actions="deterministic" if evaluation["deterministic"] else "stochastic", steps=card["total_steps"],
        version=card["versions"]["hybridppo"], kwargs=f", env_kwargs={kwargs!r}" if kwargs else "",
        settings=as_json(card["settings"]),
    )  # fmt: skip
    return f"---\n{data.to_yaml()}\n---\n{text}"
