"""Training in batched environments: how they are passed, what is refused, what a resumed run does."""

import logging
import sys
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from everywhere import MIRRORED, WAYS
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from gymnasium.vector import SyncVectorEnv
from ppo_settings import ppo_config
from run_files import remove_last_checkpoint
from same_bits import assert_same_agents
from selection import only_by_default
from stop_after import interrupt_at_call
from tensor_environments import Broken, Forgetful, Grouped, Guessing, ScriptedTensors

import hybridppo
import hybridppo.tensors
from hybridppo import ConfigurationError, EnvError, Migrating, Mirrored, MultiLearner, PPOConfig, SingleDevice
from hybridppo.distributions.categorical import Categorical
from hybridppo.environments.tensors import TensorEnvironments
from hybridppo.environments.torch_cartpole import TorchCartPole
from hybridppo.run_directory.checkpoints import load_latest
from hybridppo.runners.device_sampler import TensorSampler
from hybridppo.tensors import RslRlVecEnv
from hybridppo.tools.numpy_policy import Policy

SMALL = ppo_config(num_envs=4, num_steps=8, num_epochs=2, num_minibatches=2, hidden_sizes=(8,))


def train(env: Any, config: PPOConfig = SMALL, iterations: int = 4, **options: Any) -> Any:
    arguments: dict[str, Any] = {"seed": 3, "progress": False, "on_interrupt": "return", **options}
    return hybridppo.train(env, total_steps=iterations * config.batch_size, config=config, **arguments)


# How they are given


def test_an_instance_a_function_and_a_class_are_the_same() -> None:
    instance = TorchCartPole(4)
    closed: list[bool] = []
    instance.close = lambda: closed.append(True)  # type: ignore[attr-defined]
    made: list[Any] = []

    class Closing(TorchCartPole):
        def close(self) -> None:
            made.append(self)

    agents = [
        train(env, **options).agent
        for env, options in (
            (instance, {}),
            (lambda: TorchCartPole(4), {}),
            (TorchCartPole, {}),
            (partial(TorchCartPole, device="cpu"), {}),
            (Closing, {"env_kwargs": {"num_envs": 4, "device": "cpu"}}),
        )
    ]
    for agent in agents[1:]:
        assert_same_agents(agent, agents[0])
    assert closed == []  # it is whoever's who made it
    assert len(made) == 1


def test_another_number_of_environments_is_an_error() -> None:
    with pytest.raises(EnvError, match="TorchCartPole has 3 environments, but num_envs is 4: make them equal"):
        train(TorchCartPole(3))


def test_what_is_no_environment_says_what_is() -> None:
    inner = Groups(4, ("actor", "critic"), BOX, BOX, is_finite=False)
    with pytest.raises(
        EnvError, match=r"must have a space of gymnasium as its .*, and has namespace.* of types: .* IsaacLab and Mjlab"
    ):
        train(inner)
    with pytest.raises(ConfigurationError, match=r"a function that makes one, or a batched environment, got 3"):
        train(3)
    with pytest.raises(ConfigurationError, match=r"a function that makes one, .* got SyncVectorEnv\(num_envs=2\)$"):
        train(SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2))


