"""The configurations of DDPG and TD3."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from hybridppo.agents.common.checks import MOST_ROWS, MOST_THREADS, check_hidden_layers, check_types, require
from hybridppo.agents.common.schedules import check_schedules, parsed
from hybridppo.names import names_what_was_meant
from hybridppo.networks.mlp import Activation
from hybridppo.networks.precision import Precision
from hybridppo.system.validation import SAME_RESULT

OPTIONAL = ("gradient_steps", "critic_learning_rate", "torch_threads")
"""Numbers that may be None."""
SCHEDULABLE = ("learning_rate", "critic_learning_rate")
"""Numbers that may have a schedule."""

BufferSide = Literal["learner", "host"]
Exploration = Literal["gaussian", "ou"]


@names_what_was_meant
@dataclass(frozen=True)
class DDPGConfig:
    """DDPG's settings, checked when made: what cannot work is refused with the field and the rule."""

    num_envs: int = 1
    """Environments stepped side by side."""
    train_frequency: int = 1
    """Steps of each environment between two updates. Large numbers sample first and update afterwards."""
    gradient_steps: int | None = None
    """Optimizer steps per update; None for as many as environment steps were sampled for it (train_frequency *
    num_envs)."""
    batch_size: int = 256
    """Transitions in the minibatch of an optimizer step."""
    buffer_size: int = 1_000_000
    """Transitions that the replay buffer holds, of all environments together; the oldest make room for new ones."""
    buffer_on: BufferSide = field(default="learner", metadata=SAME_RESULT)
    """Where the replay buffer lies: with the "learner", where every transition crosses once, or on the "host", where
    minibatches cross instead: for buffers that a GPU's memory cannot hold."""
    learning_starts: int = 1_000
    """Environment steps before the first update, all together; their actions are drawn uniformly."""
    steps_per_iteration: int = 1_000
    """Environment steps, all together, that a line of metrics is of."""
    learning_rate: float = 1e-3
    """Adam's step size."""
    critic_learning_rate: float | None = None
    """The critic's own step size; None for the same as the actor's."""
    schedules: str = ""
    """Learning rates that change in the course of the training, with names of schedules: linear, cosine or constant,
    with a share of the training for a warm-up, as "learning_rate=cosine:0.05". A dict or JSON will do."""
    gamma: float = 0.99
    """Discount per step."""
    n_steps: int = 1
    """Rewards that a target adds up before it trusts the critic."""
    tau: float = 0.005
    """How far the target networks move towards the others after an update of the actor."""
    exploration: Exploration = "gaussian"
    """Noise on the actions while sampling: "gaussian", drawn anew for every step, or "ou", an Ornstein-Uhlenbeck
    process, which wanders."""
    exploration_std: float = 0.1
    """Deviation of the noise's draws, where actions reach from -1 to 1 (they are scaled to the bounds of their space
    afterwards)."""
    ou_theta: float = 0.15
    """What share of itself an Ornstein-Uhlenbeck process loses in a step."""
    hidden_sizes: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers, of actor and critics each."""
    activation: Activation = "relu"
    """Activation after each hidden layer."""
    fast_updates: bool = field(default=True, metadata=SAME_RESULT)
    """False always takes plain autograd, the reference, even if compiled_updates says otherwise."""
    compiled_updates: bool = field(default=False, metadata=SAME_RESULT)
    """On a CPU, let Numba compile the update (the extra `compiled`), once: the same result up to rounding, and on two
    torch threads as on one, bit by bit."""
    cuda_graphs: bool = field(default=False, metadata=SAME_RESULT)
    """On a CUDA device, record the gradient step as a graph and replay it: the same result up to rounding, in one
    launch."""
    torch_threads: int | None = field(default=1, metadata=SAME_RESULT)
    """CPU threads of torch while training; None lets placement auto choose, and is 1 under any other."""

    def __post_init__(self) -> None:
        check_hidden_layers(self)
        check_types(self, optional=OPTIONAL, whole=("gradient_steps", "torch_threads"))
        for name in self._counts:
            require(self, name, 1 <= getattr(self, name) <= MOST_ROWS, f"must lie between 1 and {MOST_ROWS}")
        check_schedules(self, SCHEDULABLE)
        require(self, "learning_starts", self.learning_starts >= 0, "must not be negative")
        for name in ("gradient_steps", "critic_learning_rate", "torch_threads"):
            require(self, name, getattr(self, name) is None or getattr(self, name) > 0, "must be None or above 0")
        require(self, "torch_threads", (self.torch_threads or 1) <= MOST_THREADS, f"must be at most {MOST_THREADS}")
        require(self, "learning_rate", self.learning_rate > 0, "must be greater than 0")
        require(self, "gamma", 0 <= self.gamma <= 1, "must lie between 0 and 1")
        for name in ("tau", "ou_theta"):
            require(self, name, 0 < getattr(self, name) <= 1, "must be above 0 and at most 1")
        require(self, "exploration_std", self.exploration_std >= 0, "must not be negative")
        for name, choices in (("buffer_on", ("learner", "host")), ("exploration", ("gaussian", "ou"))):
            require(self, name, getattr(self, name) in choices, f"must be one of {', '.join(choices)}")
        rows = self.train_frequency * self.num_envs
        room = f"must hold what is sampled for an update, train_frequency * num_envs = {rows}, and n_steps"
        require(self, "buffer_size", self.buffer_size >= max(rows, self.n_steps * self.num_envs), room)

    _counts = (
        "num_envs", "train_frequency", "batch_size", "buffer_size", "steps_per_iteration", "n_steps",
    )  # fmt: skip

    @property
    def named_schedules(self) -> dict[str, str]:
        """The schedules that have names, by field."""
        return parsed(self.schedules)

    @property
    def num_critics(self) -> int:
        """How many critics there are; targets trust the lowest."""
        return 1

    @property
    def policy_delay(self) -> int:
        """Optimizer steps of the critics for each of the actor and of the target networks."""
        return 1

    @property
    def target_noise_std(self) -> float:
        """Deviation of the noise on the actions of targets."""
        return 0.0

    @property
    def target_noise_clip(self) -> float:
        """How large that noise may be."""
        return 0.0

    @property
    def num_steps(self) -> int:
        """Of each environment per rollout, as a sampler is asked for them."""
        return self.train_frequency

    @property
    def episodes_per_rollout(self) -> int | None:
        """None: rollouts are of so many steps."""
        return None

    @property
    def steps_per_update(self) -> int:
        """Optimizer steps of an update."""
        return self.train_frequency * self.num_envs if self.gradient_steps is None else self.gradient_steps

    @property
    def precision(self) -> Precision:
        """In which numbers matrices are multiplied."""
        return "fp32"

    def to_json(self) -> dict[str, Any]:
        """The fields, as JSON can hold them; `DDPGConfig(**fields)` makes it again."""
        return asdict(self)


@names_what_was_meant
@dataclass(frozen=True)
class TD3Config(DDPGConfig):
    """TD3's settings: those of DDPG, two critics, and what keeps them from overestimating."""

    policy_delay: int = 2
    """Optimizer steps of the critics for each of the actor and of the target networks."""
    target_noise_std: float = 0.2
    """Deviation of the noise on the actions of targets, which smooths what the critics learn."""
    target_noise_clip: float = 0.5
    """How large that noise may be."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "policy_delay", 1 <= self.policy_delay <= MOST_ROWS, f"must lie between 1 and {MOST_ROWS}")
        for name in ("target_noise_std", "target_noise_clip"):
            require(self, name, getattr(self, name) >= 0, "must not be negative")

    @property
    def named_schedules(self) -> dict[str, str]:
        """The schedules that have names, by field."""
        return parsed(self.schedules)

    @property
    def num_critics(self) -> int:
        """Two; targets trust the lower."""
        return 2
