"""A parameter server and its learners: with one learner the bits of one process, and the effects of a lost one."""

import json
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from clusters import shared_cluster
from failing import failing, killed, raising, silent
from learner_kinds import KINDS
from ppo_settings import ppo_config
from run_files import lines_of
from same_bits import counted, values_of
from short_runs import trainer
from stop_after import interrupt_at
from torch import Tensor
from toy_agents import Matching, TakingTurns

import hybridppo
from hybridppo import Central, DistributedError
from hybridppo.errors import CallbackError
from hybridppo.run_directory.directory import RunDirectory

pytest.importorskip("ray")

CONFIG = ppo_config(num_envs=4, num_steps=32, num_epochs=3, num_minibatches=2, hidden_sizes=(8, 8), learning_rate=1e-3)
STEPS = 4 * 32 * 4
train = trainer(CONFIG, STEPS)
pytestmark = [pytest.mark.extras, pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")]
OF_CENTRAL = {"learner", "gradient_lag_mean", "gradient_lag_max", "gradient_waits"}


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> None:
    shared_cluster()


def test_learners_take_settings_that_a_callback_changes() -> None:
    class Changing(hybridppo.Callback):
        def on_iteration(self, run: Any, metrics: Any) -> None:
            run.agent.config = replace(run.agent.config, entropy_coef=0.5, gamma=0.5)

    options: dict[str, Any] = {"callbacks": Changing(), "total_steps": 256, "vectorization": "sync"}
    assert torch.equal(values_of(train(distributed=Central(1), **options)), values_of(train(**options)))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("rows", "gru") else pytest.mark.slow)
        for name, kind in KINDS.items()
        if not {"pool_size", "compiled_updates"} & kind.config.keys()  # which it cannot have
    ],
)
def test_one_learner_without_lag_gives_the_bits_of_one_process(name: str) -> None:
    """Annealing, target_kl and episodes are as in one process; an early end comes at the same epoch."""
    config = replace(
        CONFIG, anneal_clip_range=True, target_kl=1e-4, normalize_observations=True, normalize_rewards=True,
        **KINDS[name].config,
    )  # fmt: skip
    alone = train(config=config, vectorization="sync", **KINDS[name].options)
    served = train(config=config, distributed=Central(1, max_lag=0), **KINDS[name].options)
    assert torch.equal(values_of(served), values_of(alone))
    for name, part in served.agent.normalization.parts.items():
        expected = alone.agent.normalization.parts[name].moments
        assert part.moments.count == expected.count == STEPS
        assert torch.equal(part.moments.mean, expected.mean)
        assert torch.equal(part.moments.variance, expected.variance)
    assert {name: value for name, value in counted(served.metrics).items() if name not in OF_CENTRAL} == counted(
        alone.metrics
    )
    assert served.metrics["gradient_lag_max"] == served.metrics["gradient_waits"] == 0


def test_one_learner_of_agents_that_take_turns_normalises_rewards_as_one_process() -> None:
    options: dict[str, Any] = {"config": replace(CONFIG, normalize_rewards=True), "total_steps": 4 * STEPS}
    alone, served = (
        train(lambda: TakingTurns(Matching()), distributed=distributed, **options)
        for distributed in ("local", Central(1, max_lag=0))
    )
    assert torch.equal(values_of(served), values_of(alone))


def test_environments_of_learners_are_out_of_reach_of_callbacks() -> None:
    class Steering(hybridppo.Callback):
        def on_start(self, run: Any) -> None:
            run.environments.set("gravity", 1.0)

    said = r"cannot reach those of learners of a server of parameters: use distributed='local' or 'multi'"
    with pytest.raises(CallbackError, match=said):
        train(distributed="central:1", callbacks=Steering())


def test_several_learners_have_a_memory_each_and_their_run_goes_on_locally(tmp_path: Path) -> None:
    config = replace(CONFIG, **KINDS["gru"].config)
    train(config=config, distributed="central:2", run_dir=tmp_path / "run", on_iteration=interrupt_at(3))
    for distributed, steps in (("local", STEPS), ("central:2", 2 * STEPS)):
        result = hybridppo.resume(tmp_path / "run", distributed=distributed, total_steps=steps, progress=False)
        assert result.metrics["env_steps"] >= steps


