"""Numbers of the configuration that change during a training."""

import json
import math
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium.spaces import Box
from learner_kinds import KINDS
from ppo_settings import ppo_config
from run_files import lines_of
from selection import only_by_default
from stop_after import assert_stopped_update_changes_nothing, interrupt_at, rollouts_of
from toy_agents import Matching, TakingTurns, Unlike

import hybridppo
from hybridppo import (
    PPO,
    Central,
    ConfigurationError,
    DDPGConfig,
    Mirrored,
    MultiLearner,
    PPOConfig,
    TD3Config,
)
from hybridppo.agents.policies import PoliciesConfig
from hybridppo.agents.registry import agent_class, make_agent
from hybridppo.agents.schedules import AdaptiveRate, parsed, share_left
from hybridppo.commands.main import main
from hybridppo.errors import CallbackError
from hybridppo.training import with_further

CONFIG = ppo_config(
    num_envs=2, num_steps=16, num_minibatches=2, hidden_sizes=(8, 8), anneal_learning_rate=False, clip_range_vf=0.2,
    num_epochs=2, max_grad_norm=0.3, learning_rate=1e-2,
)  # fmt: skip
OFF_POLICY: dict[str, Any] = {
    "num_envs": 2, "train_frequency": 5, "gradient_steps": 3, "batch_size": 8, "buffer_size": 200,
    "learning_starts": 20, "steps_per_iteration": 40, "hidden_sizes": (8, 8),
}  # fmt: skip
FORMS = {"by hand": {}, "compiled": {"compiled_updates": True}, "autograd": {"fast_updates": False}}
OF_FORMS = [pytest.param(name, marks=pytest.mark.extras if name == "compiled" else ()) for name in FORMS]
OTHERS: dict[str, float] = {
    "learning_rate": 1e-3, "critic_learning_rate": 1e-3, "clip_range": 0.05, "clip_range_vf": 0.01,
    "entropy_coef": 0.1, "value_coef": 0.1, "max_grad_norm": 0.05, "gamma": 0.5, "gae_lambda": 0.5, "target_kl": 1e-6,
}  # fmt: skip
PLACEMENTS: dict[str, dict[str, Any]] = {
    "cpu": {},
    "hybrid": {"placement": Mirrored("cpu", "cpu", force_copy=True)},
    "overlap": {"placement": Mirrored("cpu", "cpu", max_lag=1)},
    "workers": {"num_workers": 2},
}


def train(**arguments: Any) -> hybridppo.TrainResult:
    options = {"total_steps": 96, "seed": 0, "placement": "cpu", "config": CONFIG, "progress": False, **arguments}
    return hybridppo.train(options.pop("env", "Pendulum-v1"), on_interrupt="return", **options)


def of_metrics(name: str, **arguments: Any) -> list[float]:
    """A metric of every iteration."""
    found: list[float] = []
    train(on_iteration=lambda metrics: found.append(metrics[name]), **arguments)
    return found


def same(one: hybridppo.TrainResult, other: hybridppo.TrainResult) -> bool:
    return torch.equal(one.agent.parameters.values, other.agent.parameters.values)


def test_names_give_shares_of_the_configured_value() -> None:
    assert [share_left("linear", done) for done in (0.0, 0.25, 1.0, 1.5)] == [1.0, 0.75, 0.0, 0.0]
    assert share_left("cosine", 0.25) == pytest.approx(0.5 * (1.0 + math.cos(math.pi / 4)))
    assert [share_left("constant:0.5", done) for done in (0.0, 0.25, 0.5, 1.0)] == [0.0, 0.5, 1.0, 1.0]
    assert [share_left("linear:0.5", done) for done in (0.25, 0.5, 0.75, 1.0)] == [0.5, 1.0, 0.5, 0.0]


def test_a_mapping_text_and_json_name_the_same_schedules() -> None:
    named = {"learning_rate": "cosine:0.05", "entropy_coef": "linear"}
    texts = [PPOConfig(schedules=each).schedules for each in (named, json.dumps(named))]  # type: ignore[arg-type]
    assert set(texts) == {"learning_rate=cosine:0.05,entropy_coef=linear"}
    assert parsed(texts[0]) == named


