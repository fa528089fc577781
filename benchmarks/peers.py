"""The cases' work in the words of other libraries, and a turn of each. It does not need this library.

python benchmarks/peers.py stable-baselines3 small
"""

import argparse
import importlib
import json
import sys
import time
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import gymnasium as gym
import torch
from cases import (
    CASES,
    CLIP_RANGE,
    ENTROPY_COEF,
    GAE_LAMBDA,
    GAMMA,
    LEARNING_RATE,
    MAX_GRAD_NORM,
    MORE_CASES,
    SLOW_CASES,
    VALUE_COEF,
    Case,
    Mark,
    work_done,
)


def their_agent(case: Case, environments: Any, library: str = "stable_baselines3") -> Any:
    """The case's work in the words of stable-baselines3, or `sbx`: on the CPU, without a log."""
    PPO = importlib.import_module(library).PPO  # noqa: N806 - a class

    heads = list(case.hidden_sizes)
    policy: dict[str, Any] = {"net_arch": {"pi": heads, "vf": heads}}
    if library == "stable_baselines3":
        policy["activation_fn"] = torch.nn.Tanh  # that of sbx by itself
    if case.has_images:  # whose features extractor is the convolutions and the first hidden layer
        (features_dim,) = case.hidden_sizes
        policy = {
            "net_arch": {"pi": [], "vf": []},
            "features_extractor_kwargs": {"features_dim": features_dim},
            "share_features_extractor": False,
        }
    return PPO(
        "CnnPolicy" if case.has_images else "MlpPolicy",
        environments,
        n_steps=case.num_steps,
        n_epochs=case.num_epochs,
        batch_size=case.minibatch_size,
        learning_rate=LEARNING_RATE,
        gamma=GAMMA,
        gae_lambda=GAE_LAMBDA,
        clip_range=CLIP_RANGE,
        ent_coef=ENTROPY_COEF,
        vf_coef=VALUE_COEF / 2,  # its value loss lacks the half
        max_grad_norm=MAX_GRAD_NORM,
        policy_kwargs=policy,
        seed=0,
        device="cpu",
        verbose=0,
    )


def their_environments(case: Case, vector: str, start_method: str | None = None) -> Any:
    """Its environments without a monitor: `dummy` steps them in turn, `subproc` each in a process of its own."""
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    makers = [partial(gym.make, case.env_id)] * case.num_envs
    if vector == "dummy":
        return DummyVecEnv(makers)
    return SubprocVecEnv(makers, start_method=start_method)


def run_stable_baselines3(case: Case, vector: str = "dummy", start_method: str | None = None) -> dict[str, Any]:
    """A turn of stable-baselines3, in environments that it makes."""
    environments = their_environments(case, vector, start_method)
    return learn_by_stable_baselines3(case, their_agent(case, environments))


def learn_by_stable_baselines3(case: Case, agent: Any) -> dict[str, Any]:
    """Its training: sampling is what its `collect_rollouts` does, learning the rest. Closes the environments."""
    from stable_baselines3.common.callbacks import BaseCallback

    class Marking(BaseCallback):
        """Notes when rollouts begin and end; a rollout's beginning is the end of the iteration before."""

        begins: list[float]
        sampled: list[tuple[float, int]]

        def _on_training_start(self) -> None:
            self.begins, self.sampled = [], []

        def _on_rollout_start(self) -> None:
            self.begins.append(time.perf_counter())

        def _on_rollout_end(self) -> None:
            self.sampled.append((time.perf_counter(), self.num_timesteps))

        def _on_training_end(self) -> None:
            self.begins.append(time.perf_counter())

        def _on_step(self) -> bool:
            return True

    torch.set_num_threads(1)
    callback = Marking()
    total_steps = (case.warmup + case.iterations) * case.batch_size
    agent.learn(total_steps, callback=callback, log_interval=None)  # None: never
    agent.get_env().close()
    marks = [
        Mark(end, env_steps, sampled - begin, end - sampled)
        for (begin, end), (sampled, env_steps) in zip(pairwise(callback.begins), callback.sampled, strict=True)
    ]
    return work_done(marks, case)


