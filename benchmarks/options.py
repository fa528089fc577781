"""Does PPO learn better with an option? Changes of the defaults on eight environments, each beside the defaults.

    python benchmarks/options.py --options popart,muon --environments Hopper-v5 --seeds 1
    python benchmarks/options.py --total-steps 100000 --seeds 3        # all that are missing
    python benchmarks/options.py --seeds 0                             # none: prints the table

Each run is a training with one option, in a process of its own, evaluated every 100,000 steps by 10 episodes with the
most probable actions. Runs that are already in the results are skipped. Options that the library does not have are
written here, with what it leaves to its users: a loss, networks, and methods of a subclass. Needs the extras `box2d`,
`mujoco` and `compiled`, and SciPy.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from defaults import ENVIRONMENTS
from missing_runs import Run, parser_of, run_missing
from torch import Tensor, nn

import hybridppo
from hybridppo import PPO, PPOConfig
from hybridppo.agents.ppo.loss import normalize, ppo_loss
from hybridppo.compiled.known import WRITTEN_HERE
from hybridppo.networks.adam import FlatAdam
from hybridppo.networks.forms import linears
from hybridppo.networks.making import actor_and_critic
from hybridppo.networks.mlp import MLP
from hybridppo.networks.normalization import RunningMoments, moments_of
from hybridppo.rollouts.advantages import gae
from hybridppo.tools.curves import interquartile_mean

MARK = 100_000
"""Steps between evaluations."""
EPISODES = 10
NAMES = ("option", "env_id", "total_steps", "seed")


class RunningTargets(PPO):
    """The critic learns normalized returns: less the mean of all returns so far, divided by their deviation."""

    keeps_outputs = False
    """Whether the critic's last layer is rescaled, so that its values stay the same when the moments change."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.targets = RunningMoments()

    def _moments(self) -> tuple[Tensor, Tensor]:
        return self.targets.mean.clone(), self.targets.variance.clamp(min=1e-4).sqrt()

    def advantages(self, **steps: Any) -> Tensor:
        """In units of the critic's outputs, so that an output plus an advantage is the return in these units."""
        mean, deviation = self._moments()
        for name in ("values", "next_values"):
            steps[name] = steps[name] * deviation + mean
        return super().advantages(**steps) / deviation

    @torch.no_grad()
    def prepared(self, *args: Any) -> Any:
        """Returns and values, normalized by the moments that include this rollout."""
        batch = super().prepared(*args)
        mean, deviation = self._moments()
        returns, values = batch.returns * deviation + mean, batch.values * deviation + mean
        self._add(returns)
        new_mean, new_deviation = self._moments()
        if self.keeps_outputs:
            last = [layer for layer in self.critic_network.modules() if isinstance(layer, nn.Linear)][-1]
            last.weight.mul_(deviation / new_deviation)
            last.bias.copy_((last.bias * deviation + mean - new_mean) / new_deviation)
        return replace(batch, returns=(returns - new_mean) / new_deviation, values=(values - new_mean) / new_deviation)

    def _add(self, returns: Tensor) -> None:
        self.targets.merge(*moments_of(returns))


class PopArt(RunningTargets):
    """Uses moving moments of returns, and rescales the critic so that its values stay (van Hasselt et al., 2016)."""

    keeps_outputs = True
    share = 0.2
    """Weight of a rollout in the moments."""

    def _add(self, returns: Tensor) -> None:
        number = len(returns)
        kept = 0 if not self.targets.count else round(number * (1.0 - self.share) / self.share)
        self.targets.count.fill_(kept)
        self.targets.merge(*moments_of(returns))


class OwnLambda(PPO):
    """The critic's targets use another lambda than the advantages (DNA, Aitchison and Sweetser, 2022)."""

    critic_lambda = 0.95

    def advantages(self, **steps: Any) -> Tensor:
        """Also note the critic's targets."""
        self._targets = gae(**{**steps, "gae_lambda": self.critic_lambda}) + steps["values"]
        return super().advantages(**steps)

    def prepared(self, rollout: Any, loop: Any) -> Any:
        """The batch with these targets."""
        batch, targets = super().prepared(rollout, loop), self._targets.flatten()
        return replace(batch, returns=targets if len(targets) == len(batch) else targets[rollout.valid_rows])


class OwnEpochs(PPO):
    """One of the networks learns in fewer epochs than the other."""

    epochs: ClassVar = {"actor": 5}

    def _epochs(self, batch: Any, sizes: Sequence[int]) -> Iterator[tuple[Any, Any]]:
        for number, epoch in enumerate(super()._epochs(batch, sizes)):
            over = {name: 0.0 for name, epochs in self.epochs.items() if number >= epochs}
            self.optimizer.set_learning_rates({**self._learning_rates(), **over})
            yield epoch
        self.optimizer.set_learning_rates(self._learning_rates())


