"""Examples, and changes of docs/own_loss.md, run as they are written, everywhere, and resume to the same bits.

The terms that they add are compared with numbers computed by hand.
"""

import ast
import copy
import importlib
import inspect
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any

import beta
import cloning
import distillation
import double_dqn
import gymnasium
import kl_penalty
import numpy as np
import ppg
import ppo_lagrangian
import pytest
import rnd
import set_attention
import symmetry
import torch
import truncated_normal
import upgo
from gymnasium.spaces import Box, Discrete
from selection import only_by_default
from stop_after import StopAfter
from torch import Tensor, nn

import hybridppo
from hybridppo import PPO, ConfigurationError, DDPGConfig, HybridPPOError, Mirrored, PPOConfig
from hybridppo.agents.ppo.batch import Batch
from hybridppo.agents.ppo.loss import Loss, LossInputs
from hybridppo.distributions.of_space import distribution_for
from hybridppo.rollouts.replay import Transitions
from hybridppo.rollouts.rollout import Rollout
from scripts.lines import lines_of_code

ROOT = Path(__file__).parents[1]
SECTION = re.compile(r"^## ([^\n]+)\n(?:(?!^## ).)*?```python\n(.*?)```", re.MULTILINE | re.DOTALL)
BLOCKS = dict(SECTION.findall((ROOT / "docs" / "own_loss.md").read_text(encoding="utf-8")))
DISTRIBUTIONS = {"beta": beta.Beta, "truncated_normal": truncated_normal.TruncatedNormal}
EXAMPLES = (
    "beta", "cloning", "distillation", "double_dqn", "kl_penalty", "ppg", "ppo_lagrangian", "rnd", "sac",
    "set_attention", "symmetry", "truncated_normal", "upgo",
)  # fmt: skip
BLOCKS |= {name: (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8") for name in EXAMPLES}
OWN = ("agent", "loss", "modules", "networks", "advantages", "action_distribution")


PLAIN = """import hybridppo
if __name__ == "__main__":
    result = hybridppo.train("CartPole-v1", total_steps=20_000)
    print(result.metrics["episode_return_mean"])
"""
BESIDE = ("Nearest", "WithCost", "make", "demonstrations")
"""Parts of examples that make environments and demonstrations."""


def changed_lines(text: str) -> int:
    """How many lines of code of an example are not in a plain training, nor in what makes environments."""
    parts = [part for part in ast.parse(text).body if getattr(part, "name", None) not in BESIDE]
    code = [ast.get_source_segment(text, part) or "" for part in parts]
    plain = {line.strip() for line in PLAIN.splitlines()}
    return lines_of_code("\n".join(code)) - sum(line.strip() in plain for line in text.splitlines())


def small(options: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a training with fewer steps than on the page, and of other agents with smaller networks."""
    agent = options.get("agent")
    config = agent.config if isinstance(agent, PPO) else options.get("config") or PPOConfig()
    if isinstance(config, PPOConfig):
        config = replace(config, num_envs=2, num_steps=16, num_minibatches=2, num_epochs=2)
    else:
        config = replace(
            config,
            num_envs=2,
            learning_starts=16,
            gradient_steps=1,
            batch_size=16,
            steps_per_iteration=32,
            hidden_sizes=(16,),
        )
    everywhere = {"seed": 0, "placement": "cpu", "vectorization": "sync", "progress": False, "total_steps": 128}
    if not isinstance(agent, PPO):
        return {**options, **everywhere, "config": config}
    agent.config = config
    return {**options, **everywhere}


def trained(train: Any, env: Any, options: dict[str, Any], **further: Any) -> Any:
    """The result of a training; an agent that there is already is copied first."""
    own = {"agent": copy.deepcopy(options["agent"])} if isinstance(options.get("agent"), PPO) else {}
    return train(env, **{**options, **further, **own})


def as_written(name: str, **options: Any) -> Any:
    """A block's training, with other options."""
    found: list[Any] = []
    train = hybridppo.train

    def instead(env: Any, **given: Any) -> Any:
        found.append((env, {**small(given), **options}))
        found.append(trained(train, *found[0]))
        return found[-1]

    text = BLOCKS[name].replace("2_000, seed=0", "20, seed=0").replace("epochs=60", "epochs=3")  # of the demonstrations
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hybridppo, "train", instead)
        exec(compile(text, name, "exec"), {"__name__": "__main__"})
    return found


def test_every_change_is_found() -> None:
    assert set(BLOCKS) == {
        *EXAMPLES, "An auxiliary prediction",
        "Behaviour cloning beside TD3", "A distribution of your own", "Rewards and columns of your own",
        "The methods of a subclass", "Numbers of `info`", "Hyperparameters of your own",
    }  # fmt: skip
    files = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert files == {*EXAMPLES, "particles", "tagging"}  # the last two are environments


def test_the_table_counts_the_lines_of_the_examples() -> None:
    path = ROOT / "benchmarks" / "results" / "research_lines.json"
    rows = [row for row in json.loads(path.read_text(encoding="utf-8"))["rows"] if "file" in row]
    own = {row["file"]: changed_lines(BLOCKS[row["file"].removesuffix(".py")]) for row in rows}
    assert own == {row["file"]: row["here"] for row in rows}
    page = (ROOT / "docs" / "own_loss.md").read_text(encoding="utf-8")
    assert [row["change"] for row in rows if f"| {row['change']} | {row['here']} |" not in page] == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short_has_no_private_name_and_begins_with_its_command(name: str) -> None:
    text = BLOCKS[name]
    assert lines_of_code(text) <= 40
    assert re.findall(r"\b(?:_[a-z]\w*)", text) == []
    assert text.split("\n\n")[1] == f"    python examples/{name}.py"


@pytest.mark.parametrize("name", only_by_default({*EXAMPLES} - {"truncated_normal", "beta", "double_dqn"}, BLOCKS))
def test_a_change_runs_everywhere_and_goes_on_to_the_same_bits(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    (env, options), whole = as_written(name)
    torch.manual_seed(0)  # of modules that the block makes
    result = as_written(name, placement=Mirrored("cpu", "cpu", force_copy=True), num_workers=2)[1]
    if "networks" in options:  # the trainer acts for other numbers of rows
        torch.testing.assert_close(result.agent.parameters.values, whole.agent.parameters.values)
    else:
        assert torch.equal(result.agent.parameters.values, whole.agent.parameters.values)
    run, callbacks = tmp_path / "run", options.get("callbacks", [])
    stopped = trained(hybridppo.train, env, options, run_dir=run, callbacks=[*callbacks, StopAfter(2)])
    assert stopped.metrics["iteration"] == 2
    own = {name: options[name] for name in OWN if name in options and not isinstance(options[name], PPO)}
    given = own if isinstance(env, str) else {**own, "env": env}
    resumed = hybridppo.resume(run, progress=False, callbacks=callbacks, **given)
    assert torch.equal(resumed.agent.parameters.values, whole.agent.parameters.values)
    # An agent acts without its loss and advantages.
    acting = {"agent", "networks", "action_distribution"}
    to_load = {name: part for name, part in own.items() if name in {*acting, "modules"}}
    assert torch.equal(hybridppo.load(run, **to_load).parameters.values, whole.agent.parameters.values)
    for part in to_load.keys() & acting:
        with pytest.raises(HybridPPOError, match=f"{part}="):
            hybridppo.load(run)


def made(kind: Any, modules: Any = None, **settings: float) -> Any:
    """An agent whose parameters are 0."""
    config = PPOConfig(gamma=0.5, gae_lambda=1.0, entropy_coef=0.0, settings=settings)
    agent = kind(Box(-9.0, 9.0, (4,)), Discrete(2), config, modules=modules)
    agent.parameters.values.data.zero_()
    return agent


def loss_of(agent: Any, columns: dict[str, Tensor], **changes: Tensor) -> Loss:
    """The loss of one row of zeros with these changes; the clip range is 0.2."""
    numbers = ("actions", "log_ratio", "advantages", "entropy", "values", "old_values", "returns")
    given: dict[str, Any] = dict.fromkeys(numbers, torch.zeros(1))
    given |= dict.fromkeys(("observations", "raw_observations"), torch.zeros(1, 4))
    given |= dict.fromkeys(("outputs", "old_outputs"), torch.zeros(1, 2))
    return agent.loss(LossInputs(**{**given, **changes}, agent=agent, columns=columns), 0.2)


@torch.no_grad()
def prepared(
    agent: Any, seen: list[float], last: float, rewards: list[float], is_cut_off: bool, infos: Any = None
) -> Any:
    """What an update learns from a rollout of one environment, whose episode ends with the last step.

    Args:
        agent: the agent.
        seen: the four equal numbers of each observation, also of that after the reset.
        last: those of the episode's last observation.
        rewards: of the steps.
        is_cut_off: whether the episode is truncated; else it terminates.
        infos: numbers of infos by name.
    """
    numbers = torch.tensor([*seen, last])[:, None, None].expand(-1, 1, 4)
    steps, nothing = len(rewards), torch.zeros(len(rewards), 1)
    ends = torch.arange(steps)[:, None] == steps - 1
    cut_off = ends & is_cut_off
    rows, final = torch.arange(steps), numbers[-1]
    of_steps = torch.tensor(rewards)[:, None]
    columns = (numbers[:-1], nothing, nothing, of_steps, ends & ~cut_off, cut_off, rows, rows[-1:], final)
    rollout = Rollout(*columns, infos=infos)
    return agent.prepared(replace(agent.normalization.seen(rollout), rewards=of_steps))


def test_the_penalty_is_the_divergence_and_its_coefficient_follows_it() -> None:
    agent = made(kl_penalty.KLPenalty, kl_target=0.01)
    agent.load_extra_state({"beta": 4.0})
    old, new = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.25, 0.75]]).log()
    ratio, advantage = torch.tensor([math.log(1.5)]), torch.tensor([2.0])
    loss = loss_of(agent, {}, old_outputs=old, outputs=new, log_ratio=ratio, advantages=advantage)
    # The ratio of 1.5 is not clipped; KL = 1/2 ln(1/2 / 1/4) + 1/2 ln(1/2 / 3/4) = 1/2 ln(4/3)
    assert loss.total.item() == pytest.approx(-3.0 + 4.0 * 0.5 * math.log(4 / 3))
    betas = [float(agent.after_update(None, {"kl": kl})["beta"]) for kl in (0.016, 0.014, 0.007, 0.006)]
    assert betas == [8.0, 8.0, 8.0, 4.0]


