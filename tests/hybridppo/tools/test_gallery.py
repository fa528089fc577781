"""Pretrained agents: each is complete, loads without a network connection, and acts in its environment."""

import socket
from itertools import count
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from toy_environments import newest

import hybridppo
from hybridppo.commands.main import main
from hybridppo.errors import ConfigurationError, EnvError
from hybridppo.system.signals import Stopped
from hybridppo.tools.gallery import card_of, cards, file_of

CARDS = cards()
PAGE = Path(__file__).parents[3] / "docs" / "gallery.md"
LARGEST = 300_000


def test_there_are_agents_of_many_kinds() -> None:
    assert len(CARDS) >= 20
    assert any(card["settings"].get("recurrent") for card in CARDS.values())
    assert any(card["env"].startswith(("pettingzoo", "mpe2")) for card in CARDS.values())


@pytest.mark.parametrize("name", CARDS)
def test_each_agent_loads_without_a_network(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a network is asked for")

    monkeypatch.setattr(socket, "socket", refuse)
    card, file = CARDS[name], file_of(name, ".safetensors")
    agent = hybridppo.load(file)
    assert not agent.config.compiled_updates  # Numba need not be there
    assert file.stat().st_size < LARGEST
    assert file_of(name, ".png").read_bytes().startswith(b"\x89PNG")
    assert card["evaluation"]["episodes"] == 100
    assert len(card["curve"]) > 5
    assert {"hybridppo", "torch", "gymnasium", "numpy", "python"} <= card["versions"].keys()
    assert f"`{name}`" in PAGE.read_text(encoding="utf-8")


@pytest.mark.extras
@pytest.mark.parametrize("name", CARDS)
def test_each_agent_acts_in_its_environment(name: str) -> None:
    card, steps = CARDS[name], count()
    agent = hybridppo.pretrained(name)
    with pytest.raises(Stopped):
        hybridppo.evaluate_agent(
            agent,
            card["env"],
            episodes=1000,
            env_kwargs=card["env_kwargs"],
            progress=False,
            should_stop=lambda: next(steps) == 20,
        )


def test_an_agent_reaches_what_its_card_says() -> None:
    agent = hybridppo.pretrained("CartPole-v1")
    evaluation = hybridppo.evaluate_agent(agent, "CartPole-v1", episodes=4, seed=1, progress=False)
    assert evaluation.return_mean == pytest.approx(CARDS["CartPole-v1"]["evaluation"]["return_mean"], rel=0.1)


def test_another_environment_is_refused() -> None:
    with pytest.raises(EnvError, match="observation_space"):
        hybridppo.pretrained("CartPole-v1", env="Acrobot-v1")


def test_an_environment_of_ones_own_takes_no_arguments_of_the_card() -> None:
    assert CARDS["CliffWalking-v1"]["env_kwargs"]
    agent = hybridppo.pretrained("CliffWalking-v1", env=lambda: gym.make(newest("CliffWalking")))
    assert agent.act(36) in range(4)


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigurationError, match="CartPole-v1"):
        hybridppo.pretrained("Chess-v0")
    with pytest.raises(ConfigurationError, match=r"did you mean CartPole-v1\?$"):
        hybridppo.pretrained("cartpole")
    names: Any = ["CartPole-v1"]
    with pytest.raises(ConfigurationError, match=r"there is no trained agent \['CartPole-v1'\], but there are: "):
        hybridppo.pretrained(names)


def test_the_command_lists_agents_and_shows_cards(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["agents"])
    listed = capsys.readouterr().out
    assert all(f"| {name} " in listed for name in CARDS)
    with pytest.raises(SystemExit, match="0"):
        main(["agents", "CartPole-v1"])
    assert '"return_mean": 500' in capsys.readouterr().out
    assert card_of("CartPole-v1")["command"].startswith("python scripts/pretrain.py")


def test_the_script_of_the_cards_draws_an_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pygame")
    image = pytest.importorskip("PIL.Image")
    from scripts import pretrain

    monkeypatch.setattr(pretrain, "file_of", lambda name, suffix: tmp_path / f"{name}{suffix}")
    pretrain.draw("CartPole-v1", pretrain.AGENTS["CartPole-v1"], hybridppo.pretrained("CartPole-v1"))
    with image.open(tmp_path / "CartPole-v1.png") as picture:
        assert picture.height == pretrain.HEIGHT
        assert picture.width > pretrain.FRAMES * pretrain.HEIGHT