def run_skrl(case: Case) -> dict[str, Any]:
    """A turn of skrl on gymnasium's own vectorised environments: learning is what its `update` does, sampling the rest.

    Rows that environments spend on a reset count as steps here, in its favour: it trains on them like on others.
    """
    from skrl.agents.torch.ppo import PPO
    from skrl.envs.wrappers.torch import wrap_env
    from skrl.memories.torch import RandomMemory
    from skrl.models.torch import CategoricalMixin, DeterministicMixin, Model
    from skrl.trainers.torch import SequentialTrainer

    def mlp(inputs: int, outputs: int) -> torch.nn.Sequential:
        layers: list[torch.nn.Module] = []
        for before, after in pairwise((inputs, *case.hidden_sizes)):
            layers += [torch.nn.Linear(before, after), torch.nn.Tanh()]
        return torch.nn.Sequential(*layers, torch.nn.Linear(case.hidden_sizes[-1], outputs))

    class Policy(CategoricalMixin, Model):
        """Logits of the actions."""

        def __init__(self, environments: Any) -> None:
            spaces = {"observation_space": environments.observation_space, "action_space": environments.action_space}
            Model.__init__(self, **spaces, device="cpu")
            CategoricalMixin.__init__(self)
            self.net = mlp(self.num_observations, self.num_actions)

        def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[Any, dict[str, Any]]:
            return self.net(inputs["observations"]), {}

    class Value(DeterministicMixin, Model):
        """A value."""

        def __init__(self, environments: Any) -> None:
            spaces = {"observation_space": environments.observation_space, "action_space": environments.action_space}
            Model.__init__(self, **spaces, device="cpu")
            DeterministicMixin.__init__(self)
            self.net = mlp(self.num_observations, 1)

        def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[Any, dict[str, Any]]:
            return self.net(inputs["observations"]), {}

    torch.set_num_threads(1)
    torch.manual_seed(0)
    environments = wrap_env(gym.make_vec(case.env_id, num_envs=case.num_envs), verbose=False)
    marks: list[Mark] = []

    class Marked(PPO):
        """Notes when updates begin and end."""

        ended = 0.0

        def update(self, *, timestep: int, timesteps: int) -> None:
            begun = time.perf_counter()
            super().update(timestep=timestep, timesteps=timesteps)
            now = time.perf_counter()
            marks.append(Mark(now, (timestep + 1) * case.num_envs, begun - self.ended, now - begun))
            self.ended = now

    agent = Marked(
        models={"policy": Policy(environments), "value": Value(environments)},
        memory=RandomMemory(memory_size=case.num_steps, num_envs=case.num_envs, device="cpu"),
        observation_space=environments.observation_space,
        action_space=environments.action_space,
        device="cpu",
        cfg={
            "rollouts": case.num_steps,
            "learning_epochs": case.num_epochs,
            "mini_batches": case.num_minibatches,
            "discount_factor": GAMMA,
            "gae_lambda": GAE_LAMBDA,
            "learning_rate": LEARNING_RATE,
            "grad_norm_clip": MAX_GRAD_NORM,
            "ratio_clip": CLIP_RANGE,
            "value_clip": 0.0,
            "entropy_loss_scale": ENTROPY_COEF,
            "value_loss_scale": VALUE_COEF / 2,  # its value loss lacks the half
            "experiment": {"write_interval": 0, "checkpoint_interval": 0},
        },
    )
    timesteps = (case.warmup + case.iterations) * case.num_steps
    settings = {"timesteps": timesteps, "headless": True, "disable_progressbar": True}
    SequentialTrainer(env=environments, agents=agent, cfg=settings).train()
    return work_done(marks, case)


def run_sbx(case: Case) -> dict[str, Any]:
    """A turn of SBX, which is stable-baselines3 in JAX."""
    if case.has_images:
        return {"left_out": "its PPO has no convolutions"}
    return learn_by_stable_baselines3(case, their_agent(case, their_environments(case, "dummy"), "sbx"))


def run_torchrl(case: Case) -> dict[str, Any]:
    """A turn of TorchRL, as its own scripts put the parts together, without its log."""
    from tensordict.nn import NormalParamExtractor, TensorDictModule
    from torchrl.collectors import Collector
    from torchrl.data import LazyTensorStorage, SamplerWithoutReplacement, TensorDictReplayBuffer
    from torchrl.envs import GymEnv, SerialEnv
    from torchrl.modules import IndependentNormal, ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    if case.has_images:
        return {"left_out": "images are not tried"}
    torch.set_num_threads(1)
    torch.manual_seed(0)
    environments = SerialEnv(case.num_envs, partial(GymEnv, case.env_id, categorical_action_encoding=True))
    space = gym.make(case.env_id).action_space
    is_discrete = isinstance(space, gym.spaces.Discrete)
    inputs = environments.observation_spec["observation"].shape[-1]

    def mlp(outputs: int, *others: torch.nn.Module) -> torch.nn.Sequential:
        layers: list[torch.nn.Module] = []
        for before, after in pairwise((inputs, *case.hidden_sizes)):
            layers += [torch.nn.Linear(before, after), torch.nn.Tanh()]
        return torch.nn.Sequential(*layers, torch.nn.Linear(case.hidden_sizes[-1], outputs), *others)

    if isinstance(space, gym.spaces.Discrete):
        module, keys = mlp(int(space.n)), ["logits"]
    else:
        module, keys = mlp(2 * space.shape[0], NormalParamExtractor()), ["loc", "scale"]  # type: ignore[index]
    actor = ProbabilisticActor(
        TensorDictModule(module, in_keys=["observation"], out_keys=keys),
        in_keys=keys,
        spec=environments.action_spec,
        distribution_class=torch.distributions.Categorical if is_discrete else IndependentNormal,
        return_log_prob=True,
    )
    critic = ValueOperator(mlp(1), in_keys=["observation"])
    loss = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=CLIP_RANGE,
        entropy_coeff=ENTROPY_COEF,
        critic_coeff=VALUE_COEF / 2,  # its value loss lacks the half
        loss_critic_type="l2",
        normalize_advantage=True,
    )
    advantages = GAE(gamma=GAMMA, lmbda=GAE_LAMBDA, value_network=critic)
    optimizer = torch.optim.Adam(loss.parameters(), lr=LEARNING_RATE, eps=1e-5)
    rollout = TensorDictReplayBuffer(
        storage=LazyTensorStorage(case.batch_size),
        sampler=SamplerWithoutReplacement(),
        batch_size=case.minibatch_size,
    )
    total = (case.warmup + case.iterations) * case.batch_size
    collector = Collector(environments, actor, frames_per_batch=case.batch_size, total_frames=total)
    marks: list[Mark] = []
    ended, steps = time.perf_counter(), 0
    for data in collector:
        sampled = time.perf_counter()
        with torch.no_grad():
            advantages(data)
        rollout.extend(data.reshape(-1))
        for _ in range(case.num_epochs * case.num_minibatches):
            losses = loss(rollout.sample())
            sum(losses[key] for key in ("loss_objective", "loss_critic", "loss_entropy")).backward()
            torch.nn.utils.clip_grad_norm_(loss.parameters(), MAX_GRAD_NORM)
            optimizer.step()
            optimizer.zero_grad()
        now, steps = time.perf_counter(), steps + data.numel()
        marks.append(Mark(now, steps, sampled - ended, now - sampled))
        ended = now
    collector.shutdown()
    return work_done(marks, case)