def test_costs_have_returns_and_a_multiplier() -> None:
    agent = made(ppo_lagrangian.PPOLagrangian, cost_limit=1 / 6, multiplier_rate=2)
    critic = agent.modules_of["costs"]
    critic[0].weight.data[0, 0], critic[-1].weight.data[0, 0] = 9.0, 0.5  # values: 0 for 0, 0.5 for 1 or 2
    costs = torch.tensor([[1.0], [0.0], [1.0]])
    steps = prepared(agent, [0.0, 1.0, 0.0, 0.0], 2.0, [0.0, 0.0, 4.0], True, infos={"cost": costs})
    assert float(critic.multiplier) == pytest.approx(2 * (2 / 3 - 1 / 6))
    assert steps.cost_returns.flatten().tolist() == pytest.approx([1.3125, 0.625, 1.25])
    # Advantages of rewards are [1, 2, 4], and those of costs [1.3125, 0.125, 1.25]; the multiplier is 1.
    assert steps.advantages.flatten().tolist() == pytest.approx([-0.15625, 0.9375, 1.375])
    assert steps.returns.flatten().tolist() == [1.0, 2.0, 4.0]
    loss = loss_of(agent, {"cost": torch.ones(1), "cost_returns": torch.tensor([1.25])})
    assert loss.total.item() == pytest.approx(agent.config.value_coef * 0.5 * 1.25**2)
    assert dict(loss.extra) == {"cost": 1.0, "multiplier": pytest.approx(1.0)}