KINDS = {
    "numbers": (Box(-1.0, 1.0, (2, 2)), Box(-1.0, 1.0, (3,))),
    "a choice": (Discrete(3, start=1), Discrete(3, start=-1)),
    "choices": (MultiDiscrete([2, 3]), MultiDiscrete([2, 3])),
    "parts": (Dict(a=Box(-1.0, 1.0, (2,)), b=Discrete(2)), Tuple((Discrete(2), Box(-1.0, 1.0, (2,))))),
    "an image": (Box(0, 255, (6, 6, 1), np.uint8), Discrete(2)),
    "an image and numbers": (Dict(eye=Box(0, 255, (6, 6, 1), np.uint8), arm=Box(-1.0, 1.0, (2,))), Discrete(2)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_space_is_trained_and_evaluated_in(kind: str) -> None:
    observation, action = KINDS[kind]
    env = Guessing(4, observation, action)
    result = train(env, replace(SMALL, normalize_observations=True), iterations=2, evaluation_episodes=4)
    assert result.metrics["episode_length_mean"] == 4.0
    assert result.evaluation.returns == (4.0,) * 4
    for taken in env.actions:  # those of the evaluation among them
        for i in range(4):
            one = _taken(taken, i)
            assert action.contains(one), one


def _taken(actions: Any, i: int) -> Any:
    """The `i`-th member of a batch, in the form of its space."""
    if isinstance(actions, dict):
        return {key: _taken(part, i) for key, part in actions.items()}
    if isinstance(actions, tuple):
        return tuple(_taken(part, i) for part in actions)
    number = actions[i].numpy()
    return number if number.ndim else number[()]


@pytest.mark.parametrize("recurrent", ["lstm", "gru"])
def test_actors_with_a_memory_learn_what_their_states_say(recurrent: Any) -> None:
    # Ratios of the first minibatch are 1 only where the states of the rollout are those that the update starts from.
    config = replace(
        SMALL, recurrent=recurrent, recurrent_size=4, sequence_length=3, num_epochs=1, num_minibatches=1,
        fast_updates=False,
    )  # fmt: skip
    history: list[Any] = []
    make = partial(TorchCartPole, episode_length=5)
    result = train(make, config, on_iteration=history.append, evaluation_episodes=4)
    assert result.evaluation.lengths == (5,) * 4
    assert [abs(metrics["approx_kl"]) < 1e-6 for metrics in history] == [True] * 4
    assert [metrics["clip_fraction"] for metrics in history] == [0.0] * 4


def test_rewards_are_clipped_where_they_are_learned_from() -> None:
    class Rich(TorchCartPole):
        def step(self, actions: Any) -> Any:
            observations, rewards, *others = super().step(actions)
            return observations, 50.0 * rewards, *others

    plain = train(partial(TorchCartPole, episode_length=7))
    clipped = train(partial(Rich, episode_length=7), clip_rewards=True)
    assert_same_agents(plain.agent, clipped.agent)
    assert clipped.metrics["episode_return_mean"] == 50.0 * plain.metrics["episode_return_mean"]


def test_a_training_in_tensors_is_profiled(tmp_path: Path) -> None:
    train(TorchCartPole, iterations=8, run_dir=tmp_path / "run", profile=True)
    trace = (tmp_path / "run" / "trace.json").read_text()
    assert all(f'"{region}"' in trace for region in ("iteration", "sampling: begin", "sampling: finish", "learning"))


def test_evaluation_needs_an_environment_of_its_own_meanwhile() -> None:
    with pytest.raises(ConfigurationError, match="evaluate_every needs environments of its own, and TorchCartPole is"):
        train(TorchCartPole(4), evaluate_every=32)
    result = train(TorchCartPole, evaluate_every=32, episodes_per_evaluation=4, evaluation_episodes=4)
    assert len(result.evaluation.returns) == 4
    plain = train(TorchCartPole)
    assert_same_agents(result.agent, plain.agent)  # whom nobody has looked at


def test_an_agent_is_evaluated_and_loaded_by_itself(tmp_path: Path) -> None:
    result = train(TorchCartPole, run_dir=tmp_path / "run")
    evaluation = hybridppo.evaluate(tmp_path / "run", env=TorchCartPole, episodes=6, progress=False)
    assert evaluation == hybridppo.evaluate_agent(result.agent, TorchCartPole, episodes=6, progress=False)
    assert len(evaluation.returns) == 6
    assert hybridppo.load(tmp_path / "run").act(np.zeros(4, np.float32)) in (0, 1)


def test_an_evaluation_takes_as_many_environments_as_there_are(tmp_path: Path) -> None:
    agent = train(TorchCartPole(4), run_dir=tmp_path / "run").agent
    for make in (
        lambda: TorchCartPole(3),
        TorchCartPole(3),
        lambda: SyncVectorEnv([partial(gym.make, "CartPole-v1")] * 3),
    ):
        evaluation = hybridppo.evaluate(tmp_path / "run", env=make, episodes=7, progress=False)
        assert len(evaluation.returns) == 7
        assert evaluation == hybridppo.evaluate_agent(agent, make, episodes=7, progress=False)
    with pytest.raises(EnvError, match="has 3 environments, but num_envs is 4: make them equal"):
        train(TorchCartPole(3))


def test_auto_takes_the_device_of_the_environments(
    second_device: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with caplog.at_level(logging.INFO, "hybridppo"):
        result = train(partial(TorchCartPole, device="second"), run_dir=tmp_path / "run")
    assert str(result.agent.parameters.values.device) == second_device
    assert "placement auto: second:0, where the environments' tensors are" in caplog.text


# What is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_workers": 2}, "num_workers=2 does not work with batched environments"),
        ({"placement": Mirrored("cpu", "cpu", max_lag=1)}, "max_lag=1 does not work with batched environments"),
        ({"vectorization": "sync"}, "vectorization='sync' does not work with batched environments"),
        ({"autoreset_mode": "next_step"}, "autoreset_mode='next_step' does not work"),
        ({"on_env_error": "restart"}, "on_env_error='restart' does not work"),
        ({"action_masks": True}, "action_masks=True does not work"),
        (
            {"distributed": MultiLearner(2), "placement": Mirrored("cpu", "cpu", max_lag=1)},
            "max_lag=1 does not work with batched environments",
        ),
        (
            {"config": ppo_config(num_envs=1, episodes_per_rollout=2), "env_kwargs": {"num_envs": 1}},
            "episodes_per_rollout=2 does not work",
        ),
        ({"config": hybridppo.TD3Config(num_envs=4)}, "a TD3 does not work with batched environments"),
    ],
)
def test_what_environments_of_tensors_cannot_have_is_refused(options: dict[str, Any], message: str) -> None:
    arguments = {"config": SMALL, "total_steps": 64, "progress": False, **options}
    continuous = partial(Guessing, observation=KINDS["numbers"][0], action=KINDS["numbers"][1])
    env = continuous if isinstance(arguments["config"], hybridppo.TD3Config) else TorchCartPole
    with pytest.raises(ConfigurationError, match=message):
        hybridppo.train(env, **arguments)


def test_arguments_for_an_environment_that_is_made_already_are_refused() -> None:
    made = TorchCartPole(SMALL.num_envs)
    with pytest.raises(ConfigurationError, match=r"env_kwargs=.* does not work with .*TorchCartPole"):
        hybridppo.train(made, config=SMALL, total_steps=64, env_kwargs={"num_envs": 2}, progress=False)


def test_another_device_is_refused_with_what_to_do(second_device: str) -> None:
    make = partial(TorchCartPole, device=second_device)
    for placement in (SingleDevice("cpu"), Mirrored("cpu", second_device), Migrating("cpu", second_device)):
        with pytest.raises(
            ConfigurationError,
            match=r"on second:0 are sampled where they are, and .* samples on cpu: use "
            r"placement=SingleDevice\('second:0'\), or Mirrored\('second:0', \.\.\.\) to learn elsewhere",
        ):
            train(make, placement=placement)


def change(index: int, by: Any) -> Any:
    def changed(result: list[Any]) -> Any:
        result[index] = by(result[index])
        return tuple(result)

    return changed


def spoiled(number: float, place: tuple[int, ...]) -> Any:
    def spoil(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.clone()
        tensor[place] = number
        return tensor

    return spoil


BREAKAGES = {
    "an array": (change(1, lambda r: r.numpy()), "the rewards must be a torch tensor on cpu, not a ndarray"),
    "rewards of a shape": (change(1, lambda r: r[:, None]), r"the rewards must be of shape \[4\], not \[4, 1\]"),
    "observations of a shape": (change(0, lambda o: o[:, :3]), r"the observations must be of shape \[4, 4\], not"),
    "another device": (change(0, lambda o: o.to("meta")), "the observations must be on cpu, as the environments say"),
    "flags of a type": (change(2, lambda t: t.float()), r"terminated must be torch.bool, not torch.float32: write"),
    "as rsl_rl": (lambda result: (result[0], None, *result[1:3], {}), "float32: .*, or if .* values of rsl_rl"),
    "an old name": (change(4, lambda i: {"final_observation": i["final_obs"]}), "must have the name 'final_obs'"),
    "complex numbers": (
        change(0, lambda o: o.type(torch.complex64)), "the observations must be real numbers, not torch.complex64"
    ),
    "four results": (lambda result: tuple(result[:4]), "its step returned a tuple of 4 instead of the five"),
    "finals of a shape": (change(4, lambda i: {"final_obs": i["final_obs"][:2]}), "the final observations must be of"),
    "a nan": (
        change(0, spoiled(float("nan"), (2, 1))),
        r"in step 3: the observation of environment 2: observation\[1\] is nan",
    ),
    "an infinite reward": (
        change(1, spoiled(float("inf"), (1,))), "in step 3: the reward of environment 1: reward is inf"
    ),
    "an error": (lambda result: 1 / 0, "in step 3: ZeroDivisionError: division by zero"),
    "an exit": (lambda result: sys.exit(), "in step 3: SystemExit: "),
}  # fmt: skip


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_what_cannot_be_used_is_an_error_that_says_what(breakage: str) -> None:
    how, message = BREAKAGES[breakage]
    with pytest.raises(EnvError, match=message) as raised:
        train(lambda: Broken(4, how))
    assert "4 batched environments, Broken (seed " in str(raised.value)
    assert "in step 3" in str(raised.value)


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float16, torch.int64, torch.float64])
def test_rewards_of_any_type_are_those_of_an_evaluation_and_of_a_check(dtype: torch.dtype) -> None:
    def make() -> Any:
        return Broken(4, change(1, lambda rewards: rewards.type(dtype)))

    agent = train(make).agent
    evaluation = hybridppo.evaluate_agent(agent, make(), episodes=6, progress=False)
    assert list(evaluation.returns) == list(evaluation.lengths)  # 1 for each step
    assert hybridppo.check_env(make, steps=100).is_usable