class CriticEpochs(OwnEpochs):
    """The critic learns in fewer epochs than the actor."""

    epochs: ClassVar = {"critic": 5}


class NormalizedOnce(PPO):
    """Advantages are normalized over the whole batch."""

    def _epochs(self, batch: Any, sizes: Sequence[int]) -> Iterator[tuple[Any, Any]]:
        orders = batch.orders(self._order, self.config.num_epochs)
        once = replace(batch, advantages=normalize(batch.advantages))
        return zip(orders, once.weighed(orders, sizes, False), strict=True)


class Recomputed(PPO):
    """Before each epoch, the present critic estimates advantages and returns again."""

    def prepared(self, rollout: Any, loop: Any) -> Any:
        """Also note what they are estimated from."""
        self._given = rollout, loop
        return super().prepared(rollout, loop)

    @torch.no_grad()
    def _again(self) -> Any:
        rollout, loop = self._given
        (rewards,) = self.normalization.of_rewards(rollout.parts, None)
        estimated = self._estimated(rollout, rewards, loop, None, slice(0, rewards.shape[1]))
        return self.cut.batch(estimated, rollout)

    def _epochs(self, batch: Any, sizes: Sequence[int]) -> Iterator[tuple[Any, Any]]:
        for number, order in enumerate(batch.orders(self._order, self.config.num_epochs)):
            now = self._again() if number else batch
            yield order, now.weighed(order[None], sizes, True)[0]


class EarlyMoments(PPO):
    """The moments of observations change only in the first ten updates."""

    def prepared(self, rollout: Any, loop: Any) -> Any:
        """Freeze them after these updates."""
        if self.version >= 10:
            self.normalization.learned = lambda *_: None  # type: ignore[method-assign]
        return super().prepared(rollout, loop)


def softer_networks(observation_space: Any, action_space: Any, config: PPOConfig, generator: Any) -> Any:
    """The library's networks, with half the initial weights in their first layers."""
    networks = actor_and_critic(observation_space, action_space, config, generator)
    with torch.no_grad():
        for network in networks:
            linears(network)[0].weight.mul_(0.5)
    return networks


class AdamW(FlatAdam):
    """Adam with decay of all weights but biases (Loshchilov and Hutter, 2019)."""

    decay = 0.01

    def __init__(self, agent: PPO) -> None:
        super().__init__(agent.parameters, agent._learning_rates(), eps=1e-5)
        self._weights = torch.zeros_like(agent.parameters.values.data)
        first = agent.parameters.values.data_ptr()
        for parameter in agent.parameters.everything():
            if parameter.dim() > 1:
                start = (parameter.data_ptr() - first) // 4
                self._weights[start : start + parameter.numel()] = 1.0

    def step(self) -> None:
        """A step of Adam after the decay."""
        rate = self.learning_rates["actor"]
        self._parameters.values.data.mul_(1.0 - rate * self.decay * self._weights)
        super().step()