def run_tianshou(case: Case) -> dict[str, Any]:
    """A turn of Tianshou, by its procedural parts: a collector and an algorithm, without its trainer and its log."""
    from tianshou.algorithm import PPO
    from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
    from tianshou.utils.net.discrete import DiscreteActor
    from tianshou.utils.torch_utils import policy_within_training_step
    from torch.distributions import Categorical, Independent, Normal

    if case.has_images:
        return {"left_out": "images are not tried"}
    torch.set_num_threads(1)
    torch.manual_seed(0)
    environments = DummyVectorEnv([partial(gym.make, case.env_id)] * case.num_envs)
    one = gym.make(case.env_id)
    space, shape = one.action_space, one.observation_space.shape

    def net() -> Any:
        return Net(state_shape=shape, hidden_sizes=list(case.hidden_sizes), activation=torch.nn.Tanh)

    if isinstance(space, gym.spaces.Discrete):
        actor = DiscreteActor(preprocess_net=net(), action_shape=(int(space.n),), softmax_output=False)
        distribution: Any = lambda logits: Categorical(logits=logits)  # noqa: E731 - its own form
    else:
        actor = ContinuousActorProbabilistic(preprocess_net=net(), action_shape=space.shape, unbounded=True)
        distribution = lambda outputs: Independent(Normal(*outputs), 1)  # noqa: E731 - its own form
    algorithm = PPO(
        policy=ProbabilisticActorPolicy(
            actor=actor, dist_fn=distribution, action_space=space, action_scaling=False, action_bound_method=None
        ),
        critic=ContinuousCritic(preprocess_net=net()),
        optim=AdamOptimizerFactory(lr=LEARNING_RATE, eps=1e-5),
        eps_clip=CLIP_RANGE,
        vf_coef=VALUE_COEF / 2,  # its value loss lacks the half
        ent_coef=ENTROPY_COEF,
        max_grad_norm=MAX_GRAD_NORM,
        gae_lambda=GAE_LAMBDA,
        gamma=GAMMA,
        max_batchsize=case.batch_size,
    )
    buffer = VectorReplayBuffer(case.batch_size, case.num_envs)
    collector = Collector(algorithm, environments, buffer)
    collector.reset()
    marks: list[Mark] = []
    ended = time.perf_counter()
    for iteration in range(case.warmup + case.iterations):
        with policy_within_training_step(algorithm.policy):
            collector.collect(n_step=case.batch_size)
            sampled = time.perf_counter()
            algorithm.update(buffer=buffer, batch_size=case.minibatch_size, repeat=case.num_epochs)
        collector.reset_buffer(keep_statistics=True)
        now = time.perf_counter()
        marks.append(Mark(now, (iteration + 1) * case.batch_size, sampled - ended, now - sampled))
        ended = now
    return work_done(marks, case)


TURNS = {
    "stable-baselines3": run_stable_baselines3,
    "SBX": run_sbx,
    "skrl": run_skrl,
    "TorchRL": run_torchrl,
    "Tianshou": run_tianshou,
}
"""A turn of each library that is measured."""


def main() -> int:
    """Run one turn; its result is a line of JSON."""
    cases = CASES | MORE_CASES | SLOW_CASES
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=TURNS)
    parser.add_argument("case", choices=cases)
    parser.add_argument("--iterations", type=int, help="counted iterations instead of the case's own")
    arguments = parser.parse_args()
    case = cases[arguments.case]
    if arguments.iterations is not None:
        case = replace(case, iterations=arguments.iterations)
    print(json.dumps(TURNS[arguments.peer](case)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