def test_values_that_have_a_gradient_are_taken_without_it() -> None:
    def make() -> Any:
        return Broken(4, change(1, lambda rewards: rewards.requires_grad_()))

    assert hybridppo.evaluate_agent(train(make).agent, make(), episodes=2, progress=False).returns


def test_a_final_observation_that_is_no_number_counts_only_where_it_is_used() -> None:
    scripts = (((3, "truncated"),), ((4, "terminated"),), ((4, "terminated"),), ((4, "terminated"),))

    class Unfinal(ScriptedTensors):
        def __init__(self, bad: int) -> None:
            super().__init__(scripts)
            self._bad = bad

        def step(self, actions: Any) -> Any:
            *others, infos = super().step(actions)
            infos["final_obs"][self._bad] = float("nan")
            return *others, infos

    train(Unfinal(1))
    with pytest.raises(EnvError, match=r"in step 3: the final observation of environment 0: observation\[0\] is nan"):
        train(Unfinal(0))


def test_a_reset_that_cannot_be_used_is_an_error() -> None:
    class Resetting(TorchCartPole):
        def reset(self, *, seed: int | None = None) -> Any:
            return super().reset(seed=seed)[0]

    with pytest.raises(EnvError, match="failed in its reset: its reset did not return two values"):
        train(Resetting)