def test_a_step_costs_if_the_cart_is_fast_after_it() -> None:
    env = ppo_lagrangian.make()
    env.reset(seed=0)
    steps = [env.step(1) for _ in range(3)]
    assert [info["cost"] for *_, info in steps] == [float(abs(seen[1]) > 0.2) for seen, *_ in steps] == [0.0, 1.0, 1.0]


def test_novelty_has_its_own_discount_and_goes_on_after_an_episode() -> None:
    agent = made(rnd.RND, novelty_gamma=0.25)
    first, _, last = agent.modules_of["predictor"]
    # Novelty, the mean over 16 outputs, is the square of an observation's first number.
    first.weight.data[0, 0], last.weight.data[0, 0] = 1.0, 4.0
    agent.modules_of["novelty_critic"][-1].bias.data.fill_(1.0)
    steps = prepared(agent, [0.0, 2.0, 0.0], 4.0, [0.0, 3.0], False)
    # Novelty is [4, 16] and its discounted sums [8, 16], of which the deviation is 4: divided by it, [1, 4].
    assert steps.novelty_returns.flatten().tolist() == pytest.approx([1 + 0.25 * 4.25, 4 + 0.25 * 1])
    # Advantages of rewards are [1.5, 3].
    assert steps.advantages.flatten().tolist() == pytest.approx([3.0 + 1.0625, 6.0 + 3.25])
    columns = {"reached": steps.reached[1], "novelty_returns": torch.tensor([4.0])}
    assert loss_of(agent, columns).total.item() == pytest.approx(16.0 + 0.5 * 3.0**2)