class Muon(FlatAdam):
    """Hidden layers' matrices step by the orthogonalized momentum (Jordan et al., 2024), all else by Adam.

    A step is scaled to the size of Adam's (Liu et al., 2025, "Muon is Scalable for LLM Training").
    """

    momentum = 0.95

    def __init__(self, agent: PPO) -> None:
        super().__init__(agent.parameters, agent._learning_rates(), eps=1e-5)
        layers = [
            [layer for layer in network.modules() if isinstance(layer, nn.Linear)][:-1]
            for network in (agent.actor_network, agent.critic_network)
        ]
        first = agent.parameters.values.data_ptr()
        self._matrices = []
        for pair in zip(*layers, strict=True):
            starts = [(layer.weight.data_ptr() - first) // 4 for layer in pair]
            shape = pair[0].weight.shape
            self._matrices.append((starts, shape, torch.zeros((2, *shape))))

    def step(self) -> None:
        """Take the matrices' gradients out of Adam's, and make their own steps."""
        values, gradient = self._parameters.values.data, self._parameters.gradient
        rate = self.learning_rates["actor"]
        for starts, shape, momentum in self._matrices:
            flats = [gradient[start : start + shape.numel()].view(shape) for start in starts]
            now = torch.stack(flats)
            momentum.lerp_(now, 1.0 - self.momentum)
            direction = orthogonal(now.lerp(momentum, self.momentum))
            for start, flat, of_one in zip(starts, flats, direction, strict=True):
                scale = 0.2 * math.sqrt(max(shape))
                values[start : start + shape.numel()].view(shape).sub_(of_one, alpha=rate * scale)
                flat.zero_()  # Adam's step of a gradient that is always 0 is 0
        super().step()


def orthogonal(matrices: Tensor) -> Tensor:
    """Approximately the nearest semi-orthogonal matrices to `[K, m, n]`, by five Newton-Schulz iterations."""
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if is_tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        product = x @ x.mT
        x = 3.4445 * x + (-4.7750 * product + 2.0315 * product @ product) @ x
    return x.mT if is_tall else x


class WithAdamW(PPO):
    """PPO with AdamW."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.optimizer = AdamW(self)


class WithMuon(PPO):
    """PPO with Muon."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.optimizer = Muon(self)


class BetaDistribution:
    """Independent Beta distributions between the bounds of a `Box` (Chou et al., 2017); outputs are `[..., 2 * d]`."""

    action_dtype = np.float32
    mask_size = free_size = 0

    def __init__(self, space: gym.spaces.Box) -> None:
        self.space, self.shape, self.size = space, space.shape, int(np.prod(space.shape))
        self.action_shape = (self.size,)
        self.output_size, self.noise_size = 2 * self.size, self.size

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Any:
        """Uniform noise, `[*shape, d]`."""
        return generator.random((*shape, self.size), dtype=np.float32)

    def _shapes(self, outputs: Any) -> tuple[Any, Any]:
        shapes = 1.0 + np.logaddexp(0.0, outputs.astype(np.float64))
        return shapes[..., : self.size], shapes[..., self.size :]

    def sample(self, outputs: Any, noise: Any) -> Any:
        """By the inverse of the distribution function."""
        from scipy.special import betaincinv

        return betaincinv(*self._shapes(outputs), noise).clip(1e-5, 1.0 - 1e-5).astype(np.float32)

    def mode(self, outputs: Any) -> Any:
        """The mean, which is near the mode and always inside."""
        a, b = self._shapes(outputs)
        return (a / (a + b)).astype(np.float32)

    def to_env(self, actions: Any) -> Any:
        """Scale from [0, 1] to the bounds of the space."""
        shaped = actions.reshape(actions.shape[:-1] + self.shape)
        low, high = self.space.low, self.space.high
        return np.clip(low + (high - low) * shaped, low, high).astype(self.space.dtype)

    def log_prob(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """A sum over the dimensions."""
        return self.log_prob_and_entropy(outputs, actions)[0]

    def log_prob_and_entropy(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over the dimensions, in units of the stored actions."""
        shapes = 1.0 + nn.functional.softplus(outputs)
        a, b = shapes[..., : self.size], shapes[..., self.size :]
        log_beta = torch.lgamma(shapes).view(*shapes.shape[:-1], 2, -1).sum(-2) - torch.lgamma(a + b)
        log_prob = (a - 1.0) * actions.log() + (b - 1.0) * torch.log1p(-actions) - log_beta
        of_shapes = ((shapes - 1.0) * torch.digamma(shapes)).view(*shapes.shape[:-1], 2, -1).sum(-2)
        entropy = log_beta - of_shapes + (a + b - 2.0) * torch.digamma(a + b)
        return log_prob.sum(-1), entropy.sum(-1)


class Beta(PPO):
    """Actions of Beta distributions."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.distribution = BetaDistribution(self.action_space)  # type: ignore[arg-type, assignment]


def beta_networks(observation_space: Any, action_space: Any, config: PPOConfig, generator: Any) -> Any:
    """The library's networks, whose actor has two numbers for each action that depend on the observation."""
    inputs, sizes = int(np.prod(observation_space.shape)), config.hidden_sizes
    outputs = 2 * int(np.prod(action_space.shape))
    return (
        MLP(inputs, sizes, outputs, output_gain=0.01, generator=generator),
        MLP(inputs, sizes, 1, output_gain=1.0, generator=generator),
    )


def same_loss(inputs: Any, config: PPOConfig, clip_range: Any) -> Any:
    """PPO's loss, for a distribution whose gradient comes from autograd."""
    return ppo_loss(inputs, config, clip_range)


class Discretised(gym.ActionWrapper):  # type: ignore[type-arg]
    """Each number of an action is one of eleven levels (Tang and Agrawal, 2020)."""

    bins = 11

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.action_space = gym.spaces.MultiDiscrete([self.bins] * int(np.prod(env.action_space.shape)))

    def action(self, action: Any) -> Any:
        """The numbers that the levels stand for."""
        box: Any = self.env.action_space
        share = np.asarray(action, np.float32).reshape(box.shape) / (self.bins - 1)
        return (box.low + (box.high - box.low) * share).astype(box.dtype)


class Residual(nn.Module):
    """A block of SimBa: `x + W2 relu(W1 norm(x))`."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(size), nn.Linear(size, 4 * size), nn.ReLU(), nn.Linear(4 * size, size))
        for layer in (self.inner[1], self.inner[3]):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, rows: Tensor) -> Tensor:
        """`[B, size]` of `[B, size]`."""
        return rows + self.inner(rows)


def simba(inputs: int, outputs: int, blocks: int, gain: float, size: int = 64) -> nn.Sequential:
    """Residual blocks with layer normalisation (Lee et al., 2024, "SimBa")."""
    first, last = nn.Linear(inputs, size), nn.Linear(size, outputs)
    for layer, of_layer in ((first, 1.0), (last, gain)):
        nn.init.orthogonal_(layer.weight, of_layer)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(first, *(Residual(size) for _ in range(blocks)), nn.LayerNorm(size), last)


class Gaussian(nn.Module):
    """Means by a network, and log standard deviations as parameters."""

    def __init__(self, mean: nn.Module, size: int) -> None:
        super().__init__()
        self.mean, self.log_std = mean, nn.Parameter(torch.zeros(size))

    def forward(self, rows: Tensor) -> Tensor:
        """`[B, 2 * size]`."""
        mean = self.mean(rows)
        return torch.cat((mean, self.log_std.expand_as(mean)), -1)


def simba_networks(observation_space: Any, action_space: Any, config: PPOConfig, generator: Any) -> Any:
    """An actor of one block and a critic of two."""
    inputs = int(np.prod(observation_space.shape))
    critic = simba(inputs, 1, blocks=2, gain=1.0)
    if isinstance(action_space, gym.spaces.Discrete):
        return simba(inputs, int(action_space.n), blocks=1, gain=0.01), critic
    size = int(np.prod(action_space.shape))
    return Gaussian(simba(inputs, size, blocks=1, gain=0.01), size), critic


@dataclass(frozen=True)
class Option:
    """What differs from the defaults."""

    what: str
    settings: dict[str, Any] = field(default_factory=dict)
    """Fields of the configuration."""
    parts: dict[str, Any] = field(default_factory=dict)
    """Arguments of `train`."""
    wrapper: Callable[[Any], Any] | None = None
    """Wraps each environment."""
    needs_numbers: bool = False
    """Whether it is only for actions of a `Box`."""
    compiles: tuple[bool, bool] = (True, True)
    """Whether the environments' steps may be compiled, and whether the updates may: not with layers or an optimizer
    that the library lacks."""


OPTIONS = {
    "defaults": Option("the defaults"),
    "value-moments": Option("value targets normalised by running moments", parts={"agent": RunningTargets}),
    "popart": Option("likewise, by PopArt", parts={"agent": PopArt}),
    "lambda-0.9-0.95": Option(
        "lambda 0.9 for advantages, 0.95 for value targets", {"gae_lambda": 0.9}, {"agent": OwnLambda}
    ),
    "actor-5": Option("5 epochs of the actor, 10 of the critic", parts={"agent": OwnEpochs}),
    "critic-5": Option("10 epochs of the actor, 5 of the critic", parts={"agent": CriticEpochs}),
    "beta": Option(
        "Beta distributions",
        parts={"agent": Beta, "networks": beta_networks, "loss": same_loss},
        needs_numbers=True,
        compiles=(False, False),
    ),
    "discretised": Option(
        "each number of an action one of 11", wrapper=Discretised, needs_numbers=True, compiles=(False, True)
    ),
    "simba": Option(
        "residual blocks with layer normalisation", parts={"networks": simba_networks}, compiles=(False, False)
    ),
    "adamw": Option("AdamW, weight decay 0.01", parts={"agent": WithAdamW}, compiles=(True, False)),
    "muon": Option("Muon for hidden layers", parts={"agent": WithMuon}, compiles=(True, False)),
    "batch-normalised": Option("advantages normalised over the batch", parts={"agent": NormalizedOnce}),
    "deviation-1.6": Option("log standard deviations begin at 0.5", {"log_std_init": 0.5}, needs_numbers=True),
    "first-half": Option("first layers begin at half of their weights", parts={"networks": softer_networks}),
    "moments-20k": Option("moments of observations stay after 20,480 steps", parts={"agent": EarlyMoments}),
    "recomputed": Option("advantages estimated anew before each epoch", parts={"agent": Recomputed}),
}


class Kept(hybridppo.Callback):
    """Collects the evaluations of a training, and the training returns at the time."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        self._metrics: dict[str, Any] = {}

    def on_iteration(self, run: Any, metrics: Any) -> None:
        """Note the training return."""
        self._metrics = dict(metrics)

    def on_evaluation(self, run: Any, evaluation: dict[str, Any]) -> None:
        """Add the evaluation."""
        steps = int(evaluation["env_steps"]) // MARK * MARK
        self.found.append(
            {"total_steps": steps, "evaluation": evaluation["evaluation_return_mean"],
             "training": self._metrics.get("episode_return_mean")}
        )  # fmt: skip


def run(option: str, env_id: str, total_steps: int, seed: int) -> list[Run]:
    """Train in this process."""
    asked, kept = OPTIONS[option], Kept()
    env: Any = env_id
    if asked.wrapper is not None:
        wrapper = asked.wrapper
        env = lambda: wrapper(gym.make(env_id))  # noqa: E731
    environments_compile, updates_compile = asked.compiles
    has_form = gym.spec(env_id).entry_point in WRITTEN_HERE
    vectorization = "compiled" if has_form and environments_compile else "auto"
    start = time.process_time()
    hybridppo.train(
        env, total_steps=total_steps, seed=seed, placement="cpu", progress=False, evaluate_every=MARK,
        evaluate_episodes=EPISODES, callbacks=[kept], vectorization=vectorization,
        config=PPOConfig(compiled_updates=updates_compile, **asked.settings), **asked.parts,
    )  # fmt: skip
    return [{
        "option": option, "env_id": env_id, "seed": seed, "total_steps": total_steps,
        "processor_seconds": round(time.process_time() - start, 1), "evaluations": kept.found,
    }]  # fmt: skip


Returns = dict[tuple[str, str], dict[int, float]]
"""For each option and environment, the return of each seed."""


def returns_at(runs: Sequence[dict[str, Any]], mark: int) -> Returns:
    """The evaluations after this many steps; of runs of different length, the longest counts."""
    found: Returns = {}
    for one in sorted(runs, key=lambda each: int(each["total_steps"])):
        for each in one["evaluations"]:
            if each["total_steps"] == mark:
                found.setdefault((one["option"], one["env_id"]), {})[one["seed"]] = each["evaluation"]
    return found


def table(runs: Sequence[dict[str, Any]]) -> str:
    """Markdown: for each number of steps a table, with a row for each option."""
    marks = sorted({each["total_steps"] for one in runs for each in one["evaluations"]} & {MARK, 3 * MARK})
    return "\n\n".join(_table_at(returns_at(runs, mark), mark) for mark in marks)


def _table_at(returns: Returns, mark: int) -> str:
    environments = [env_id for env_id in ENVIRONMENTS if any(env_id == of for _, of in returns)]
    lines = [
        f"After {mark:,} steps:", "", f"| option | {' | '.join(environments)} | better, worse |",
        "|---|" + "---|" * (len(environments) + 1),
    ]  # fmt: skip
    for name, option in OPTIONS.items():
        cells, better, worse = [], 0, 0
        for env_id in environments:
            found, usual = returns.get((name, env_id), {}), returns.get(("defaults", env_id), {})
            same = sorted(found.keys() & usual.keys())
            if not same:
                cells.append("")
                continue
            middle, of_usual = (
                float(interquartile_mean(np.array([of[seed] for seed in same]))) for of in (found, usual)
            )
            better, worse = better + (middle > of_usual), worse + (middle < of_usual)
            beside = "" if name == "defaults" else f" / {of_usual:,.0f}"
            cells.append(f"{middle:,.0f}{beside}; {len(same)}")
        if any(cells):
            counts = "" if name == "defaults" else f"{better}, {worse}"
            lines.append(f"| {option.what} | {' | '.join(cells)} | {counts} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, and print the table."""
    parser = parser_of(__doc__, "options")
    parser.add_argument("--options", default=",".join(OPTIONS))
    parser.add_argument("--environments", default=",".join(ENVIRONMENTS))
    parser.add_argument("--total-steps", type=int, default=300_000)
    arguments = parser.parse_args()
    chooses = {
        env_id: isinstance(gym.spec(env_id).make().action_space, gym.spaces.Discrete)
        for env_id in arguments.environments.split(",")
    }
    wanted = [
        {"option": option, "env_id": env_id, "total_steps": arguments.total_steps, "seed": seed}
        for seed in range(arguments.seeds)
        for option in arguments.options.split(",")
        for env_id in chooses
        if not (OPTIONS[option].needs_numbers and chooses[env_id])
    ]
    print(table(run_missing(__file__, arguments, run, wanted, NAMES)))


if __name__ == "__main__":
    main()