@cache
def without_schedules(form: str) -> hybridppo.TrainResult:
    return train(config=replace(CONFIG, **FORMS[form]), total_steps=64)


@pytest.mark.parametrize(
    ("field", "form"),
    only_by_default(
        [*(f"{field}, by hand" for field in OTHERS), "learning_rate, autograd", "clip_range, autograd"],
        [pytest.param(field, *form.values, marks=form.marks) for field in OTHERS for form in OF_FORMS],
    ),
)
def test_a_schedule_gives_what_the_configuration_with_the_value_does(field: str, form: str) -> None:
    config = replace(CONFIG, **FORMS[form])
    scheduled = train(config=config, schedules={field: lambda done: OTHERS[field]}, total_steps=64)
    assert same(scheduled, train(config=replace(config, **{field: OTHERS[field]}), total_steps=64))
    assert not same(scheduled, without_schedules(form))


@pytest.mark.extras
def test_values_may_not_move_if_a_schedule_of_their_clip_range_is_0() -> None:
    """In compiled updates, too, 0 is not None."""
    compiled, plain = (
        of_metrics("value_loss", config=replace(CONFIG, **FORMS[form]), schedules={"clip_range_vf": lambda done: 0.0})
        for form in ("compiled", "autograd")
    )
    assert compiled == pytest.approx(plain, rel=1e-3)


@pytest.mark.parametrize("where", PLACEMENTS)
def test_a_function_has_the_share_that_is_done_and_gives_the_value(where: str) -> None:
    asked: list[float] = []

    def halved(done: float) -> float:
        asked.append(done)
        return 1e-3 * 0.5 ** (3.0 * done)

    rates = of_metrics("learning_rate", schedules={"learning_rate": halved}, **PLACEMENTS[where])
    assert rates == pytest.approx([1e-3, 1e-3 * 0.5, 1e-3 * 0.25])
    assert asked == pytest.approx([0.0, 1.0 / 3.0, 2.0 / 3.0])


def test_what_is_annealed_is_a_linear_schedule() -> None:
    config = replace(CONFIG, critic_learning_rate=1e-3)
    annealed = train(config=replace(config, anneal_learning_rate=True, anneal_clip_range=True))
    named = dict.fromkeys(("learning_rate", "critic_learning_rate", "clip_range"), "linear")
    assert same(annealed, train(config=config, schedules=named))


def test_current_values_are_metrics_and_the_configuration_stays() -> None:
    result = train(schedules={"entropy_coef": "linear", "clip_range": lambda done: 0.3})
    assert result.metrics["entropy_coef"] == pytest.approx(CONFIG.entropy_coef / 3.0)
    assert result.metrics["clip_range"] == 0.3
    assert result.agent.config == replace(CONFIG, schedules="entropy_coef=linear")


@pytest.mark.parametrize("kind", [DDPGConfig, TD3Config])
def test_learning_rates_of_other_agents_have_schedules(kind: Any) -> None:
    config = kind(**OFF_POLICY)
    rates = of_metrics("learning_rate", config=config, schedules={"learning_rate": "linear"}, total_steps=160)
    assert rates == pytest.approx([1e-3, 0.75e-3, 0.5e-3, 0.25e-3])
    scheduled = train(config=config, schedules={"critic_learning_rate": lambda done: 1e-2})
    assert same(scheduled, train(config=replace(config, critic_learning_rate=1e-2)))
    assert scheduled.metrics["critic_learning_rate"] == 1e-2


# The adaptive learning rate


class Slower(hybridppo.Callback):
    def on_start(self, run: Any) -> None:
        run.agent.config = replace(run.agent.config, learning_rate=1e-5)


@pytest.mark.parametrize("schedules", ["", "learning_rate=constant"])
@pytest.mark.parametrize("config", [CONFIG, TD3Config(**OFF_POLICY)], ids=["ppo", "td3"])
def test_another_learning_rate_in_an_agents_configuration_takes_effect(config: Any, schedules: str) -> None:
    agent = train(config=replace(config, schedules=schedules), callbacks=Slower()).agent
    assert set(agent.optimizer.learning_rates.values()) == {1e-5}
    agent.config = replace(agent.config, learning_rate=1e-4)
    assert train(config=None, agent=agent).metrics["learning_rate"] == 1e-4