# Stopping and resuming


MAKERS = {
    "final observations": (partial(TorchCartPole, episode_length=5), {}),
    "a memory": (partial(TorchCartPole, episode_length=5), {"recurrent": "gru", "recurrent_size": 4}),
    "normalised": (
        partial(TorchCartPole, episode_length=5), {"normalize_observations": True, "normalize_rewards": True}
    ),
}  # fmt: skip


STOPS = ("in a rollout", "in an update")
QUICK = [
    *(f"final observations, second, {stop}" for stop in STOPS),
    "a memory, cpu, in a rollout",
    "normalised, cpu, in an update",
]


@pytest.mark.parametrize(
    ("name", "device", "stop"), only_by_default(QUICK, product(MAKERS, ("cpu", "second"), STOPS), pytest.mark.slow)
)
def test_a_run_that_is_stopped_and_resumed_is_none_that_was_not(
    name: str, device: str, stop: str, tmp_path: Path, second_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, fields = MAKERS[name]
    config = replace(SMALL, fast_updates=False, sequence_length=4, **fields)
    make = partial(make, device=device)
    expected = train(make, config, run_dir=tmp_path / "expected")
    with monkeypatch.context() as patch:
        if stop == "in a rollout":
            interrupt_at_call(patch, Categorical, "sample", 13)
        else:
            interrupt_at_call(patch, TensorSampler, "_read", 2)
        stopped = train(make, config, run_dir=tmp_path / "run")
    assert stopped.interrupted
    assert stopped.metrics["iteration"] == 1
    result = hybridppo.resume(tmp_path / "run", env=make, progress=False)
    assert_same_agents(result.agent, expected.agent)
    found, wanted = (load_latest(tmp_path / run / "checkpoints")[1] for run in ("run", "expected"))
    for key in wanted.tensors:
        if not key.startswith("placement"):
            assert torch.equal(found.tensors[key], wanted.tensors[key]), key
    assert found.state["sampler"] == wanted.state["sampler"]


def test_a_run_whose_environment_cannot_be_saved_begins_new_episodes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at_call(patch, Categorical, "sample", 13)
        train(Forgetful, run_dir=tmp_path / "run")
    with caplog.at_level(logging.INFO, "hybridppo"):
        result = hybridppo.resume(tmp_path / "run", env=Forgetful, progress=False)
    assert "the environments, which start new episodes: Forgetful has no get_state() and set_state" in caplog.text
    assert result.metrics["env_steps"] == 4 * SMALL.batch_size
    assert not result.interrupted


def test_a_state_that_does_not_fit_begins_new_episodes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Heavier(TorchCartPole):
        def get_state(self) -> Any:
            return {**super().get_state(), "weight": torch.ones(4)}

    train(TorchCartPole, run_dir=tmp_path / "run")
    with caplog.at_level(logging.INFO, "hybridppo"):
        hybridppo.resume(tmp_path / "run", env=Heavier, total_steps=6 * SMALL.batch_size, progress=False)
    assert "what was saved is not the state of Heavier: weight is torch.float32 [4] and was nothing" in caplog.text


def test_a_state_goes_where_it_was(second_device: str) -> None:
    class WithGenerator(TorchCartPole):
        """Its generator's state is on the host, wherever the rest is."""

        def get_state(self) -> Any:
            return {**super().get_state(), "generator": torch.arange(3)}

        def set_state(self, state: Any) -> None:
            assert state["generator"].device.type == "cpu"
            super().set_state(state)

    environments = TensorEnvironments(WithGenerator(2, second_device), 2, owns=False)
    environments.begin(0)
    saved = {name: tensor.cpu() for name, tensor in environments.tensors_of_state().items()}
    environments.load_tensors(saved)
    assert str(environments.env.state.device) == second_device


@pytest.mark.slow
def test_cartpole_is_learned() -> None:
    config = ppo_config(num_envs=128, num_steps=32, num_minibatches=16, learning_rate=5e-4)
    result = hybridppo.train(
        TorchCartPole, total_steps=500_000, seed=0, config=config, progress=False, evaluation_episodes=100
    )
    assert result.evaluation.return_mean > 475.0


# Looked at


def test_a_sound_environment_is_complained_of_in_nothing(second_device: str) -> None:
    report = hybridppo.check_env(TorchCartPole(16, second_device, episode_length=15), steps=320)
    assert report.is_usable
    assert [finding.severity for finding in report.findings] == ["note"]
    assert f"its tensors are on {second_device}" in str(report)
    assert report.steps == 320
    assert max(report.episode_lengths) == 15


def test_what_learning_fails_on_is_said() -> None:
    class Poor(Forgetful):
        def step(self, actions: Any) -> Any:
            observations, rewards, terminated, truncated, infos = super().step(actions)
            return observations * 1000.0, rewards + 300.0, terminated & False, truncated | terminated, infos

        def reset(self, *, seed: int | None = None) -> Any:
            return super().reset(seed=next(seeds))

    seeds = iter(range(100))
    said = str(hybridppo.check_env(lambda: Poor(8), steps=400))
    for part in (
        "goes up to", "rewards go up to 301 -> PPO normalises rewards", "truncated episodes came without",
        "the same seed gave two different episodes", "note: its state cannot be saved: Poor has no get_state()",
    ):  # fmt: skip
        assert part in said
    assert "8 of 2,000 steps took 0 s" in str(hybridppo.check_env(lambda: Poor(8), seconds=0))
    report = hybridppo.check_env(lambda: Broken(4, BREAKAGES["a nan"][0]))
    assert not report.is_usable
    assert "observation[1] is nan" in str(report)


class Keeping(TorchCartPole):
    """Its `get_state` lacks a part of its state."""

    def get_state(self) -> Any:
        return {name: tensor for name, tensor in super().get_state().items() if name != "steps"}

    def set_state(self, state: Any) -> None:
        super().set_state({**super().get_state(), **state})


def test_a_state_that_is_not_whole_is_found() -> None:
    said = str(hybridppo.check_env(lambda: Keeping(4, episode_length=7), steps=200))
    assert "its get_state() does not hold all of its state" in said


# Observation groups

SEEN = {"actor_keys": ("policy",), "critic_keys": ("policy", "critic")}
GROUPED: dict[str, PPOConfig] = {
    "plain": replace(SMALL, **SEEN),  # type: ignore[arg-type]
    "normalised": replace(SMALL, **SEEN, normalize_observations=True, normalize_rewards=True),  # type: ignore[arg-type]
    "a memory": replace(SMALL, **SEEN, recurrent="gru", recurrent_size=4, sequence_length=4),  # type: ignore[arg-type]
    "the critic's alone": replace(SMALL, actor_keys=("policy",), critic_keys=("critic",)),
}


@pytest.mark.parametrize("name", ["plain", "normalised"])
def test_a_group_that_nobody_sees_changes_nothing(name: str) -> None:
    """The actor's is CartPole's observation, and a critic of the same group is CartPole's agent, to the bit.

    Moments of wider rows are summed in another order.
    """
    config = replace(GROUPED[name], critic_keys=("policy",))
    expected = train(partial(TorchCartPole, episode_length=6), replace(config, actor_keys=None, critic_keys=None))
    result = train(partial(Grouped, episode_length=6), config)
    most = 0.0 if name == "plain" else 1e-5
    torch.testing.assert_close(result.agent.parameters.values, expected.agent.parameters.values, rtol=0.0, atol=most)
    other = train(partial(Grouped, episode_length=6), GROUPED[name])
    assert result.agent.critic_network.body.parts != other.agent.critic_network.body.parts
    seen = other.agent.observation_space.sample()
    rows = torch.from_numpy(np.stack([other.agent._encode.one({**seen, "critic": seen["critic"] + i}) for i in (0, 1)]))
    assert torch.equal(*other.agent.actor(rows))
    assert not torch.equal(*other.agent.critic(rows))


@pytest.mark.parametrize("name", only_by_default(("normalised", "a memory", "the critic's alone"), GROUPED))
def test_groups_are_trained_in_everywhere(name: str, tmp_path: Path) -> None:
    env, config = partial(Grouped, episode_length=6), GROUPED[name]
    run = tmp_path / "run"
    plain = train(env, config, run_dir=run, checkpoint_seconds=0, placement=SingleDevice("cpu"))
    for way in (MIRRORED, WAYS["migrating"]):
        assert_same_agents(train(env, config, **way).agent, plain.agent)
    remove_last_checkpoint(run)
    assert_same_agents(hybridppo.resume(run, env=env, progress=False).agent, plain.agent)
    loaded, state = hybridppo.load(run), {"state": None} if config.recurrent else {}
    pole = {"policy": np.array([0.1, 0.2, 0.03, -0.2], np.float32)}
    acted = repr(loaded.act(pole, **state))
    assert acted == repr(plain.agent.act(pole, **state))
    assert len(hybridppo.evaluate(run, env=env, episodes=4, progress=False).returns) == 4
    assert hybridppo.export(run, tmp_path / "policy.npz", check_steps=20).steps_checked == 20
    exported = Policy(tmp_path / "policy.npz")
    assert exported.about["observation_size"] == 4


# Simulators


class Groups:
    """What Isaac Lab and mjlab have in common, as far as training needs it, around CartPole."""

    def __init__(self, num_envs: int, names: tuple[str, str], space: Any, actions: Any, is_finite: bool) -> None:
        self._inner = TorchCartPole(num_envs, episode_length=6)
        self._names = names
        self.num_envs, self.device, self.unwrapped = num_envs, "cpu", self
        self.single_observation_space = SimpleNamespace(spaces=dict.fromkeys(names, space))
        self.single_action_space, self.actions = actions, []
        self.cfg = SimpleNamespace(is_finite_horizon=is_finite)
        self.is_closed = False

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return self._grouped(self._inner.reset(seed=seed)[0]), {}

    def step(self, actions: torch.Tensor) -> Any:
        self.actions.append(actions)
        observations, *others, _ = self._inner.step((actions[:, 0] > 0).long())
        return self._grouped(observations), *others, {"log": {}}

    def close(self) -> None:
        self.is_closed = True

    def _grouped(self, observations: torch.Tensor) -> dict[str, torch.Tensor]:
        return dict(zip(self._names, (observations, observations + 1000.0), strict=True))


BOX = SimpleNamespace(shape=(4,), low=-np.inf, high=np.inf)
SPACES = Box(-np.inf, np.inf, (4,)), Box(-np.inf, np.inf, (1,))
SIMULATORS = {
    "Isaac Lab": (hybridppo.tensors.IsaacLab, ("policy", "critic"), Box(-np.inf, np.inf, (4,))),
    "mjlab": (hybridppo.tensors.Mjlab, ("actor", "critic"), BOX),
}


@pytest.mark.parametrize("is_finite", [False, True])
@pytest.mark.parametrize("name", SIMULATORS)
def test_simulators_are_trained_in(name: str, is_finite: bool, caplog: pytest.LogCaptureFixture) -> None:
    kind, groups, space = SIMULATORS[name]
    inner = Groups(4, groups, space, SimpleNamespace(shape=(1,), low=-np.inf, high=np.inf), is_finite)
    env = kind(inner, clip_actions=0.5)
    assert env.single_observation_space == Box(-np.inf, np.inf, (4,))
    result = train(env)
    assert result.metrics["episode_length_mean"] <= 6.0
    assert max(float(actions.abs().max()) for actions in inner.actions) == 0.5
    assert ('the approximation "last observation"' in caplog.text) == (not is_finite)
    assert not inner.is_closed
    env.close()
    assert inner.is_closed
    with pytest.raises(ValueError, match=f"no observations 'eye': it has {', '.join(groups)}"):
        kind(inner, "eye")
    both = kind(Groups(4, groups, space, inner.single_action_space, is_finite), groups)
    assert both.single_observation_space == Dict(dict.fromkeys(groups, Box(-np.inf, np.inf, (4,))))
    config = replace(SMALL, actor_keys=groups[:1], critic_keys=groups)
    agent = train(both, config).agent
    assert agent.act({groups[0]: np.zeros(4, np.float32)}).shape == (1,)
    with pytest.raises(ValueError, match=f"no observations 'eye': it has {', '.join(groups)}"):
        kind(inner, (*groups, "eye"))
    with pytest.raises(ValueError, match=r"group=\(\) names none"):
        kind(inner, ())


class OfRslRl:
    """A `VecEnv` of a version of rsl_rl around CartPole; `dones` are not booleans, as in some of them."""

    def __init__(self, version: int) -> None:
        self._inner, self._version = TorchCartPole(4, episode_length=6), version
        self.num_envs, self.num_actions, self.device, self.seeds = 4, 1, "cpu", list[int]()
        self._seen = self._inner.reset(seed=0)[0]
        if version == 1:
            self.get_privileged_observations = lambda: self._seen + 1000.0

    def seed(self, seed: int) -> None:
        self.seeds.append(seed)
        self._seen = self._inner.reset(seed=seed)[0]

    def _groups(self) -> dict[str, torch.Tensor]:
        return {"policy": self._seen, "critic": self._seen + 1000.0}

    def get_observations(self) -> Any:
        return {1: self._seen, 2: (self._seen, {"observations": self._groups()}), 3: self._groups()}[self._version]

    def step(self, actions: torch.Tensor) -> Any:
        self._seen, rewards, terminated, truncated, _ = self._inner.step((actions[:, 0] > 0).long())
        extras = {"time_outs": truncated, "log": {"Episode_Reward/upright": rewards.mean()}}
        dones, seen = (terminated | truncated).long(), self.get_observations()
        if self._version == 1:
            return seen, self._seen + 1000.0, rewards, dones, extras
        return (seen[0], rewards, dones, extras | seen[1]) if self._version == 2 else (seen, rewards, dones, extras)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_environments_of_rsl_rl_are_trained_in(version: int, caplog: pytest.LogCaptureFixture) -> None:
    """They begin and end episodes as the same environment in gymnasium's form, without its final observations."""
    env = RslRlVecEnv(OfRslRl(version), clip_actions=0.5)
    assert env.single_observation_space == Box(-np.inf, np.inf, (4,))
    assert env.single_action_space == Box(-0.5, 0.5, (1,))
    result = train(env)
    expected = train(hybridppo.tensors.IsaacLab(Groups(4, ("policy", "critic"), *SPACES, False), clip_actions=0.5))
    assert_same_agents(result.agent, expected.agent)
    assert result.metrics["info/Episode_Reward/upright"] == 1.0
    assert len(env.env.seeds) == 1
    assert 'the approximation "last observation"' in caplog.text
    config = replace(SMALL, actor_keys=("policy",), critic_keys=("critic",))
    assert train(RslRlVecEnv(OfRslRl(version), group=("policy", "critic")), config).agent.config == config


def test_an_environment_of_rsl_rl_is_named_with_its_adapter() -> None:
    with pytest.raises(ConfigurationError, match=r"it is a VecEnv of rsl_rl: wrap it, hybridppo\.tensors\.RslRlVecEnv"):
        train(OfRslRl(3))


class Reusing(TorchCartPole):
    """Writes all observations into one tensor, which it returns for final observations, too."""

    def step(self, actions: Any) -> Any:
        observations, *others, infos = super().step(actions)
        self.buffer = getattr(self, "buffer", observations).copy_(observations)
        return self.buffer, *others, {**infos, "final_obs": self.buffer if self.reuses else infos["final_obs"]}


@pytest.mark.parametrize("reuses", [False, True])
def test_final_observations_in_a_tensor_that_is_reused_are_warned_of(
    reuses: bool, caplog: pytest.LogCaptureFixture
) -> None:
    env = Reusing(4, episode_length=5)
    env.reuses = reuses
    train(env)
    assert caplog.text.count("is the first of the next episode, to the bit") == reuses