def test_asymmetry_compares_mirrored_actions_in_mirrored_states() -> None:
    config = PPOConfig(settings={"symmetry": 2.0})
    stand_in = SimpleNamespace(actor=lambda rows: rows[:, :2])
    stand_in.loss = lambda inputs, clip_range: symmetry.symmetric(inputs, config, clip_range)
    seen, outputs = torch.tensor([[math.log(3), 0.0, 0.0, 0.0]]), torch.tensor([[0.0, math.log(3)]])
    # Probabilities are [1/4, 3/4]. In the mirrored state they are [1/4, 3/4], too, whose mirror image is [3/4, 1/4].
    assert loss_of(stand_in, {}, raw_observations=seen, outputs=outputs).total.item() == pytest.approx(2.0 * 0.5**2)


@torch.no_grad()
def test_attention_of_items_does_not_depend_on_their_order() -> None:
    torch.manual_seed(0)
    actor, critic = set_attention.networks(Box(-1.0, 1.0, (6, 2)), Discrete(6), PPOConfig(), torch.Generator())
    items, order = torch.randn(1, 6, 2), torch.tensor([3, 0, 5, 1, 4, 2])
    logits, value = actor(items.flatten(1)), critic(items.flatten(1))
    assert torch.allclose(actor(items[:, order].flatten(1)), logits[:, order], atol=1e-6)
    assert torch.allclose(critic(items[:, order].flatten(1)), value, atol=1e-6)
    # Every item attends to every other: softmax(Q K^T / sqrt(64)) V, and a residual connection.
    embedded = actor.embed(items)
    queries, keys, values = actor.queries_keys_values(embedded).chunk(3, -1)
    attended = embedded + (queries @ keys.mT / 8.0).softmax(-1) @ values
    assert torch.allclose(actor.head(attended).squeeze(-1), logits, atol=1e-6)


def test_advantages_go_up_as_long_as_steps_are_good() -> None:
    columns = {"rewards": [1.0, 0.0, 2.0, 0.0], "values": [0.0, 1.0, 0.0, 1.0], "next_values": [1.0, 0.0, 9.0, 4.0]}
    steps: dict[str, Any] = {name: torch.tensor(column)[:, None] for name, column in columns.items()}
    steps |= {"terminated": steps["rewards"] == 2.0, "truncated": torch.zeros(4, 1, dtype=torch.bool)}
    advantages, returns = upgo.upgo(**steps, gamma=0.5, gae_lambda=0.0)
    # TD errors are [1.5, -1, 2, 1]: the return of the first step ends with the value of the second, which is bad.
    assert advantages.flatten().tolist() == [1.5, -1.0 + 0.5 * 2.0, 2.0, 1.0]
    assert returns.flatten().tolist() == [1.5, 0.0, 2.0, 2.0]


def test_the_learning_network_chooses_and_the_target_network_values() -> None:
    config = DDPGConfig(hidden_sizes=(4,), settings={"epsilon_steps": 100})
    agent: Any = double_dqn.DoubleDQN(Box(-9.0, 9.0, (4,)), Discrete(3, start=5), config)
    agent.parameters.values.data.zero_()
    agent.critics[-1].bias.data += torch.tensor([1.0, 2.0, 3.0])
    agent.loop()
    agent.target_critics[-1].bias.data[:] = torch.tensor([9.0, 8.0, 7.0])
    rows, numbers = torch.zeros(2, 4), {"returns": torch.tensor([1.0, 1.0]), "discounts": torch.tensor([0.5, 0.0])}
    minibatch = Transitions(rows, torch.tensor([0, 2]), **numbers, next_observations=rows, noise=torch.zeros(2, 0))
    loss, values = agent.critic_loss(minibatch)
    # Values are 1 and 3, and targets 1 + 0.5 * 7 and 1: the mean of the Huber losses of -3.5 and 2.
    assert values.flatten().tolist() == [1.0, 3.0]
    assert loss.item() == pytest.approx((3.0 + 1.5) / 2)
    assert agent.act(np.zeros(4)) == 5 + 2