class Changing(hybridppo.Callback):
    """Changes hyperparameters at the start."""

    def __init__(self, **changes: Any) -> None:
        self.changes = changes

    def on_start(self, run: Any) -> None:
        run.agent.config = replace(run.agent.config, **self.changes)


AT_ANY_TIME: list[tuple[Any, dict[str, Any]]] = [
    *(
        (CONFIG, {name: value})
        for name, value in {"num_epochs": 1, "num_minibatches": 4, "normalize_advantage": False, "gamma": 0.5}.items()
    ),
    *((TD3Config(**OFF_POLICY), {name: 1}) for name in ("gradient_steps", "batch_size", "policy_delay", "tau")),
    (TD3Config(**OFF_POLICY), {"target_noise_std": 0.5, "target_noise_clip": 0.1, "gamma": 0.5}),
]
FIXED: list[tuple[Any, dict[str, Any]]] = [
    *(
        (CONFIG, {name: value})
        for name, value in {
            "normalize_rewards": True, "normalize_observations": True, "squash_actions": True, "log_std_init": -1.0,
            "pool_size": 2, "hidden_sizes": (9,),
        }.items()
    ),
    *((TD3Config(**OFF_POLICY), {name: 7}) for name in ("exploration_std", "learning_starts")),
]  # fmt: skip


@pytest.mark.parametrize(("config", "changes"), AT_ANY_TIME)
def test_a_hyperparameter_that_may_change_takes_effect(config: Any, changes: dict[str, Any]) -> None:
    changed = train(config=config, callbacks=Changing(**changes))
    assert same(changed, train(config=replace(config, **changes)))


@pytest.mark.parametrize(("config", "changes"), FIXED)
def test_a_hyperparameter_that_would_not_take_effect_is_refused(config: Any, changes: dict[str, Any]) -> None:
    (name,) = changes
    agent = make_agent(agent_class(config), Box(-1, 1, (3,)), Box(-1, 1, (1,)), config, seed=0)
    with pytest.raises(ConfigurationError, match=f"{name} is fixed when an agent is made: make another one"):
        agent.config = replace(config, **changes)
    assert agent.config == config


@pytest.mark.parametrize(("name", "value"), [("num_steps", 8), ("schedules", "learning_rate=linear")])
def test_hyperparameters_of_rollouts_and_schedules_change_between_trainings(name: str, value: Any) -> None:
    with pytest.raises(CallbackError, match=f"{name} cannot change during a training: change it before, got"):
        train(callbacks=Changing(**{name: value}))
    agent = train(schedules={"gae_lambda": "linear"}).agent
    agent.config = replace(agent.config, **{"schedules": "", name: value})
    metrics = train(config=None, agent=agent, total_steps=64).metrics
    assert "gae_lambda" not in metrics
    assert metrics["iteration"] == (4 if name == "num_steps" else 2)
    assert metrics["learning_rate"] == (1e-2 if name == "num_steps" else 0.5e-2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedules": "value_coef=linear"}, "value_coef has two schedules"),
        ({"cuda_graphs": True}, "records value_coef"),
    ],
)
def test_a_configuration_that_the_schedules_of_an_agent_refuse_changes_nothing(
    changes: dict[str, Any], message: str
) -> None:
    agent = make_agent(PPO, Box(-1, 1, (3,)), Box(-1, 1, (1,)), CONFIG, seed=0, schedules={"value_coef": falling})
    with pytest.raises(ConfigurationError, match=message):
        agent.config = replace(CONFIG, **changes)
    assert agent.config == agent.current == CONFIG


@pytest.mark.parametrize("schedules", [{"learning_rate": "adaptive"}, {"learning_rate": lambda done: 1e-3}])
def test_a_value_that_a_schedule_gives_is_not_changed_by_another(schedules: Any) -> None:
    with pytest.raises(CallbackError, match="learning_rate has a schedule that gives its values"):
        train(schedules=schedules, callbacks=Slower())


class SlowerLater(Slower):
    def on_start(self, run: Any) -> None:
        self.on_iteration(run, {})

    def on_iteration(self, run: Any, metrics: Any) -> None:
        if run.iteration >= 2:
            super().on_start(run)


