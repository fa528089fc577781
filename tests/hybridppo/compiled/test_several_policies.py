"""A policy for each kind of agents: sampled together, and exact when resumed, wherever it was stopped."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from compiled_hunt import HUNTERS, PREY, Hunt
from gymnasium.spaces import Box, Discrete
from ppo_settings import ppo_config
from processes import run_python
from run_files import lines_of
from sampling import collecting
from stop_after import interrupt_at
from videos import frames_of

import hybridppo
from hybridppo import (
    ConfigurationError,
    EnvError,
    Migrating,
    Mirrored,
    SelfPlay,
    SingleLearnerCoarse,
)
from hybridppo.agents.policies import Policies, PoliciesConfig
from hybridppo.agents.ppo.ppo import PPO
from hybridppo.commands.main import main
from hybridppo.commands.parsing import EXIT_DONE, EXIT_USAGE
from hybridppo.commands.train import report
from hybridppo.environments.making import make_environments
from hybridppo.run_directory.directory import RunDirectory
from hybridppo.runners import filling
from hybridppo.system.messages import shown_return
from hybridppo.tools import numpy_policy

pytest.importorskip("numba")
pytestmark = pytest.mark.extras

TINY: dict[str, Any] = {"num_envs": 4, "num_steps": 32, "num_minibatches": 2, "num_epochs": 1}
CONFIGS = {
    "hunter": ppo_config(**TINY, hidden_sizes=(8,)),
    "prey": ppo_config(**TINY, hidden_sizes=(16, 8), activation="relu", gamma=0.9),
}
STEPS = 4 * 32


def command(*arguments: str) -> Any:
    """The command line's exit code."""
    with pytest.raises(SystemExit) as exited:
        main(arguments)
    return exited.value.code


def train(configs: Any = None, **options: Any) -> Any:
    options = {"seed": 3, "total_steps": 4 * STEPS, "progress": False, **options}
    return hybridppo.train(Hunt, config=CONFIGS if configs is None else configs, **options)


def parameters(result: Any) -> Any:
    agents = result if isinstance(result, dict) else result.agents
    return np.concatenate([agent.parameters.values.detach().cpu().numpy() for agent in agents.values()])


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return train(run_dir=tmp_path_factory.mktemp("runs") / "whole")


def test_the_run_says_what_each_policy_did(never_stopped: Any) -> None:
    lines = lines_of(never_stopped.run_dir)
    assert [line["env_steps"] for line in lines] == [STEPS, 2 * STEPS, 3 * STEPS, 4 * STEPS]
    last = lines[-1]
    assert last["agent_steps"] == last["hunter/agent_steps"] + last["prey/agent_steps"]
    assert last["hunter/agent_steps"] == 4 * STEPS * HUNTERS  # who never leave
    assert 0 < last["prey/agent_steps"] < 4 * STEPS * PREY
    for name in CONFIGS:
        assert last[f"{name}/episodes"] > 0
        assert np.isfinite(last[f"{name}/policy_loss"])
    assert set(json.loads((never_stopped.run_dir / "result.json").read_text())) >= {
        "env_steps", "hunter/episode_return_mean", "prey/episode_return_mean",
    }  # fmt: skip
    agents = hybridppo.load_policies(never_stopped.run_dir)
    assert np.array_equal(parameters(agents), parameters(never_stopped))
    evaluations = hybridppo.evaluate_policies(agents, Hunt, episodes=5)
    assert [len(evaluations[name].returns) for name in CONFIGS] == [5 * HUNTERS, 5 * PREY]
    assert set(evaluations["prey"].agents) == {f"prey_{i}" for i in range(PREY)}


def test_threads_change_no_bit_and_seeds_do(never_stopped: Any) -> None:
    assert np.array_equal(parameters(never_stopped), parameters(train(env_threads=3)))
    assert not np.array_equal(parameters(never_stopped), parameters(train(seed=4)))


def test_placements_change_no_bit(never_stopped: Any) -> None:
    mirrored = train(placement=Mirrored("cpu", "cpu", force_copy=True))
    assert np.array_equal(parameters(never_stopped), parameters(mirrored))


