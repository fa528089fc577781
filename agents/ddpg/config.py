"""The configurations of DDPG and TD3."""

from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

from hybridppo.agents.checks import COUNT, NOT_NEGATIVE, POSITIVE, SHARE, THREADS, Rule, check_fields, require
from hybridppo.agents.schedules import check_schedules, parsed
from hybridppo.networks.mlp import Activation
from hybridppo.networks.modes import Precision
from hybridppo.system.validation import SAME_RESULT

SCHEDULABLE = ("learning_rate", "critic_learning_rate")
"""Numbers that may have a schedule."""

RULES: dict[str, tuple[Rule, ...]] = {
    **dict.fromkeys(("num_envs", "train_frequency", "gradient_steps", "batch_size", "buffer_size"), COUNT),
    **dict.fromkeys(("steps_per_iteration", "n_steps", "policy_delay"), COUNT),
    **dict.fromkeys(("learning_rate", "critic_learning_rate"), POSITIVE),
    **dict.fromkeys(("learning_starts", "exploration_std", "target_noise_std", "target_noise_clip"), NOT_NEGATIVE),
    "gamma": SHARE,
    "tau": (("must be above 0 and at most 1", lambda tau: 0 < tau <= 1),),
    "torch_threads": THREADS,
}
"""What the numbers must be; DDPG has some of them as properties."""
BufferSide = Literal["learner", "host"]


@dataclass(frozen=True)
class DDPGConfig:
    """DDPG's hyperparameters. Invalid values are refused with the field and the rule."""

    num_envs: int = 1
    """Environments that are stepped together."""
    train_frequency: int = 1
    """Steps of each environment between two updates. With a large number, sampling and updates alternate in long turns.
    """
    gradient_steps: int | None = None
    """Optimizer steps per update; None for as many as environment steps were sampled (train_frequency * num_envs)."""
    batch_size: int = 256
    """Transitions in a minibatch."""
    buffer_size: int = 1_000_000
    """Transitions in the replay buffer, of all environments together; new ones replace the oldest."""
    buffer_on: BufferSide = field(default="learner", metadata=SAME_RESULT)
    """Where the replay buffer is: "learner" for the learning device, to which every transition is copied once; or
    "host" for main memory, from which minibatches are copied, for buffers that do not fit into a GPU's memory."""
    learning_starts: int = 1_000
    """Environment steps of all environments before the first update; their actions are drawn uniformly."""
    steps_per_iteration: int = 1_000
    """Environment steps of all environments for each line of metrics."""
    learning_rate: float = 1e-3
    """Learning rate of Adam."""
    critic_learning_rate: float | None = None
    """Learning rate of the critic; None for the same as the actor's."""
    schedules: str = ""
    """Named schedules of learning rates: linear, cosine or constant, with a share of the training for warm-up, as
    "learning_rate=cosine:0.05". Also a dict or JSON."""
    gamma: float = 0.99
    """Discount per step."""
    n_steps: int = 1
    """Number of steps whose rewards a target sums before it adds the critic's value."""
    tau: float = 0.005
    """The share of the way that target networks move towards the learned networks after each step of the actor."""
    exploration_std: float = 0.1
    """Standard deviation of the Gaussian noise on the actions while sampling, for actions from -1 to 1 (which are then
    scaled to the bounds of their space)."""
    hidden_sizes: tuple[int, ...] = (256, 256)
    """Sizes of the hidden layers of actor and critics."""
    activation: Activation = "relu"
    """Activation after each hidden layer."""
    fast_updates: bool = field(default=True, metadata=SAME_RESULT)
    """On a CUDA device, record the optimizer step as a graph and replay it: the same result up to rounding."""
    cuda_graphs: bool = field(default=False, metadata=SAME_RESULT)
    """On a CUDA device, record the steps of a subclass of your own, too, which must do the same on every minibatch."""
    torch_threads: int | None = field(default=1, metadata=SAME_RESULT)
    """CPU threads of torch during training; None lets placement auto choose, and is 1 for other placements."""
    policy_delay = 1
    target_noise_std = target_noise_clip = 0.0
    num_critics: ClassVar[int] = 1
    """The number of critics; targets use the lowest value."""
    episodes_per_rollout: ClassVar[int | None] = None
    """None: rollouts have a fixed number of steps."""
    precision: ClassVar[Precision] = "fp32"
    """Precision of matrix products."""

    def __post_init__(self) -> None:
        check_fields(self, RULES)
        check_schedules(self, SCHEDULABLE)
        rows = self.train_frequency * self.num_envs
        room = f"must hold what is sampled for an update, train_frequency * num_envs = {rows}, and n_steps"
        require(self, "buffer_size", self.buffer_size >= max(rows, self.n_steps * self.num_envs), room)

    @property
    def named_schedules(self) -> dict[str, str]:
        """The named schedules, by field."""
        return parsed(self.schedules)

    @property
    def num_steps(self) -> int:
        """Steps of each environment per rollout."""
        return self.train_frequency

    @property
    def steps_per_update(self) -> int:
        """Optimizer steps of an update."""
        return self.train_frequency * self.num_envs if self.gradient_steps is None else self.gradient_steps

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object; `DDPGConfig(**fields)` restores it."""
        return asdict(self)


@dataclass(frozen=True)
class TD3Config(DDPGConfig):
    """TD3's hyperparameters: those of DDPG, with two critics and smoothed targets against overestimation."""

    policy_delay: int = 2
    """Optimizer steps of the critics for each step of the actor and of the target networks."""
    target_noise_std: float = 0.2
    """Standard deviation of the noise on the actions of targets, which smooths the critics' targets."""
    target_noise_clip: float = 0.5
    """Largest absolute value of the noise on the actions of targets."""
    num_critics: ClassVar[int] = 2
