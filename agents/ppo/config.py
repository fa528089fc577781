"""The configuration of PPO. Its defaults learned best over eight measured environments."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from hybridppo._lazy import showing_fields
from hybridppo.agents.schedules import OfOnePolicy, check_schedules, parsed
from hybridppo.distributions.state_dependent import ExplorationLayout
from hybridppo.networks.layers import Activation, Convolutions
from hybridppo.networks.modes import Precision
from hybridppo.networks.recurrent import CELLS, Recurrent
from hybridppo.rollouts.rollout import MemoryLayout
from hybridppo.spaces.rows import OWN, CriticObserves
from hybridppo.system import validation as checks
from hybridppo.system.validation import ANY_TIME, BETWEEN_TRAININGS, MOST_ROWS, SAME_RESULT, Rule, check_fields, require

SCHEDULABLE = (
    "learning_rate", "critic_learning_rate", "clip_range", "clip_range_vf", "entropy_coef", "value_coef",
    "max_grad_norm", "target_kl", "desired_kl", "gamma", "gae_lambda",
)  # fmt: skip
"""Numbers that may have a schedule."""
USUAL_MINIBATCHES = 32
"""Default number of minibatches per epoch."""
USUAL_MINIBATCH_SIZE = 64
"""The fewest samples of a minibatch by default: then there are fewer minibatches."""
DIVIDING = ("num_minibatches", "minibatch_size")
"""Fields of which one may say how an epoch is divided."""
USUAL_SEQUENCES = 8
"""The fewest sequences of a minibatch by default, because smaller minibatches take nearly as long."""
LagCorrection = Literal["vtrace", "decoupled", "none"]
NOT_TOGETHER = (
    ("pool_size", "recurrent"), ("use_sde", "recurrent"), ("shared_trunk", "recurrent"),
    ("cuda_graphs", "recurrent"), ("critic_observes", "shared_trunk"),
    ("critic_hidden_sizes", "shared_trunk"),
)  # fmt: skip
"""Pairs of fields of which at most one may differ from its default."""
RULES: dict[str, tuple[Rule, ...]] = {
    **dict.fromkeys(("num_envs", "num_steps", "num_epochs", "num_minibatches", "minibatch_size"), checks.COUNT),
    **dict.fromkeys(("episodes_per_rollout", "recurrent_size", "sequence_length"), checks.COUNT),
    **dict.fromkeys(("learning_rate", "critic_learning_rate", "clip_range", "clip_range_vf"), checks.POSITIVE),
    **dict.fromkeys(("max_grad_norm", "target_kl", "desired_kl"), checks.POSITIVE),
    **dict.fromkeys(("entropy_coef", "value_coef"), checks.NOT_NEGATIVE),
    **dict.fromkeys(("gamma", "gae_lambda"), checks.SHARE),
    "pool_size": (checks.AT_LEAST_1, checks.at_most(64)),  # with more lag, actions are too old to learn from
    "torch_threads": checks.THREADS,
    "sde_sample_freq": (("must be -1 or at least 1", lambda steps: steps == -1 or 1 <= steps <= MOST_ROWS),),
}
"""What the numbers must be."""


@showing_fields
@dataclass(frozen=True)
class PPOConfig(OfOnePolicy):
    """PPO's hyperparameters. Invalid values are refused with the field and the rule."""

    num_envs: int = field(default=4, metadata=BETWEEN_TRAININGS)
    """Environments that are stepped together. With several agents, each environment has a row for each of its agents.
    """
    num_steps: int = field(default=512, metadata=BETWEEN_TRAININGS)
    """Steps of each environment per rollout, unless rollouts are whole episodes."""
    episodes_per_rollout: int | None = field(default=None, metadata=BETWEEN_TRAININGS)
    """Whole episodes per rollout, of a single environment (num_envs=1) and of any length; None for rollouts of
    num_steps."""
    pool_size: int = 1
    """Rollouts per update: the newest and older ones, weighted by the present probability of their actions (Queeney et
    al., 2021). 1 is PPO. Older rollouts are kept on the learning device."""
    lag_correction: LagCorrection = field(default="vtrace", metadata=ANY_TIME)
    """The correction of returns and advantages for actions by older parameters, if max_lag of the placement is above 1:
    "vtrace" (Espeholt et al., 2018); "decoupled", also V-trace, but with ratios clipped around the policy before the
    update instead of the policy that acted (Hilton et al., 2022); or "none". Try "decoupled" for continuous actions: it
    learned more on HalfCheetah, and less on CartPole and LunarLander."""
    num_epochs: int = field(default=10, metadata=ANY_TIME)
    """Epochs per update: how often the agent learns from each rollout."""
    num_minibatches: int | None = field(default=None, metadata=ANY_TIME)
    """Minibatches per epoch. Must divide num_envs * num_steps, unless rollouts are whole episodes: sizes then differ by
    at most one. None for 32, or fewer so that each has at least 64 samples and, with recurrent, 8 sequences. Rows that
    are not steps, such as resets, are left out first; if too few rows remain, there are fewer minibatches."""
    minibatch_size: int | None = field(default=None, metadata=ANY_TIME)
    """Samples of a minibatch, in place of num_minibatches. Must divide num_envs * num_steps; if other rows are sampled,
    such as whole episodes or those of several agents, no minibatch is larger, and sizes differ by at most one."""
    learning_rate: float = field(default=3e-4, metadata=ANY_TIME)
    """Learning rate of Adam."""
    critic_learning_rate: float | None = field(default=None, metadata=ANY_TIME)
    """Learning rate of the critic; None for the same as the actor's."""
    anneal_learning_rate: bool = field(default=False, metadata=BETWEEN_TRAININGS)
    """Reduce the learning rates linearly to zero over the training."""
    schedules: str = field(default="", metadata=BETWEEN_TRAININGS)
    """Named schedules of numbers: linear, cosine or constant, with a share of the training for warm-up, as
    "learning_rate=cosine:0.05,entropy_coef=linear"; learning_rate may be adaptive. Also a dict or JSON."""
    desired_kl: float = field(default=0.01, metadata=ANY_TIME)
    """With learning_rate=adaptive, the target of an epoch's approximate KL divergence: above twice the target, the rate
    is divided by 1.5; below half of the target, it is multiplied by 1.5. The rate stays between 1e-5 and 1e-2."""
    gamma: float = field(default=0.99, metadata=ANY_TIME)
    """Discount per step."""
    gae_lambda: float = field(default=0.95, metadata=ANY_TIME)
    """Lambda of advantage estimates: 0 trusts the critic, 1 the observed return."""
    clip_range: float = field(default=0.2, metadata=ANY_TIME)
    """How far the probability ratio may move from 1 in an update."""
    anneal_clip_range: bool = field(default=False, metadata=BETWEEN_TRAININGS)
    """Reduce the clip range linearly to zero over the training."""
    clip_range_vf: float | None = field(default=None, metadata=ANY_TIME)
    """How far a value may move in an update; None for no limit. CleanRL clips at 0.2, stable-baselines3 does not.
    Clipping helps if returns are near 1, and slows learning if they are large."""
    entropy_coef: float = field(default=0.0, metadata=ANY_TIME)
    """Weight of the entropy bonus."""
    value_coef: float = field(default=0.5, metadata=ANY_TIME)
    """Weight of the value loss, which is half the squared error."""
    max_grad_norm: float | None = field(default=0.5, metadata=ANY_TIME)
    """Largest norm of the gradient of actor and critic together; a larger gradient is scaled down. None for no limit.
    """
    target_kl: float | None = field(default=None, metadata=ANY_TIME)
    """Stop an update after an epoch whose mean approximate KL divergence exceeds this; None for never."""
    normalize_advantage: bool = field(default=True, metadata=ANY_TIME)
    """Normalise advantages within each minibatch."""
    normalize_observations: bool = True
    """Normalise the numbers of observations by their mean and standard deviation so far, and clip them to 10. Choices,
    masks and images are not changed."""
    normalize_rewards: bool = True
    """Divide rewards by the standard deviation of the discounted return so far, and clip them to 10. Metrics keep the
    environment's units."""
    squash_actions: bool = False
    """Squash the actions of a Box with finite bounds by tanh, instead of clipping them."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Sizes of the hidden layers of actor and critic; for images, after the convolutions."""
    critic_hidden_sizes: tuple[int, ...] | None = None
    """Sizes of the critic's hidden layers; None for those of hidden_sizes."""
    activation: Activation = "tanh"
    """Activation after each hidden layer."""
    encoder_sizes: dict[str, tuple[int, ...]] | None = None
    """For observations that are a Dict or Tuple: the sizes of hidden layers for single parts, by key, such as
    {"speed": [32, 32]}. They come before all parts are joined, and after the convolutions of an image. JSON on the
    command line."""
    actor_keys: tuple[str, ...] | None = None
    """For observations that are a Dict or Tuple: keys of the parts that the actor sees; None for all. `act` and an
    exported policy need only these parts."""
    critic_keys: tuple[str, ...] | None = None
    """For observations that are a Dict or Tuple: keys of the parts that the critic sees; None for all. The critic may
    see parts that the actor does not see."""
    critic_observes: CriticObserves = "own"
    """With several agents, what the critic sees besides an agent's own observation: nothing ("own"), the observations
    of all other agents of its environment ("all"), or the environment's state() ("state"). The actor sees only the
    agent's own observation: MAPPO (Yu et al., 2022, "The Surprising Effectiveness of PPO in Cooperative Multi-Agent
    Games")."""
    layer_norm: bool = False
    """Layer normalisation before each activation. NumPy does not support it, so torch samples, and worker processes
    cannot be used."""
    shared_trunk: bool = False
    """Let actor and critic share all but their last layers, as is common for images. The shared layers learn at the
    actor's rate."""
    orthogonal_init: bool = True
    """Initialise weights orthogonally and biases with zero; False for torch's own uniform initialisation."""
    log_std_init: float = 0.0
    """Initial log standard deviation of continuous actions."""
    use_sde: bool = False
    """State-dependent exploration for actions of a Box (gSDE, Raffin et al., 2021): noise in each step is replaced by a
    random matrix, applied to the actor's last hidden layer. Motion is smoother; use a log_std_init of -2 to -4."""
    sde_sample_freq: int = -1
    """With use_sde, the steps of a rollout after which each environment gets a new matrix; -1 for one per rollout."""
    convolutions: Convolutions = "nature"
    """Convolutions for images: "nature", three layers, or one for small images; or "impala", residual layers,
    which learn more and take far longer. NumPy supports only "nature"."""
    recurrent: Recurrent | None = None
    """A recurrent network before the hidden layers of actor and critic: "lstm" or "gru"; None for no
    memory."""
    recurrent_size: int = 64
    """Size of the recurrent network's output."""
    sequence_length: int = 32
    """With recurrent, consecutive steps in a sequence: minibatches consist of sequences, and gradients reach back to
    their first step."""
    fast_updates: bool = field(default=True, metadata=SAME_RESULT | ANY_TIME)
    """Use the fastest update that gives the same result up to rounding: for MLPs on a CPU, hand-written gradients in
    NumPy; on a CUDA device, an optimizer step that is recorded as a graph and replayed. False always uses autograd, the
    reference."""
    compiled_updates: bool = field(default=False, metadata=SAME_RESULT | ANY_TIME)
    """Compile the update of MLPs on a CPU, if fast_updates is True (needs Numba: the extra "compiled"): 1.5 to 1.9
    times as fast for small networks on one core, the same result up to rounding. A machine compiles once, in half a
    minute. Has no effect on other networks."""
    cuda_graphs: bool = field(default=False, metadata=SAME_RESULT | ANY_TIME)
    """On a CUDA device, record every optimizer step, also with a loss, networks or a subclass of your own, which must
    do the same on every minibatch. fast_updates alone records only what is the library's."""
    precision: Precision = field(default="fp32", metadata=ANY_TIME)
    """Precision of matrix products in optimizer steps. "bf16" is torch's autocast, for wide networks on hardware that
    supports it: tensor cores, AVX512-BF16 or AMX. "tf32" is for CUDA devices from Ampere on: float32, with factors
    rounded to 11 bits. "fp32" also turns off TF32 in convolutions, where torch uses it by default."""
    torch_threads: int | None = field(default=1, metadata=SAME_RESULT | BETWEEN_TRAININGS)
    """CPU threads (default 1). None: chosen by `auto`, otherwise 1. Other counts change rounding, which None allows
    `auto` (also by workers for which the main process acts).
    Small networks are up to twice as slow with more than one thread; try more from layers of about 512 on, or of 256
    with minibatches of about 2048."""
    settings: dict[str, Any] = field(default_factory=dict, hash=False, metadata=ANY_TIME | {"json": True})
    """Hyperparameters of your own by name, which a loss, a subclass or a callback reads (`agent.settings`). JSON must
    be able to hold them."""
    schedulable: ClassVar[tuple[str, ...]] = SCHEDULABLE
    """Fields that may have a schedule."""

    def __post_init__(self) -> None:
        check_fields(self, RULES)
        rows = f"num_envs * num_steps must be at most {MOST_ROWS}"
        require(self, "num_steps", self.batch_size <= MOST_ROWS, f"is too large: {rows}")
        self._check_schedules()
        self._check_networks()
        is_one = None in (self.num_minibatches, self.minibatch_size)
        rule = f"and num_minibatches={self.num_minibatches} both divide an epoch: leave one out, or set it to None"
        require(self, "minibatch_size", is_one, rule)
        if self.episodes_per_rollout is None:
            self._check_minibatches()
        else:
            require(self, "num_envs", self.num_envs == 1, "must be 1 if episodes_per_rollout is given")

    def _check_networks(self) -> None:
        for one, other in NOT_TOGETHER:
            are_set = all(getattr(self, name) != getattr(PPOConfig, name) for name in (one, other))
            require(self, one, not are_set, f"does not work with {other}: leave one out")
        frequency, has_layers = self.sde_sample_freq, len(self.hidden_sizes) > 0
        require(self, "sde_sample_freq", self.use_sde or frequency == -1, "needs use_sde=True, or must be left out")
        if self.use_sde:
            require(self, "use_sde", has_layers, "needs a hidden layer (hidden_sizes)")
        if self.shared_trunk:
            require(self, "shared_trunk", has_layers, "needs a hidden layer to share (hidden_sizes)")
            same = self.actor_keys == self.critic_keys
            require(self, "shared_trunk", same, "does not work with different actor_keys and critic_keys: leave it out")
        if self.critic_observes != "own":
            alone = self.actor_keys is None and self.critic_keys is None and self.encoder_sizes is None
            require(self, "critic_observes", alone, "does not work with actor_keys, critic_keys or encoder_sizes")

    def _check_schedules(self) -> None:
        check_schedules(self, adaptive=True)
        named = parsed(self.schedules)
        for what in ("learning_rate", "clip_range"):
            twice = getattr(self, f"anneal_{what}") and what in named
            require(self, f"anneal_{what}", not twice, f"and schedules both say what {what} does: leave one out")

    def _check_minibatches(self) -> None:
        product, count = f"{self.num_envs} * {self.num_steps}", self.minibatches_of(self.batch_size)
        rule = f"must divide num_envs * num_steps = {product} = {self.batch_size}"
        for name in DIVIDING:
            require(self, name, self.batch_size % (getattr(self, name) or 1) == 0, rule)
        few = "needs minibatches of at least 2 samples, but"
        rule = f"{few} num_envs * num_steps / num_minibatches = {product} / {count} = 1: use fewer minibatches"
        require(self, "normalize_advantage", not self.normalize_advantage or self.samples_per_minibatch > 1, rule)
        if self.recurrent is None:
            return
        sequences = f"the sequences of a rollout, {self.units} of sequence_length {self.sequence_length}"
        for name, limit in zip(DIVIDING, ("must be at most", "must not be below that of"), strict=True):
            rule = f"{limit} {sequences}"
            require(self, name, getattr(self, name) is None or count <= self.units, rule)
        has_one_step = self.num_steps % self.sequence_length == 1 or self.sequence_length == 1
        is_too_few = self.normalize_advantage and has_one_step and self.units // self.minibatches == 1
        rule = f"{few} one may be a sequence of a single step: use fewer minibatches, or another sequence_length"
        require(self, "normalize_advantage", not is_too_few, rule)

    @property
    def actor_parts(self) -> tuple[str, ...] | None:
        """Keys of the parts of observations that the actor sees; None for all."""
        return self.actor_keys if self.critic_observes == "own" else (OWN,)

    @property
    def memory(self) -> MemoryLayout | None:
        """Layout of the actor's state; None without a recurrent network."""
        if self.recurrent is None:
            return None
        return MemoryLayout(CELLS[self.recurrent].num_states * self.recurrent_size, self.sequence_length)

    @property
    def exploration(self) -> ExplorationLayout | None:
        """Hyperparameters of state-dependent exploration; None without it."""
        return ExplorationLayout(self.hidden_sizes[-1], self.sde_sample_freq) if self.use_sde else None

    @property
    def batch_size(self) -> int:
        """Samples of a rollout, unless rollouts are whole episodes."""
        return self.num_envs * self.num_steps

    @property
    def units(self) -> int:
        """The number of rows of a rollout, or of sequences for recurrent networks, that an epoch shuffles."""
        return self.batch_size if self.memory is None else self.num_envs * self.memory.num_sequences(self.num_steps)

    @property
    def minibatches(self) -> int:
        """Minibatches of a rollout of one agent per environment."""
        return min(self.minibatches_of(self.batch_size), self.units)

    @property
    def samples_per_minibatch(self) -> int:
        """Samples of a minibatch if every row of a rollout is a step."""
        return self.batch_size // self.minibatches_of(self.batch_size)

    def minibatches_of(self, samples: int) -> int:
        """Minibatches of a rollout of so many samples."""
        if self.num_minibatches is not None:
            return self.num_minibatches
        if self.minibatch_size is not None:
            return max(1, -(-samples // self.minibatch_size))
        least = USUAL_MINIBATCH_SIZE
        if self.recurrent is not None:
            least = max(least, USUAL_SEQUENCES * min(self.sequence_length, self.num_steps))
        most = max(1, min(USUAL_MINIBATCHES, samples // least))
        if self.episodes_per_rollout is not None:
            return most
        return next(count for count in range(most, 0, -1) if samples % count == 0)

    @property
    def named_schedules(self) -> dict[str, str]:
        """The named schedules, by field."""
        named = parsed(self.schedules)
        if self.anneal_learning_rate:
            rates = ("learning_rate",) if self.critic_learning_rate is None else SCHEDULABLE[:2]
            named = dict.fromkeys(rates, "linear") | named
        return named | ({"clip_range": "linear"} if self.anneal_clip_range else {})