@pytest.mark.parametrize("config", [CONFIG, TD3Config(**OFF_POLICY)], ids=["ppo", "td3"])
def test_a_resumed_callback_sets_its_settings_again(config: Any, tmp_path: Path) -> None:
    options = {"config": config, "total_steps": 160}
    expected = train(callbacks=SlowerLater(), **options)
    assert train(callbacks=SlowerLater(), run_dir=tmp_path / "run", on_iteration=interrupt_at(3), **options).interrupted
    resumed = hybridppo.resume(tmp_path / "run", callbacks=SlowerLater(), progress=False)
    assert same(resumed, expected)
    assert resumed.metrics["learning_rate"] == 1e-5


@pytest.mark.parametrize("config", [CONFIG, TD3Config(**OFF_POLICY)], ids=["ppo", "td3"])
@pytest.mark.parametrize("way", ["assign", "data"])
def test_parameters_that_are_replaced_are_refused(way: str, config: Any) -> None:
    """No optimizer step would change them."""

    class Replacing(hybridppo.Callback):
        def on_iteration(self, run: Any, metrics: Any) -> None:
            actor = run.agent.actor
            tensors = {name: tensor.clone() for name, tensor in actor.state_dict().items()}
            if way == "assign":
                actor.load_state_dict(tensors, assign=True)
            else:
                next(actor.parameters()).data = next(iter(tensors.values()))

    with pytest.raises(ConfigurationError, match="was replaced, and would not be trained: write into it"):
        train(config=config, callbacks=Replacing())


def test_the_adaptive_rate_follows_the_divergence_within_limits() -> None:
    adaptive = AdaptiveRate(1e-3)
    assert adaptive.follow(0.021, 0.01)
    assert adaptive.rate == pytest.approx(1e-3 / 1.5)
    assert adaptive.follow(0.004, 0.01)
    assert adaptive.rate == pytest.approx(1e-3)
    assert not any(adaptive.follow(kl, 0.01) for kl in (0.01, 0.02, 0.005, 0.0, 1e-14, math.nan))
    for kl, limit in ((1.0, 1e-5), (1e-3, 1e-2)):
        for _ in range(20):
            adaptive.follow(kl, 0.01)
        assert adaptive.rate == limit


@pytest.mark.parametrize("form", only_by_default(("by hand",), OF_FORMS))
def test_an_adaptive_rate_brings_the_divergence_near_what_is_desired(form: str) -> None:
    config = PPOConfig(num_envs=4, num_steps=64, num_epochs=5, learning_rate=1e-4, **FORMS[form])
    options: dict[str, Any] = {"config": config, "total_steps": 16 * config.batch_size}
    found = of_metrics("approx_kl", schedules={"learning_rate": "adaptive"}, **options)
    assert 0.005 < sum(found[-8:]) / 8 < 0.02
    assert max(of_metrics("approx_kl", **{**options, "total_steps": 4 * config.batch_size})) < 0.001


def test_an_update_that_is_broken_off_leaves_the_adaptive_rate_as_it_was() -> None:
    agent = train(config=replace(CONFIG, schedules="learning_rate=adaptive", desired_kl=0.9, learning_rate=1e-4)).agent
    _, rollouts = rollouts_of(PPO, train)
    before, rates = agent.state()[1], dict(agent.optimizer.learning_rates)
    assert_stopped_update_changes_nothing(agent, rollouts[0], after=3)  # in the second epoch
    assert agent.optimizer.learning_rates == rates
    agent.update(rollouts[0])
    assert agent.state()[1]["learning_rate"] > before["learning_rate"]


# Resumed


def falling(done: float) -> float:
    return 0.05 * (1.0 - done)


RESUMED: dict[str, tuple[Any, Any]] = {
    "named": (CONFIG, {"learning_rate": "cosine:0.5", "clip_range": "linear"}),
    "functions": (CONFIG, {"learning_rate": "linear", "entropy_coef": falling, "target_kl": falling}),
    "adaptive": (CONFIG, {"learning_rate": "adaptive"}),
    "td3": (TD3Config(**OFF_POLICY), {"learning_rate": "linear", "critic_learning_rate": falling}),
}