def test_learners_share_the_updates_of_every_policy(never_stopped: Any, tmp_path: Path) -> None:
    assert np.array_equal(parameters(never_stopped), parameters(train(distributed="gpu:1", placement="cpu")))
    alone = train(distributed="gpu:1:2", placement="cpu")
    assert not np.array_equal(parameters(never_stopped), parameters(alone))

    stopped = train(
        distributed="gpu:2:2", placement="cpu", run_dir=tmp_path / "run", on_interrupt="return",
        on_iteration=interrupt_at(2),
    )  # fmt: skip
    assert stopped.interrupted
    resumed = hybridppo.resume(tmp_path / "run", env=Hunt, distributed="multi:1:2", progress=False)
    assert np.array_equal(parameters(resumed), parameters(alone))
    for name, value in alone.metrics.items():
        assert name.startswith(("seconds", "steps_per_second")) or resumed.metrics[name] == value, name


def test_both_learn_from_their_own_rows_alone(never_stopped: Any) -> None:
    """Another configuration of one policy leaves the other's first rollout unchanged, and so its first update."""
    other = {**CONFIGS, "prey": ppo_config(**TINY, hidden_sizes=(16, 8), activation="relu", gamma=0.5)}
    one, two = (train(configs, total_steps=STEPS) for configs in (CONFIGS, other))
    assert np.array_equal(parameters({"": one.agents["hunter"]}), parameters({"": two.agents["hunter"]}))
    assert not np.array_equal(parameters({"": one.agents["prey"]}), parameters({"": two.agents["prey"]}))


class Stop:
    """A flag that is set for good after it was read this many times."""

    def __init__(self, after: int) -> None:
        self.after, self.looked = after, 0

    def __call__(self) -> bool:
        self.looked += 1
        return self.looked > self.after


WITHIN_A_ROLLOUT, BETWEEN_UPDATES = 4, 9
"""Two of the places where a run is stopped, below."""