@pytest.mark.parametrize("max_lag", [0, 1, 3])
def test_gradients_are_no_older_than_was_allowed_and_each_learner_learns_its_share(
    max_lag: int, tmp_path: Path
) -> None:
    lines: list[dict[str, Any]] = []
    result = train(
        distributed=Central(2, max_lag), total_steps=3 * STEPS, on_iteration=lines.append, run_dir=tmp_path / "run"
    )
    assert result.metrics["env_steps"] == 3 * STEPS
    assert [line["env_steps"] for line in lines] == [64 * (i + 1) for i in range(len(lines))]
    assert {line["learner"] for line in lines} == {0, 1}
    assert all(0 <= line["gradient_lag_mean"] <= line["gradient_lag_max"] <= max_lag for line in lines)
    assert all(line["policy_lag"] >= 0 for line in lines)
    if max_lag == 0:
        assert any(line["gradient_waits"] for line in lines)
    else:
        assert any(line["gradient_lag_max"] for line in lines)
    assert lines[-1]["episodes"] > 0
    assert json.loads((tmp_path / "run" / "config.json").read_text())["distributed"] == f"central:2:{max_lag}"


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (
            killed,
            r"learner [01] \(environments [02] to [13]\), process \d+ of \S+ is lost: ActorDiedError.*hybridppo resume",
        ),
        pytest.param(
            silent, r"learner [01] .* has made no step for 8 s, after \d+ of its rollout", marks=pytest.mark.slow
        ),
    ],
)
def test_a_lost_learner_is_one_error_and_what_was_saved_goes_on_locally(
    what: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(DistributedError, match=message):
        train(failing(what), distributed=Central(2), run_dir=tmp_path / "run", worker_timeout=8.0)
    result = hybridppo.resume(
        tmp_path / "run", env=lambda: gym.make("CartPole-v1"), distributed="local", progress=False
    )
    assert result.metrics["env_steps"] == STEPS


def test_an_error_of_an_environment_is_told_with_its_learner(tmp_path: Path) -> None:
    with pytest.raises(DistributedError, match=r"learner [01] .* failed: .*environment \d .*no more of this"):
        train(failing(raising, tmp_path / "mark"), distributed=Central(2))


def test_a_training_that_diverges_ends_and_saves_nothing_of_it(tmp_path: Path) -> None:
    config = replace(CONFIG, learning_rate=1e30, max_grad_norm=1e30)
    with pytest.raises(hybridppo.TrainingError, match=r"learner [01] .*finite.*learning_rate is 1e\+30"):
        train(config=config, distributed=Central(2), run_dir=tmp_path / "run", checkpoint_seconds=0.0)
    assert hybridppo.load(tmp_path / "run").parameters.values.isfinite().all()


def saved_optimizer(run: Path) -> dict[str, Tensor]:
    tensors = RunDirectory.open(run).load_checkpoint("latest").tensors
    return {name: tensor for name, tensor in tensors.items() if name.startswith("optimizer.")}


def test_what_is_saved_is_what_the_server_has_and_goes_on_wherever_it_is_resumed(tmp_path: Path) -> None:
    run = tmp_path / "run"

    stopped = train(distributed="central:2", run_dir=run, on_iteration=interrupt_at(3))
    assert stopped.interrupted
    assert stopped.saved
    assert torch.equal(hybridppo.load(run).parameters.values, stopped.agent.parameters.values)
    slots = stopped.agent.optimizer.state[stopped.agent.parameters.values]
    assert all(torch.equal(saved_optimizer(run)[f"optimizer.{name}"], slot) for name, slot in slots.items())
    # Learner 0's or 1's first rollouts: each has 3 epochs of one minibatch.
    assert float(slots["step"]) >= 9

    options = {"progress": False, "on_interrupt": "return"}
    again = hybridppo.resume(run, on_iteration=interrupt_at(5), **options)
    assert again.metrics["iteration"] == 5
    assert again.metrics["env_steps"] == 5 * 64
    steps = float(again.agent.optimizer.state[again.agent.parameters.values]["step"])
    assert steps >= float(slots["step"]) + 6
    local = hybridppo.resume(run, distributed="local", on_iteration=interrupt_at(6), **options)
    assert local.metrics["env_steps"] == 5 * 64 + 128
    assert float(local.agent.optimizer.state[local.agent.parameters.values]["step"]) == steps + 6
    last = hybridppo.resume(run, distributed="central:2", **options)
    assert last.metrics["env_steps"] >= STEPS
    assert not last.interrupted
    lines = lines_of(run)
    assert [line["iteration"] for line in lines] == list(range(1, len(lines) + 1))


def test_a_rollout_that_another_distribution_had_not_learned_from_is_sampled_again(tmp_path: Path) -> None:
    stops: list[int] = []

    class Stopping(hybridppo.PPO):
        def update(self, rollout: Any) -> Any:
            if self.version == 2 and not stops:
                stops.append(1)
                signal.raise_signal(signal.SIGTERM)
            return super().update(rollout)

    local = train(run_dir=tmp_path / "run", agent=Stopping, vectorization="sync")
    assert local.interrupted
    assert local.metrics["env_steps"] == 2 * 128
    result = hybridppo.resume(tmp_path / "run", distributed="central:1:0", agent=Stopping, progress=False)
    lines = lines_of(tmp_path / "run")
    assert [line["env_steps"] for line in lines] == [128, 256, 384, 512]
    assert result.metrics["env_steps"] == STEPS


class Target(gym.Env[np.ndarray, int]):
    """The right action is the sign of the only number; each right one is rewarded by 1, in episodes of 8 steps."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._next(), {}

    def _next(self) -> Any:
        self._number = self.np_random.uniform(-1.0, 1.0)
        return np.array([self._number], np.float32)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(action == (self._number > 0.0))
        self._steps += 1
        return self._next(), reward, self._steps == 8, False, {}


def test_frozen_parameters_stay() -> None:
    env = gym.make("CartPole-v1")
    agent = hybridppo.PPO(env.observation_space, gym.spaces.Discrete(2), CONFIG)
    agent.critic.requires_grad_(False)
    before = agent.parameters.values.detach().clone()
    train(agent=agent, config=None, distributed=Central(1), total_steps=CONFIG.batch_size)
    moved = agent.parameters.values.detach() != before
    assert moved[agent.parameters.range_of("actor")].any()
    assert not moved[agent.parameters.range_of("critic")].any()


def test_several_learners_learn_what_one_does() -> None:
    config = replace(CONFIG, num_steps=64, learning_rate=1e-2)
    result = train(Target, distributed="central:2", total_steps=12_000, config=config)
    assert result.metrics["episode_return_mean"] > 7.5