@pytest.mark.parametrize(
    ("what", "where"),
    only_by_default(
        ("named, cpu", "functions, overlap", "adaptive, overlap", "td3, overlap"),
        product(RESUMED, ("cpu", "overlap")),
    ),
)
def test_a_run_with_schedules_goes_on_exactly(what: str, where: str, tmp_path: Path) -> None:
    config, schedules = RESUMED[what]
    options = {"config": config, "schedules": schedules, "total_steps": 160, **PLACEMENTS[where]}
    expected = train(**options)
    assert train(run_dir=tmp_path / "run", on_iteration=interrupt_at(2), **options).interrupted
    functions = {field: each for field, each in reversed(schedules.items()) if callable(each)}
    if functions:
        with pytest.raises(hybridppo.RunDirectoryError, match=r"has its own schedules, .*: pass it again"):
            hybridppo.resume(tmp_path / "run", progress=False)
        with pytest.raises(hybridppo.CheckpointError, match="schedules of the run were of"):
            hybridppo.resume(tmp_path / "run", schedules={"value_coef": falling}, progress=False)
    with pytest.raises(hybridppo.CheckpointError, match="was begun with the schedules"):
        hybridppo.resume(tmp_path / "run", schedules={**functions, "learning_rate": "constant"}, progress=False)
    resumed = hybridppo.resume(tmp_path / "run", schedules=functions or None, progress=False)
    assert same(resumed, expected)
    assert resumed.agent.optimizer.learning_rates == expected.agent.optimizer.learning_rates
    hybridppo.load(tmp_path / "run")  # needs no schedules


def test_schedules_of_several_policies_are_known_when_their_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small = replace(CONFIG, hidden_sizes=(8,))
    run, named = tmp_path / "run", {"learning_rate": "cosine"}
    goes_on: dict[str, Any] = {"env": Unlike, "total_steps": 96, "progress": False}
    train(env=Unlike, config={"sign": small, "pointer": small}, schedules=named, total_steps=32, run_dir=run)
    with pytest.raises(hybridppo.CheckpointError, match=r"was begun with the schedules \{'learning_rate': 'cosine'"):
        hybridppo.resume(run, schedules={"learning_rate": "linear"}, **goes_on)
    assert hybridppo.resume(run, schedules=named, **goes_on).metrics["env_steps"] == 96
    assert (
        "the schedule of learning_rate was stretched to the new total_steps, 96 instead of 32: it jumps from"
        in caplog.text
    )


# Several learners, several policies, the command line


@pytest.mark.parametrize("kind", only_by_default(("gru",), ("rows", "gru")))
def test_several_learners_share_schedules(kind: str) -> None:
    config = replace(CONFIG, num_envs=4, learning_rate=1e-3, **KINDS[kind].config)
    options = {"config": config, "schedules": {"learning_rate": "adaptive", "entropy_coef": falling}}
    one, two = (train(distributed=MultiLearner(learners=number, shards=2), **options) for number in (1, 2))
    assert same(one, two)
    assert one.metrics["learning_rate"] != 1e-3


@pytest.mark.extras
def test_learners_of_a_server_have_schedules_but_no_adaptive_rate() -> None:
    options: dict[str, Any] = {
        "config": replace(CONFIG, num_envs=4),
        "distributed": Central(learners=2),
        "total_steps": 192,
    }
    found = of_metrics("entropy_coef", schedules={"entropy_coef": falling, "learning_rate": "linear"}, **options)
    assert found[0] == pytest.approx(0.05)
    assert found[-1] < 0.05
    with pytest.raises(
        ConfigurationError, match="an adaptive learning rate does not work with distributed=central:2:1"
    ):
        train(schedules={"learning_rate": "adaptive"}, **options)


def test_named_schedules_are_those_of_every_policy_that_learns() -> None:
    config = PoliciesConfig({"a": CONFIG, "b": replace(CONFIG, schedules="gamma=linear")}, played=("a",))
    found: Any = with_further(config, {"learning_rate": "cosine"})
    assert [each.schedules for each in found.policies.values()] == ["", "gamma=linear,learning_rate=cosine"]