def test_a_student_learns_from_the_teacher_of_the_states_that_it_visits() -> None:
    agent = made(distillation.Distillation, {"teacher": nn.Linear(4, 2)})
    teacher = agent.modules_of["teacher"]
    teacher.bias.data[:], teacher.weight.data[0, 3] = torch.tensor([0.25, 0.75]).log(), 1.0
    taught = prepared(agent, [0.0, 2.0, 0.0], 0.0, [1.0, 1.0], False).taught
    assert taught[:, 0, 0].tolist() == pytest.approx([math.log(0.25), math.log(0.25) + 2.0])
    loss = loss_of(agent, {"taught": taught[0]}, returns=torch.tensor([3.0]))
    # KL = 1/4 ln(1/4 / 1/2) + 3/4 ln(3/4 / 1/2), and half the squared error of a value of 0
    divergence = 0.25 * math.log(0.5) + 0.75 * math.log(1.5)
    assert loss.total.item() == pytest.approx(divergence + agent.config.value_coef * 4.5)


def test_demonstrations_are_what_the_teacher_did_and_raise_its_probability() -> None:
    teacher, env = SimpleNamespace(act=lambda seen: int(seen[2] > 0.0)), gymnasium.make("CartPole-v1")
    observations, actions = cloning.demonstrations(teacher, env, 30, seed=0)
    assert actions.tolist() == (observations[:, 2] > 0.0).long().tolist()
    assert (observations[0] == torch.as_tensor(env.reset(seed=0)[0])).all()
    agent: Any = made(PPO)
    before = agent.distribution.log_prob(agent.actor(observations), actions).mean().item()
    assert before == pytest.approx(math.log(0.5))
    assert cloning.imitate(agent, observations, actions, 1) == pytest.approx(-before)
    # Adam's first step is the learning rate: of parameters that are 0, only the last biases have a gradient.
    difference = agent.actor(observations)[0].diff().item()
    expected = 2 * agent.config.learning_rate
    assert difference == pytest.approx(expected if actions.sum() > 15 else -expected, rel=1e-2)


def test_random_actions_become_rare() -> None:
    actions, generator = double_dqn.EpsilonGreedy(4), np.random.default_rng(0)
    actions.warmup, outputs = 40_000, np.float32([0.0, 9.0, 1.0, 1.0])
    for rare in (0.25, 0.125, 0.0125):  # a quarter of epsilon: 1, 0.5, and at the end 0.05
        drawn = actions.sample(np.tile(outputs, (20_000, 1)), actions.draw_noise(generator, (20_000,)))
        shares = np.bincount(drawn, minlength=4) / 20_000
        assert shares.tolist() == pytest.approx([rare, 1.0 - 3.0 * rare, rare, rare], abs=0.01)
    assert actions.state() == {"drawn": 60_000}