@pytest.mark.parametrize("after", range(1, 17))
def test_a_run_stopped_anywhere_ends_as_the_one_that_was_not(
    after: int, never_stopped: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped between slices of a rollout, in an update of the first policy, or of the second."""
    from hybridppo.system import signals

    stop = Stop(after)

    class Flag(bytearray):
        def __getitem__(self, index: Any) -> Any:
            return stop.looked > after or stop() or super().__getitem__(index)

    monkeypatch.setattr("hybridppo.runners.sampler.bytearray", Flag, raising=False)
    monkeypatch.setattr(
        signals.Interruption, "requested", property(lambda self: stop(), lambda self, value: None), raising=False
    )
    monkeypatch.setattr(filling, "MOST_ROWS", 8)
    stopped = train(run_dir=tmp_path / "run", on_interrupt="return")
    assert stopped.interrupted
    monkeypatch.undo()
    state = RunDirectory.open(tmp_path / "run").load_checkpoint().state
    under_way = state["sampler"]["under_way"]
    assert after != WITHIN_A_ROLLOUT or 0 < under_way["filled"] < 32
    assert after != BETWEEN_UPDATES or "hunter" in state["agent"]["learned"]
    resumed = hybridppo.resume(tmp_path / "run", env=Hunt, progress=False)
    assert np.array_equal(parameters(never_stopped), parameters(resumed))
    for name in CONFIGS:
        what = f"{name}/episode_return_mean"
        assert never_stopped.metrics[what] == resumed.metrics[what]


def test_rollouts_filled_by_compiled_loops_agree_with_those_filled_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def rollouts() -> list[Any]:
        environments: Any = make_environments(Hunt, 5, vectorization="compiled", env_threads=2)
        config = PoliciesConfig(CONFIGS).with_agents(environments.agents)
        agent = Policies(environments.observation_space, environments.action_space, config, seed=1)
        collect = collecting(agent, environments, num_steps=40, env_seed=4)
        return [{n: t.clone() for n, t in collect().columns().items()} for _ in range(2)]

    compiled = rollouts()
    monkeypatch.setattr(filling, "actors_of_kinds", lambda *_: None)
    plain = rollouts()
    for one, other in zip(compiled, plain, strict=True):
        rows = one["valid_rows"]
        assert np.array_equal(rows, other["valid_rows"])
        assert np.array_equal(one["final_rows"], other["final_rows"])
        for name in ("actions", "log_probs", "rewards", "terminated", "truncated"):
            one_rows, other_rows = (side[name].flatten(0, 1)[rows].numpy() for side in (one, other))
            np.testing.assert_allclose(one_rows, other_rows, atol=1e-5, err_msg=name)
        np.testing.assert_allclose(one["observations"], other["observations"], atol=1e-5)
        np.testing.assert_allclose(one["final_observations"], other["final_observations"], atol=1e-5)
    assert len(compiled[1]["valid_rows"]) < 40 * 5 * (HUNTERS + PREY)


def test_normalised_observations_are_filled_row_by_row() -> None:
    configs = {name: ppo_config(**TINY, normalize_observations=name == "prey") for name in CONFIGS}
    assert train(configs).metrics["env_steps"] == 4 * STEPS


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 2},
        {"vectorization": "compiled", "num_workers": 4},
        {"placement": Mirrored("cpu", "cpu", force_copy=True)},
        {"placement": Migrating("cpu", "cpu", force_copy=True)},
        {"placement": "auto"},
        {"evaluate_every": STEPS, "episodes_per_evaluation": 2, "evaluation_episodes": 2},
        {"evaluate_every": STEPS, "episodes_per_evaluation": 2, "evaluate_async": True},
        {"callbacks": [hybridppo.Callback()], "target_return": 1e9, "total_episodes": 10**9},
        {"distributed": SingleLearnerCoarse(2)},
    ],
    ids=lambda options: " ".join(options),
)
def test_what_one_policy_has_several_have_too_and_it_changes_no_bit(
    options: dict[str, Any], never_stopped: Any, tmp_path: Path
) -> None:
    if "distributed" in options:
        pytest.importorskip("ray")
    result = train(run_dir=tmp_path / "run", **{"placement": "cpu", **options})
    assert np.array_equal(parameters(never_stopped), parameters(result))
    if "evaluation_episodes" in options:
        evaluation = result.evaluation
        assert len(evaluation.returns) == 2 * (HUNTERS + PREY)
        written = json.loads((result.run_dir / "result.json").read_text())
        of_hunters = [
            value
            for value, name in zip(evaluation.returns, evaluation.agents, strict=True)
            if name.startswith("hunter")
        ]
        assert written["hunter/evaluation_return_mean"] == pytest.approx(np.mean(of_hunters))
        line = json.loads((result.run_dir / "evaluations.jsonl").read_text().splitlines()[-1])
        assert line["prey/evaluation_return_mean"] == result.metrics["prey/evaluation_return_mean"]


def test_policies_train_while_the_next_rollout_is_sampled(tmp_path: Path) -> None:
    options = {"placement": Mirrored("cpu", "cpu", max_lag=1)}
    whole = train(**options)
    assert whole.metrics["policy_lag"] == 1
    train(run_dir=tmp_path / "run", **options)
    assert np.array_equal(parameters(hybridppo.load_policies(tmp_path / "run")), parameters(whole))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"agent": PPO}, "agent does not work"),
        ({"networks": lambda *_: None}, "networks does not work"),
        ({"configs": {}}, "has none"),
        ({"configs": {"hunter": CONFIGS["hunter"]}}, "agent 'prey_0' has the policy 'prey', and config has hunter: "),
        ({"policy_of": lambda name: "wolf"}, "agent 'hunter_0' has the policy 'wolf', and config has hunter, prey"),
        ({"policy_of": lambda name: "prey"}, "policy 'hunter' has no agent, since all agents have prey: leave it out"),
        ({"configs": {**CONFIGS, "prey": 3}}, r"a PPOConfig for each policy .*; config\['prey'\] is 3"),
        ({"configs": {**CONFIGS, "a/b": CONFIGS["prey"]}}, "without dots and slashes, got 'a/b'"),
        ({"configs": {**CONFIGS, "prey": ppo_config(use_sde=True)}}, "use_sde does not work"),
        ({"configs": {**CONFIGS, "prey": ppo_config(num_envs=5)}}, "num_envs must be the same"),
        ({"distributed": "central:2"}, "learners of a server have one policy"),
        ({"self_play": SelfPlay()}, "self_play .* compiled environments: use vectorization='sync'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_several_policies_cannot_have_is_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    options = dict(options)
    with pytest.raises(ConfigurationError, match=message):
        train(options.pop("configs", CONFIGS), run_dir=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_an_environment_of_one_agent_has_no_several_policies() -> None:
    with pytest.raises(ConfigurationError, match="has one agent"):
        hybridppo.train("CartPole-v1", config=CONFIGS, total_steps=10, progress=False)


def test_a_policy_may_be_of_some_agents_of_a_kind(never_stopped: Any, tmp_path: Path) -> None:
    """Rows are then filled one by one, because a compiled loop has one actor for each kind."""
    of_agents = {"hunter_0": "first", "hunter_1": "others"}

    def policy_of(name: str) -> str:
        return of_agents.get(name, "others")

    configs = dict.fromkeys(("first", "others"), ppo_config(**TINY, hidden_sizes=(8,)))
    result = train(configs, policy_of=policy_of, run_dir=tmp_path / "run")
    assert result.metrics["first/agent_steps"] == 4 * STEPS
    resumed = hybridppo.resume(tmp_path / "run", env=Hunt, total_steps=5 * STEPS, progress=False)
    whole = train(configs, policy_of=policy_of, total_steps=5 * STEPS)
    assert {*resumed.agents} == {*whole.agents} == {"first", "others"}
    found = hybridppo.evaluate_policies(result.agents, Hunt, episodes=2, policy_of=policy_of)
    assert {*found["first"].agents} == {"hunter_0"}


def test_one_policy_by_its_name_is_one_policy() -> None:
    one = ppo_config(**TINY, hidden_sizes=(8,))
    options: dict[str, Any] = {
        "total_steps": 300, "seed": 3, "placement": "cpu", "progress": False, "vectorization": "compiled"
    }  # fmt: skip
    plain = hybridppo.train(Hunt, config=one, **options)
    named = hybridppo.train(Hunt, config={"all": one}, policy_of=lambda _: "all", **options)
    assert np.array_equal(parameters(plain), parameters(named))
    assert [*plain.agents, *named.agents] == ["policy", "all"]
    with pytest.raises(ConfigurationError, match="agent 'hunter_0' has the policy 'hunter', and config has all"):
        hybridppo.train(Hunt, config={"all": one}, **options)


def test_the_command_line_tells_of_each_policy(never_stopped: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(never_stopped) == EXIT_DONE
    said = capsys.readouterr().out
    metrics = never_stopped.metrics
    for name in CONFIGS:
        assert f"{name}: {shown_return(metrics[f'{name}/episode_return_mean'])}" in said
    assert f"{4 * STEPS:,} steps" in said
    assert f"run directory: {never_stopped.run_dir}" in said


@pytest.fixture
def hunt_id() -> Iterator[str]:
    gym.register("HuntOfPolicies-v0", entry_point=Hunt)
    yield "HuntOfPolicies-v0"
    del gym.registry["HuntOfPolicies-v0"]


def test_the_command_line_trains_several_policies(
    hunt_id: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--num-envs", "4", "--num-steps", "32", "--num-minibatches", "2", "--num-epochs", "1", "--seed", "3"]
    own = {name: {"hidden_sizes": list(config.hidden_sizes), "gamma": config.gamma} for name, config in CONFIGS.items()}
    more = ["--vectorization", "compiled", "--total-steps", str(STEPS), "--placement", "cpu", "--no-progress"]
    run = str(tmp_path / "run")
    assert command("train", hunt_id, *flags, *more, "--run-dir", run, "--policies", json.dumps(own)) == EXIT_DONE
    agents = hybridppo.load_policies(run)
    assert {name: (agent.config.hidden_sizes, agent.config.gamma) for name, agent in agents.items()} == {
        name: (config.hidden_sizes, config.gamma) for name, config in CONFIGS.items()
    }
    again = str(tmp_path / "again")
    assert command("train", "--config", f"{run}/config.json", "--run-dir", again, "--no-progress") == EXIT_DONE
    for path in (run, again):
        settings = json.loads((Path(path) / "config.json").read_text())
        assert settings.pop("origin")
        assert settings["policies"].keys() == CONFIGS.keys()
    assert settings == {k: v for k, v in json.loads((Path(run) / "config.json").read_text()).items() if k != "origin"}
    assert command("resume", run, "--total-steps", str(2 * STEPS), "--no-progress") == EXIT_DONE
    assert command("evaluate", run, "--episodes", "2") == EXIT_DONE
    capsys.readouterr()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--policies", '{"hunter": {"leaning_rate": 1.0}, "prey": {}}'], "leaning_rate"),
        (["--policies", '{"hunter": 1, "prey": {}}'], "an object of PPO's settings for each policy, got .'hunter': 1"),
        (["--agent", "td3", "--policies", '{"prey": {}}'], "have a PPOConfig for each policy"),
    ],
)
def test_wrong_policies_on_the_command_line_are_said(
    flags: list[str], message: str, hunt_id: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("train", hunt_id, "--run-dir", str(tmp_path / "run"), *flags) == EXIT_USAGE
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_policy_of_several_is_exported(never_stopped: Any, tmp_path: Path) -> None:
    exported = hybridppo.export(never_stopped.run_dir, tmp_path / "prey.npz", policy="prey", check_steps=50)
    assert exported.steps_checked == 50
    policy, agent = numpy_policy.Policy(tmp_path / "prey.npz"), never_stopped.agents["prey"]
    observation = agent.observation_space.sample()
    assert policy.act(observation.reshape(-1))[0] == agent.act(observation)
    for name, asked in {None: "name one", "wolf": "there is no 'wolf'"}.items():
        with pytest.raises(ConfigurationError, match=f"the policies hunter, prey: {asked}"):
            hybridppo.export(never_stopped.run_dir, tmp_path / "other.npz", policy=name)


def test_what_loads_and_evaluates_one_policy_does_several(never_stopped: Any, tmp_path: Path) -> None:
    agent: Any = hybridppo.load(never_stopped.run_dir)
    assert np.array_equal(parameters(agent), parameters(never_stopped))
    found = hybridppo.evaluate(never_stopped.run_dir, env=Hunt, episodes=3, progress=False)
    assert len(found.returns) == 3 * (HUNTERS + PREY)
    loaded: Any = hybridppo.load(agent.save(tmp_path / "agent.safetensors"))
    assert np.array_equal(parameters(loaded), parameters(never_stopped))
    observation = agent.observation_space.sample()
    actions = loaded.act({"hunter_0": observation, "prey_2": observation})
    expected = {"hunter_0": agent.agents["hunter"], "prey_2": agent.agents["prey"]}
    assert actions == {name: own.act(observation) for name, own in expected.items()}
    assert loaded.act({"hunter_0": observation}, state=None) == ({"hunter_0": actions["hunter_0"]}, {"hunter_0": None})


def test_policies_start_from_others(never_stopped: Any) -> None:
    begun = train(start_from=never_stopped.run_dir, total_steps=STEPS)
    fresh = train(total_steps=STEPS)
    distance = [np.abs(parameters(side) - parameters(never_stopped)).max() for side in (begun, fresh)]
    assert distance[0] < distance[1]


def test_a_video_has_all_agents_each_with_its_kinds_policy(never_stopped: Any, tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    played = hybridppo.play(never_stopped.run_dir, tmp_path / "hunt.mp4", env=Hunt, episodes=2)
    assert played.episodes == 2
    assert len(played.agents) == 2 * (HUNTERS + PREY)
    policies, env = hybridppo.load(never_stopped.run_dir), Hunt()
    returns = dict.fromkeys(played.agents, 0.0)
    for seed in (0, None):
        observations, _ = env.reset(seed=seed)
        while env.agents:
            observations, rewards, *_ = env.step(policies.act({name: observations[name] for name in env.agents}))
            returns = {name: value + rewards.get(name, 0.0) for name, value in returns.items()}
    found = dict.fromkeys(played.agents, 0.0)
    for name, value in zip(played.agents, played.returns, strict=True):
        found[name] += value
    assert found == pytest.approx(returns)
    frames = frames_of(tmp_path / "hunt.mp4")
    assert len(frames) == played.steps + 2
    assert [round(float(frame[..., 0].mean()) / 10) for frame in frames[:4]] == [0, 1, 2, 3]


def test_the_guide_works_as_it_is_written(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[3] / "docs" / "compiled.md").read_text(encoding="utf-8")
    blocks = [block.partition("```")[0] for block in guide.split("```python\n")[1:]]
    written, used = blocks[2:4]
    assert "class Wolves" in written
    script = f"import hybridppo\n{written}\n{used}"
    script = script.replace("total_steps=100_000", "total_steps=50_000, progress=False, seed=1")
    (tmp_path / "wolves.py").write_text(script)
    done = run_python("wolves.py", check=True, cwd=tmp_path)
    assert "error" not in done.stdout
    wolf, sheep = map(float, done.stdout.splitlines()[-1].split())
    assert wolf > -8.5  # chance is about -9.8
    assert -1.0 <= sheep <= 0.6
    assert (tmp_path / "runs" / "wolves" / "result.json").exists()


def test_agents_of_other_spaces_are_refused(never_stopped: Any) -> None:
    other = PPO(Box(-9.0, 9.0, (1,)), Discrete(9), CONFIGS["prey"], seed=0)
    with pytest.raises(EnvError, match="the environment is not the one that was trained in: observation_space was"):
        hybridppo.evaluate_policies({**never_stopped.agents, "prey": other}, Hunt, episodes=1)
