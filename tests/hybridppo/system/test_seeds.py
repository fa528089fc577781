"""Each owner of random numbers has a seed of its own, derived from the run's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Discrete
from ppo_settings import ppo_config
from toy_environments import ScriptedEnv

import hybridppo
from hybridppo.errors import EnvStateError
from hybridppo.run_directory.checkpoints import folders, load

CONFIG = ppo_config(num_envs=4, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))


class Noted(ScriptedEnv):
    """Notes its seeds and its actions; its state cannot be saved."""

    seeds: list[int] = []  # noqa: RUF012 - of all that are made
    made: list["Noted"] = []  # noqa: RUF012 - likewise

    def __init__(self) -> None:
        super().__init__(((20, "terminated"),), Discrete(2))
        self.made.append(self)

    def get_state(self) -> Any:
        raise EnvStateError("it has a world of its own")

    def set_state(self, state: Any) -> None: ...

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self.seeds.append(seed)
        return super().reset(seed=seed)


@pytest.fixture(autouse=True)
def nothing_noted() -> None:
    Noted.seeds.clear()
    Noted.made.clear()


def noted() -> list[int]:
    """The seeds since the last call."""
    seeds = [*Noted.seeds]
    Noted.seeds.clear()
    return seeds


def train(seed: int, **options: Any) -> hybridppo.TrainResult:
    options = {"total_steps": CONFIG.batch_size, "placement": "cpu", "config": CONFIG, "progress": False} | options
    return hybridppo.train(Noted, seed=seed, **options)


def test_environments_take_neighbouring_seeds_and_runs_do_not() -> None:
    everything: list[int] = []
    for seed in range(6):
        train(seed)
        first, *others = noted()
        assert others == [first + 1, first + 2, first + 3]
        everything += [first, *others]
    assert len(set(everything)) == len(everything)


def test_a_seed_decides_the_noise() -> None:
    def actions(seed: int) -> np.ndarray:
        Noted.made.clear()
        train(seed)
        return np.array([env.actions for env in Noted.made if env.actions])

    first, again, other = actions(1), actions(1), actions(2)
    assert first.shape == (CONFIG.num_envs, CONFIG.num_steps)
    np.testing.assert_array_equal(first, again)
    # A fresh actor hardly prefers any action: with one noise, nearly all of them would be the same.
    assert 0.25 < (first == other).mean() < 0.75


def test_no_owner_has_the_seed_of_another(tmp_path: Path) -> None:
    train(0, run_dir=tmp_path / "run", evaluation_episodes=4)
    of_environments = noted()
    assert len(of_environments) == len(set(of_environments)) == 8  # in training, and in the evaluation after it
    state = load(folders(tmp_path / "run" / "checkpoints")[0]).state

    def increment(generator: Any) -> int:
        """What depends only on the seed, however much is drawn."""
        return generator["state"]["inc"]

    generators = [np.random.default_rng(seed).bit_generator.state for seed in (0, *of_environments)]
    generators += [state["sampler"]["noise"], state["agent"]["order"]]
    assert len(set(map(increment, generators))) == 1 + 8 + 2


def test_environments_that_start_anew_do_so_from_seeds_they_never_had(tmp_path: Path) -> None:
    """The episodes of a resumed run must not be those that it has already learned from."""
    train(0, run_dir=tmp_path / "run")
    seeds = noted()
    for times in range(2, 5):
        hybridppo.resume(tmp_path / "run", total_steps=times * CONFIG.batch_size, env=Noted, progress=False)
        resumed = noted()[-CONFIG.num_envs :]  # made and reset as at the start, before their state is looked for
        assert not set(resumed) & set(seeds)
        seeds += resumed


def test_a_run_resumed_twice_from_one_checkpoint_goes_on_alike(tmp_path: Path) -> None:
    train(0, run_dir=tmp_path / "run")
    resumed = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        for path in (tmp_path / "run").rglob("*"):
            target = tmp_path / name / path.relative_to(tmp_path / "run")
            target.mkdir() if path.is_dir() else target.write_bytes(path.read_bytes())
        noted()
        hybridppo.resume(tmp_path / name, total_steps=2 * CONFIG.batch_size, env=Noted, progress=False)
        resumed.append(noted())
    assert resumed[0] == resumed[1]
