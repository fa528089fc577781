"""The cases of `speed.py` and `field.py`: what is trained, and how a turn's work is counted."""

import statistics
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from hybridppo import PPOConfig


@dataclass(frozen=True)
class Case:
    """What is trained, and how many iterations a turn has."""

    learning_rate: ClassVar[float] = 2.5e-4
    gamma: ClassVar[float] = 0.99
    gae_lambda: ClassVar[float] = 0.95
    clip_range: ClassVar[float] = 0.2
    entropy_coef: ClassVar[float] = 0.01
    value_coef: ClassVar[float] = 0.5
    max_grad_norm: ClassVar[float] = 0.5
    num_envs: int
    hidden_sizes: tuple[int, ...]
    warmup: int
    """Iterations before the counted ones."""
    iterations: int
    """Counted iterations."""
    env_id: str = "CartPole-v1"
    num_steps: int = 128
    num_epochs: int = 4
    num_minibatches: int = 4
    has_images: bool = False
    """Whether observations are images. If so, the convolutions of Mnih et al. come first, and ReLU replaces tanh."""
    device: str = "cpu"
    """The device of another library; this library has a placement."""

    @property
    def batch_size(self) -> int:
        """Rows of a rollout."""
        return self.num_envs * self.num_steps

    @property
    def minibatch_size(self) -> int:
        """Rows of a minibatch."""
        return self.batch_size // self.num_minibatches

    def with_envs(self, num_envs: int) -> "Case":
        """The same work with another number of environments: rollouts and minibatches keep their size."""
        if self.batch_size % num_envs:
            raise ValueError(f"{num_envs} environments do not divide rollouts of {self.batch_size} steps")
        return replace(self, num_envs=num_envs, num_steps=self.batch_size // num_envs)

    def in_words(self) -> str:
        """For a heading."""
        widths = "x".join(str(size) for size in self.hidden_sizes)
        return (
            f"{self.env_id}, {self.num_envs} environments x {self.num_steps} steps, {self.num_epochs} epochs of "
            f"{self.num_minibatches} minibatches of {self.minibatch_size}, networks "
            f"{'of three convolutions and ' if self.has_images else ''}{widths}"
        )


CASES = {
    "small": Case(num_envs=8, hidden_sizes=(64, 64), warmup=5, iterations=40),
    "wide": Case(num_envs=64, hidden_sizes=(256, 256), warmup=2, iterations=10),
}
MORE_CASES = {
    "wider": Case(num_envs=128, hidden_sizes=(512, 512), warmup=1, iterations=4),
    "many": Case(num_envs=2048, num_steps=32, num_minibatches=32, hidden_sizes=(64, 64), warmup=2, iterations=8),
}
MORE_CASES["many_once"] = replace(MORE_CASES["many"], num_epochs=1)
"""Run only if named: wide layers, and thousands of environments, as compiled ones are for."""
SLOW_CASES = {
    # As rl-baselines3-zoo tunes it.
    "lander": Case(
        env_id="LunarLander-v3",
        num_envs=16,
        num_steps=1024,
        num_minibatches=256,
        hidden_sizes=(64, 64),
        warmup=1,
        iterations=4,
    ),
    # What is usual for MuJoCo, 2,048 steps and 10 epochs in minibatches of 64, with 8 environments.
    "cheetah": Case(
        env_id="HalfCheetah-v5",
        num_envs=8,
        num_steps=256,
        num_epochs=10,
        num_minibatches=32,
        hidden_sizes=(64, 64),
        warmup=2,
        iterations=15,
    ),
    # An environment that draws its observation: 96 x 96 pixels.
    "racing": Case(
        env_id="CarRacing-v3",
        num_envs=8,
        num_steps=32,
        hidden_sizes=(512,),
        has_images=True,
        warmup=1,
        iterations=4,
    ),
    # Emulated games, with rollouts and minibatches of the size that is usual for them.
    "pong": Case(
        env_id="ALE/Pong-v5",
        num_envs=8,
        num_steps=128,
        hidden_sizes=(512,),
        has_images=True,
        warmup=1,
        iterations=3,
    ),
}
"""Environments that are slow to step."""
ALL_CASES = CASES | MORE_CASES | SLOW_CASES


@dataclass(frozen=True)
class Mark:
    """A contestant's counts and times at the end of an iteration."""

    time: float
    env_steps: int
    seconds_sampling: float = 0.0
    """Of this iteration; 0 if it is not known."""
    seconds_learning: float = 0.0
    """Of this iteration; 0 if it is not known."""


class Stopwatch:
    """The marks of a contestant whose iterations sample first, and then learn."""

    def __init__(self, case: Case) -> None:
        self.marks: list[Mark] = []
        self._case, self._ended = case, time.perf_counter()

    def mark(self, sampled: float, env_steps: int | None = None) -> None:
        """End an iteration now, whose rollout was complete at `sampled`. By default all rollouts have all steps."""
        now = time.perf_counter()
        steps = (len(self.marks) + 1) * self._case.batch_size if env_steps is None else env_steps
        self.marks.append(Mark(now, steps, sampled - self._ended, now - sampled))
        self._ended = now

    def work_done(self) -> dict[str, Any]:
        """`work_done` of all iterations until now."""
        return work_done(self.marks, self._case)


def work_done(marks: list[Mark], case: Case) -> dict[str, Any]:
    """Sum up the counted iterations of a turn, from the marks at the ends of all; only real environment steps count."""
    marks = marks[case.warmup - 1 : case.warmup + case.iterations]
    steps, seconds = marks[-1].env_steps - marks[0].env_steps, marks[-1].time - marks[0].time
    whole = {"env_steps": steps, "seconds": seconds, "steps_per_second": steps / seconds}
    if not marks[-1].seconds_sampling:
        return whole
    return {
        **whole,
        "sampled_per_second": steps / sum(mark.seconds_sampling for mark in marks[1:]),
        "ms_sampling": 1e3 * statistics.mean(mark.seconds_sampling for mark in marks[1:]),
        "ms_learning": 1e3 * statistics.mean(mark.seconds_learning for mark in marks[1:]),
    }


def count_processor_time() -> None:
    """Let turns count their process's CPU seconds, over all threads, so that other work on the machine adds nothing."""
    time.perf_counter = time.process_time


def our_config(case: Case) -> "PPOConfig":
    """The case's settings as this library's configuration."""
    from settings import cleanrl

    return cleanrl(
        num_envs=case.num_envs,
        num_steps=case.num_steps,
        num_epochs=case.num_epochs,
        num_minibatches=case.num_minibatches,
        learning_rate=case.learning_rate,
        anneal_learning_rate=False,
        gamma=case.gamma,
        gae_lambda=case.gae_lambda,
        clip_range=case.clip_range,
        clip_range_vf=None,
        entropy_coef=case.entropy_coef,
        value_coef=case.value_coef,
        max_grad_norm=case.max_grad_norm,
        hidden_sizes=case.hidden_sizes,
        activation="relu" if case.has_images else "tanh",
        torch_threads=1,
    )


def run_ours(case: Case, env: Any, config: "PPOConfig", **options: Any) -> dict[str, Any]:
    """A turn of this library, through its public `train`, which gets `options`."""
    import hybridppo

    marks: list[Mark] = []

    def mark(metrics: dict[str, Any]) -> None:
        phases = metrics["seconds_sampling"], metrics["seconds_learning"]
        marks.append(Mark(time.perf_counter(), metrics["env_steps"], *phases))

    # Rows that environments spend on a reset are no steps: this may take a few iterations more than are counted.
    total_steps = (case.warmup + case.iterations) * case.batch_size
    hybridppo.train(
        env, total_steps=total_steps, config=config, seed=0, progress=False, on_iteration=mark,
        **{"placement": "cpu", **options},
    )  # fmt: skip
    return work_done(marks, case)