def test_several_policies_have_named_schedules_and_go_on_exactly(tmp_path: Path) -> None:
    config = {"one": CONFIG, "two": replace(CONFIG, schedules="clip_range=linear")}
    options: dict[str, Any] = {"env": Matching, "policy_of": lambda name: "one" if name.endswith("0") else "two"}
    options |= {"config": config, "schedules": {"learning_rate": "adaptive", "entropy_coef": "linear"}}
    expected = train(**options).agent
    assert train(**options, run_dir=tmp_path / "run", on_iteration=interrupt_at(1)).interrupted
    resumed = hybridppo.resume(tmp_path / "run", env=Matching, progress=False)
    assert "two/clip_range" in resumed.metrics
    for one, other in zip(expected.agents.values(), resumed.agents.values(), strict=True):
        assert torch.equal(one.parameters.values, other.parameters.values)
        assert one.optimizer.learning_rates == other.optimizer.learning_rates


def test_a_discount_with_a_schedule_is_also_that_of_returns_which_normalise_rewards_in_turns() -> None:
    options: dict[str, Any] = {"env": lambda: TakingTurns(Matching()), "total_steps": 192}
    config = replace(CONFIG, normalize_rewards=True)
    scheduled = train(**options, config=config, schedules={"gamma": lambda done: 0.5})
    assert same(scheduled, train(**options, config=replace(config, gamma=0.5)))


REFUSED = {
    "no field": ({"schedules": {"num_steps": falling}}, "schedules are for learning_rate, .*, got 'num_steps'"),
    "no schedule": ({"schedules": {"gamma": "fast"}}, "^schedules must give fields .* adaptive for learning_rate"),
    "twice": (
        {"schedules": "gamma=linear,gamma=cosine"},
        "must give fields a name or a function, each once, .*, got 'gamma=linear,gamma=cosine'",
    ),
    "twice in JSON": ({"schedules": '{"gamma": "linear", "gamma": "cosine"}'}, "each once"),
    "of another agent": (
        {"schedules": {"learning_rate": "adaptive"}, "config": TD3Config()},
        r"fields \(learning_rate, critic_learning_rate\), each once, a schedule \(constant, linear, cosine\), .*=cosi",
    ),
    "no mapping": ({"schedules": 3}, "schedules must give fields a name or a function, .*, got 3"),
    "two": ({"schedules": {"gamma": falling}, "config": PPOConfig(schedules="gamma=linear")}, "gamma has two"),
    "annealed": ({"schedules": {"clip_range": "cosine"}, "config": PPOConfig(anneal_clip_range=True)}, "leave one out"),
    "recorded": ({"schedules": {"value_coef": falling}, "config": PPOConfig(cuda_graphs=True)}, "records value_coef"),
    "negative": ({"schedules": {"gamma": lambda done: -1.0}}, r"schedules\['gamma'\] must return .*got -1.0 for 0"),
    "an agent": (
        {"schedules": "gamma=linear", "config": None, "agent": lambda: train().agent},
        "an agent that there is already has its schedules",
    ),
    "several policies": (
        {"schedules": {"gamma": falling}, "config": {"a": PPOConfig(), "b": PPOConfig()}},
        "schedules that are functions does not work with several policies",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_scheduled_is_refused(what: str) -> None:
    options, message = REFUSED[what]
    if "agent" in options:
        options = {**options, "agent": options["agent"]()}
    with pytest.raises(ConfigurationError, match=message):
        train(**options)


def test_the_command_line_names_schedules(tmp_path: Path) -> None:
    flags = "--num-envs 2 --num-steps 16 --placement cpu --no-progress --total-steps 64"
    named = ["--schedules", "learning_rate=cosine,entropy_coef=linear:0.5", "--entropy-coef", "0.01"]
    with pytest.raises(SystemExit) as exited:
        main(["train", "Pendulum-v1", "--run-dir", str(tmp_path / "run"), *flags.split(), *named])
    assert exited.value.code == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert config["schedules"] == "learning_rate=cosine,entropy_coef=linear:0.5"
    lines = lines_of(tmp_path / "run")
    assert [line["entropy_coef"] for line in lines] == pytest.approx([0.0, 0.01])


def test_another_placement_changes_nothing() -> None:
    schedules = {"learning_rate": "adaptive", "entropy_coef": falling}
    one, other = (
        train(schedules=schedules),
        train(schedules=schedules, placement=Mirrored("cpu", "cpu", force_copy=True)),
    )
    assert same(one, other)
