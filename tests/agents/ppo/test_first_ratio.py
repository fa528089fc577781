"""Before an agent learns, every action is as probable as when it was taken: in every precision and form."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from loops import record_steps
from ppo_settings import ppo_config
from pretended_recorder import PretendedRecorder
from sampling import collecting
from selection import only_by_default

from hybridppo import PPO
from hybridppo.agents.ppo.by_autograd import Backend
from hybridppo.agents.ppo.by_numba import CompiledBackend
from hybridppo.agents.ppo.by_numpy import NumpyBackend
from hybridppo.environments.making import make_environments
from hybridppo.networks.modes import supports_bf16
from hybridppo.rollouts.rollout import Rollout

LARGEST_KL = 1e-8
"""Half the mean square of log-ratios, which are at most about 1e-4."""
NUMBERS = Box(-1.0, 1.0, (3,), np.float32)
SMALL = {"log_std_init": -4.0}
DISTRIBUTIONS: dict[str, tuple[gym.Space[Any], dict[str, Any]]] = {
    "gaussian": (NUMBERS, SMALL),
    "categorical": (Discrete(5), {}),
    "multi-discrete": (MultiDiscrete([3, 2, 4]), {}),
    "multi-binary": (MultiBinary(4), {}),
    "squashed": (NUMBERS, {**SMALL, "squash_actions": True}),
    "gSDE": (NUMBERS, {**SMALL, "use_sde": True}),
    "joint": (gym.spaces.Tuple((NUMBERS, Discrete(3), MultiDiscrete([2, 2]))), SMALL),
}
MEMORY = {"recurrent": "lstm", "recurrent_size": 16, "sequence_length": 8}
FORMS: dict[str, tuple[type, dict[str, Any]]] = {
    "autograd": (Backend, {"fast_updates": False}),
    "numpy": (NumpyBackend, {}),
    "compiled": (CompiledBackend, {"compiled_updates": True}),
    "recurrent": (Backend, {**MEMORY, "fast_updates": False}),
    "captured": (Backend, {"fast_updates": False}),
    "pool": (Backend, {"fast_updates": False, "pool_size": 2}),
}
NOT_WRITTEN = {
    ("bf16", "compiled"), ("bf16", "numpy"), *((precision, form, distribution)
    for precision in ("fp32", "bf16") for form, distribution in (("compiled", "gSDE"), ("compiled", "squashed"))),
}  # fmt: skip
needs_bf16 = pytest.mark.skipif(not supports_bf16(torch.device("cpu")), reason="needs a CPU that multiplies bfloat16")
CASES = [
    pytest.param(
        precision, form, distribution, id=f"{precision}-{form}-{distribution}",
        marks=[*([needs_bf16] if precision == "bf16" else []), *([pytest.mark.extras] if form == "compiled" else [])],
    )
    for precision in ("fp32", "bf16")
    for form in FORMS
    for distribution in DISTRIBUTIONS
    if not NOT_WRITTEN & {(precision, form), (precision, form, distribution)}
    and not (distribution == "gSDE" and "recurrent" in form)
]  # fmt: skip


class Anything(gym.Env[Any, Any]):
    """Random observations and rewards."""

    observation_space = Box(-np.inf, np.inf, (6,), np.float32)

    def __init__(self, action_space: gym.Space[Any]) -> None:
        self.action_space = action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        return self._observation(), float(self.np_random.normal()), bool(self.np_random.random() < 0.1), False, {}

    def _observation(self) -> Any:
        return self.np_random.normal(size=6).astype(np.float32)


EVERY_DISTRIBUTION = (("fp32", "autograd"), ("fp32", "numpy"), ("fp32", "compiled"))
"""Forms that have code of their own for distributions, each in one precision; the others do what autograd does."""
CHOSEN = [
    str(case.id)
    for case in CASES
    if case.values[:2] in EVERY_DISTRIBUTION or case.values[2] in ("gaussian", "categorical")
]


def agent_of(precision: Any, form: str, distribution: str, monkeypatch: pytest.MonkeyPatch) -> PPO:
    """An agent that does not learn, and whose parameters are not the initial ones."""
    kind, options = FORMS[form]
    space, more = DISTRIBUTIONS[distribution]
    config = ppo_config(
        num_envs=4, num_steps=32, num_epochs=1, num_minibatches=2, hidden_sizes=(128, 128), precision=precision,
        **options, **more,
    )  # fmt: skip
    agent = PPO(Anything.observation_space, space, config, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in agent.actor.named_parameters():
            if "log_std" not in name:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    agent.optimizer.set_learning_rates({"actor": 0.0, "critic": 0.0})
    if form == "captured":
        record_steps(agent, PretendedRecorder())
    assert type(agent.loop().backend) is kind
    return agent


def rollouts_of(agent: PPO) -> Callable[[], Rollout]:
    environments = make_environments(lambda: Anything(agent.action_space), agent.config.num_envs)
    collect = collecting(agent, environments, env_seed=3)
    return lambda: collect().map(torch.clone)


@pytest.mark.parametrize(("precision", "form", "distribution"), only_by_default(CHOSEN, CASES, pytest.mark.slow))
def test_a_first_update_shows_a_ratio_of_one(
    precision: Any, form: str, distribution: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = agent_of(precision, form, distribution, monkeypatch)
    sample = rollouts_of(agent)
    for _ in range(3 if form == "captured" else 2):  # with a recorded step among them
        metrics = agent.update(sample())
        assert abs(metrics["approx_kl"]) < LARGEST_KL
        assert metrics["clip_fraction"] == 0.0
        assert metrics.get("total_variation", 0.0) < 1e-4


@needs_bf16
@pytest.mark.parametrize("form", ["autograd", "recurrent"])
def test_rounding_is_no_part_of_the_ratio_to_older_parameters(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With policy lag, an update with rounded products has the ratio of one without."""
    found = []
    for precision in ("fp32", "bf16"):
        agent = agent_of(precision, form, "gaussian", monkeypatch)
        rollout = replace(rollouts_of(agent)(), version=-1)
        with torch.no_grad():  # as if there had been an update since
            agent.parameters.values[agent.parameters.range_of("actor")].mul_(1.0005)
        found.append(agent.update(rollout))
    assert found[0]["approx_kl"] > 1e-3
    assert found[1]["approx_kl"] == pytest.approx(found[0]["approx_kl"], rel=0.2)