def test_the_auxiliary_phase_learns_values_twice_and_keeps_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = made(ppg.PPG, updates_between=2)
    agent.modules_of["head"].bias.data.fill_(3.0)
    loss = agent.auxiliary_loss(torch.zeros(1, 4), torch.tensor([5.0]), torch.tensor([[0.25, 0.75]]).log())
    # Predictions are 3 and 0. KL = 1/4 ln(1/4 / 1/2) + 3/4 ln(3/4 / 1/2)
    kl = 0.25 * math.log(0.5) + 0.75 * math.log(1.5)
    assert loss.item() == pytest.approx(0.5 * 2.0**2 + 0.5 * 5.0**2 + kl)
    phases: list[Any] = []
    monkeypatch.setattr(agent, "optimize", lambda loss, columns, **options: phases.append((columns, options)) or 0.0)
    prepared(agent, [1.0, 2.0, 0.0], 0.0, [0.0, 4.0], False)
    assert agent.after_update(None, {}) is None
    agent.version += 1
    prepared(agent, [3.0, 3.0, 0.0], 0.0, [8.0, 8.0], False)
    assert agent.after_update(None, {}) == {"auxiliary_loss": 0.0}
    ((columns, options),) = phases
    assert options == {"num_epochs": 6, "minibatch_size": 64}
    observations, returns = columns["rows"], columns["returns"]
    assert torch.equal(columns["old"], agent.actor_network(observations))
    with pytest.raises(ConfigurationError, match="the auxiliary phase has no sequences"):
        ppg.PPG(agent.observation_space, agent.action_space, PPOConfig(recurrent="lstm"))
    # The two steps of each rollout repeat until the memory is full.
    half = agent.config.batch_size
    assert observations[[0, 1, half - 2, half - 1, half, half + 1], 0].tolist() == [1.0, 2.0, 1.0, 2.0, 3.0, 3.0]
    assert returns[[0, 1, half - 2, half - 1, half, half + 1]].tolist() == [2.0, 4.0, 2.0, 4.0, 12.0, 8.0]


def beta_of(first: float, second: float) -> Tensor:
    """The outputs for these concentrations, `[1, 2]`."""
    return (torch.tensor([[first, second]]) - 1.0).expm1().log()


def test_a_beta_distribution_by_hand() -> None:
    distribution = distribution_for(Box(-2.0, 6.0, (1,)), own=beta.Beta)
    # Beta(2, 2) has the density 6 x (1 - x), here on a width of 8: at 1/4, 9/64.
    outputs, actions = beta_of(2.0, 2.0), torch.tensor([[0.25]])
    assert distribution.log_prob(outputs, actions).item() == pytest.approx(math.log(9 / 64), abs=1e-5)
    # H = ln B(2, 2) + 2 psi(4) - 2 psi(2) = -ln 6 + 5/3, and ln 8 for the width
    assert distribution.entropy(outputs).item() == pytest.approx(5 / 3 - math.log(6) + math.log(8), abs=1e-5)
    assert distribution.mode(beta_of(4.0, 2.0).numpy()).item() == pytest.approx(3 / 4)
    assert distribution.to_env(np.array([[0.75]], np.float32)).tolist() == [[4.0]]
    # KL(Beta(2, 2), Beta(3, 2)) = ln(B(3, 2) / B(2, 2)) - psi(2) + psi(4) = ln(1/2) + 5/6
    assert distribution.kl(outputs, beta_of(3.0, 2.0)).item() == pytest.approx(5 / 6 - math.log(2), abs=1e-5)
    assert distribution.log_prob(outputs, torch.tensor([[1.0 - 1e-6]])).isfinite().all()


def test_a_truncated_normal_distribution_by_hand() -> None:
    distribution = distribution_for(Box(-2.0, 6.0, (1,)), own=truncated_normal.TruncatedNormal)
    # Mean 0, deviation 1, between -1 and 1, where the probability is erf(1 / sqrt 2); 4 units of the space for each.
    outputs, actions, inside = torch.zeros(1, 2), torch.tensor([[0.5]]), math.erf(math.sqrt(0.5))
    expected = -0.125 - 0.5 * math.log(2 * math.pi) - math.log(inside) - math.log(4)
    assert distribution.log_prob(outputs, actions).item() == pytest.approx(expected, abs=1e-5)
    # H = ln(sqrt(2 pi e) * inside) - 2 * density(1) / (2 * inside)
    density = math.exp(-0.5) / math.sqrt(2 * math.pi)
    expected = 0.5 * math.log(2 * math.pi * math.e) + math.log(inside) - density / inside + math.log(4)
    assert distribution.entropy(outputs).item() == pytest.approx(expected, abs=1e-5)
    assert distribution.to_env(distribution.mode(outputs.numpy())).tolist() == [[2.0]]


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_draws_have_the_moments_and_the_entropy(name: str) -> None:
    count, space = 50_000, Box(-1.0, 1.0, (2,))
    distribution = distribution_for(space, own=DISTRIBUTIONS[name])
    outputs = torch.tensor([[-1.0, 0.5, 0.3, -0.7]]).expand(count, 4).contiguous()
    noise = distribution.draw_noise(np.random.default_rng(0), (count,))
    actions = torch.from_numpy(distribution.sample(outputs.numpy(), noise))
    assert np.all(space.low <= distribution.to_env(actions.numpy()))
    assert np.all(distribution.to_env(actions.numpy()) <= space.high)
    log_prob, entropy = distribution.log_prob_and_entropy(outputs, actions)
    assert -log_prob.mean().item() == pytest.approx(entropy[0].item(), abs=0.02)
    # The mean of the score is 0.
    (score,) = torch.autograd.grad(distribution.log_prob(outputs.requires_grad_(), actions).mean(), outputs)
    np.testing.assert_allclose(score.sum(0), 0.0, atol=0.02)
    if name == "beta":
        expected = beta.Beta(space).beta(outputs[:1]).mean[0].tolist()
    else:
        expected = [truncated_mean(math.tanh(mean), math.exp(std)) for mean, std in ((-1.0, 0.3), (0.5, -0.7))]
    # From 0 to 1, or from -1 to 1.
    assert actions.mean(0).tolist() == pytest.approx(expected, abs=0.02)


def truncated_mean(mean: float, std: float) -> float:
    """Of a normal distribution between -1 and 1."""
    normal = NormalDist(mean, std)
    return mean + std**2 * (normal.pdf(-1.0) - normal.pdf(1.0)) / (normal.cdf(1.0) - normal.cdf(-1.0))


DIRECTIVE = re.compile(r"^\.\. auto(?:class|function|module):: (\S+)\n((?:   +\S.*\n)*)", re.MULTILINE)
LISTED = {
    name: re.findall(r"\w+", "".join(re.findall(r":members:((?:.*\n)(?:      .*\n)*)", options) or ["nothing"]))
    for name, options in DIRECTIVE.findall((ROOT / "docs" / "reference.md").read_text(encoding="utf-8"))
}
"""The public names of the reference, each with its members; an empty list for all."""


def resolved(name: str) -> Any:
    """What has a full name, such as `hybridppo.agents.agent.PolicyAgent`."""
    found: Any = hybridppo
    for part in name.split(".")[1:]:
        found = getattr(found, part, None) or importlib.import_module(f"{found.__name__}.{part}")
    return found


def members_of(kind: type) -> set[str]:
    """The members of a class, also those that are only annotated."""
    return {*dir(kind)}.union(*(inspect.get_annotations(base) for base in kind.__mro__))


@pytest.mark.parametrize("name", LISTED)
def test_what_the_reference_lists_is_there(name: str) -> None:
    found = resolved(name)
    if isinstance(found, type):
        assert {*LISTED[name]} - {"nothing"} <= members_of(found)
        assert not any(member.startswith("_") for member in LISTED[name])


def listed_of(kind: type) -> set[str]:
    """The members of a class that the reference lists, and of its bases."""
    classes = {resolved(name): members for name, members in LISTED.items() if isinstance(resolved(name), type)}
    found = (classes.get(base, ["nothing"]) or members_of(base) for base in kind.__mro__)
    return set().union(*found)


ARGUMENTS = {"rollout": Rollout, "steps": Batch, "inputs": LossInputs, "minibatch": Transitions}
"""What the arguments and variables of these names are in examples."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_uses_public_names_alone(name: str) -> None:
    tree, module = ast.parse(BLOCKS[name]), importlib.import_module(name)
    imported = [
        f"{node.module}.{each.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("hybridppo")
        for each in node.names
    ]
    public = {*LISTED, *(f"hybridppo.{each}" for each in hybridppo.__all__)}
    assert {*imported} - public == set()
    kinds: dict[str, Any] = {}
    for part in tree.body:
        if isinstance(part, ast.ClassDef):
            kind = getattr(module, part.name)
            is_ours = any(base.__module__.startswith("hybridppo.") for base in kind.__mro__)
            kinds = {**ARGUMENTS, **({"self": kind} if is_ours else {})}
            written = (node for node in ast.walk(part) if isinstance(node, ast.Attribute))
            own = {*vars(kind), *(node.attr for node in written if isinstance(node.ctx, ast.Store))}
        elif isinstance(part, ast.FunctionDef):
            kinds, own = ARGUMENTS, set()
        for node in ast.walk(part):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in kinds:
                assert node.attr in listed_of(kinds[node.value.id]) | own, ast.unparse(node)
