"""One turn of `fixed_work.py` or `workers.py`: what runs in each fresh process. A line of JSON on stdout is its result.

python benchmarks/contestants.py stable-baselines3 small
python benchmarks/contestants.py stable-baselines3 lander --vector subproc --num-envs 4
python benchmarks/contestants.py hybridppo small --placement cpu
python benchmarks/contestants.py hybridppo lander --num-workers 2
python benchmarks/contestants.py limits small
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from hybridppo import PPOConfig

LEARNING_RATE, GAMMA, GAE_LAMBDA, CLIP_RANGE = 2.5e-4, 0.99, 0.95, 0.2
ENTROPY_COEF, VALUE_COEF, MAX_GRAD_NORM = 0.01, 0.5, 0.5


@dataclass(frozen=True)
class Case:
    """What differs between the cases, and how long a turn is."""

    num_envs: int
    hidden_sizes: tuple[int, ...]
    warmup: int
    """Iterations that are not counted."""
    iterations: int
    """Iterations that are."""
    env_id: str = "CartPole-v1"
    num_steps: int = 128
    num_epochs: int = 4
    num_minibatches: int = 4

    @property
    def batch_size(self) -> int:
        """Rows of a rollout."""
        return self.num_envs * self.num_steps

    @property
    def minibatch_size(self) -> int:
        """Rows of a minibatch."""
        return self.batch_size // self.num_minibatches

    def with_envs(self, num_envs: int) -> "Case":
        """The same work by another number of environments: rollouts and minibatches stay as large as they are."""
        if self.batch_size % num_envs:
            raise ValueError(f"{num_envs} environments do not divide rollouts of {self.batch_size} steps")
        return replace(self, num_envs=num_envs, num_steps=self.batch_size // num_envs)

    def in_words(self) -> str:
        """For a heading."""
        widths = "x".join(str(size) for size in self.hidden_sizes)
        return (
            f"{self.env_id}, {self.num_envs} environments x {self.num_steps} steps, {self.num_epochs} epochs of "
            f"{self.num_minibatches} minibatches of {self.minibatch_size}, networks {widths}"
        )


CASES = {
    "small": Case(num_envs=8, hidden_sizes=(64, 64), warmup=5, iterations=40),
    "wide": Case(num_envs=64, hidden_sizes=(256, 256), warmup=2, iterations=10),
}
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
    # What the field takes for MuJoCo, 2,048 steps and 10 epochs in minibatches of 64, by 8 environments.
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
}
"""Environments that are slow to step."""


@dataclass(frozen=True)
class Mark:
    """Where a contestant stood at the end of an iteration."""

    time: float
    env_steps: int
    seconds_sampling: float
    """Of this iteration."""
    seconds_learning: float
    """Of this iteration."""


def work_done(marks: list[Mark], case: Case) -> dict[str, Any]:
    """The counted iterations of a turn, from the marks at the ends of all; real steps of environments only."""
    marks = marks[case.warmup - 1 : case.warmup + case.iterations]
    steps, seconds = marks[-1].env_steps - marks[0].env_steps, marks[-1].time - marks[0].time
    return {
        "env_steps": steps,
        "seconds": seconds,
        "steps_per_second": steps / seconds,
        "sampled_per_second": steps / sum(mark.seconds_sampling for mark in marks[1:]),
        "ms_sampling": 1e3 * statistics.mean(mark.seconds_sampling for mark in marks[1:]),
        "ms_learning": 1e3 * statistics.mean(mark.seconds_learning for mark in marks[1:]),
    }


def our_config(case: Case) -> "PPOConfig":
    """The case's work as this library is told of it."""
    from hybridppo import PPOConfig

    return PPOConfig(
        num_envs=case.num_envs,
        num_steps=case.num_steps,
        num_epochs=case.num_epochs,
        num_minibatches=case.num_minibatches,
        learning_rate=LEARNING_RATE,
        anneal_learning_rate=False,
        gamma=GAMMA,
        gae_lambda=GAE_LAMBDA,
        clip_range=CLIP_RANGE,
        clip_range_vf=None,
        entropy_coef=ENTROPY_COEF,
        value_coef=VALUE_COEF,
        max_grad_norm=MAX_GRAD_NORM,
        hidden_sizes=case.hidden_sizes,
        torch_threads=1,
    )


def run_hybridppo(
    case: Case, placement: str, learning_device: str, num_workers: int | None = None, precision: str = "fp32"
) -> dict[str, Any]:
    """A turn of this library, through its public `train`."""
    import hybridppo
    from hybridppo.placement import make_placement

    marks: list[Mark] = []

    def mark(metrics: dict[str, Any]) -> None:
        phases = metrics["seconds_sampling"], metrics["seconds_learning"]
        marks.append(Mark(time.perf_counter(), metrics["env_steps"], *phases))

    try:
        chosen = make_placement(placement, learning_device=learning_device)
    except hybridppo.HybridPPOError as error:
        return {"left_out": str(error)}
    hybridppo.train(
        case.env_id,
        # Rows that environments spend on a reset are no steps: this may take a few iterations more than are counted.
        total_steps=(case.warmup + case.iterations) * case.batch_size,
        seed=0,
        placement=chosen,
        config=replace(our_config(case), precision=precision),
        num_workers=num_workers,
        progress=False,
        on_iteration=mark,
    )
    return work_done(marks, case)


def their_agent(case: Case, environments: Any) -> Any:
    """The case's work as stable-baselines3 is told of it: on the CPU, without a log."""
    from stable_baselines3 import PPO

    return PPO(
        "MlpPolicy",
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
        policy_kwargs={
            "net_arch": {"pi": list(case.hidden_sizes), "vf": list(case.hidden_sizes)},
            "activation_fn": torch.nn.Tanh,
        },
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
    """A turn of stable-baselines3: sampling is what its `collect_rollouts` does, learning the rest."""
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
    environments = their_environments(case, vector, start_method)
    callback = Marking()
    total_steps = (case.warmup + case.iterations) * case.batch_size
    their_agent(case, environments).learn(total_steps, callback=callback, log_interval=None)  # None: never
    environments.close()
    marks = [
        Mark(end, env_steps, sampled - begin, end - sampled)
        for (begin, end), (sampled, env_steps) in zip(pairwise(callback.begins), callback.sampled, strict=True)
    ]
    return work_done(marks, case)


def run_limits(case: Case) -> dict[str, Any]:
    """The yardstick: the work's environments and matrix products on one thread, and nothing else."""
    torch.set_num_threads(1)
    us_per_vector_step = 1e6 * seconds_per_vector_step(case)
    in_numpy, in_torch = (1e3 * seconds_per_minibatch(case, library) for library in (InNumpy(), InTorch()))
    ms_sampling = 1e-3 * us_per_vector_step * case.num_steps
    ms_learning = min(in_numpy, in_torch) * case.num_epochs * case.num_minibatches
    return {
        "us_per_vector_step": us_per_vector_step,
        "ms_per_minibatch_numpy": in_numpy,
        "ms_per_minibatch_torch": in_torch,
        "ms_sampling": ms_sampling,
        "ms_learning": ms_learning,
        "steps_per_second": 1e3 * case.batch_size / (ms_sampling + ms_learning),
    }


def seconds_per_call(function: Callable[[], object], calls: int, blocks: int = 7) -> float:
    """The median over blocks of calls, after one block that warms up."""

    def block() -> float:
        start = time.perf_counter()
        for _ in range(calls):
            function()
        return (time.perf_counter() - start) / calls

    block()
    return statistics.median(block() for _ in range(blocks))


def seconds_per_vector_step(case: Case) -> float:
    """One step of all environments, in gymnasium's own vectorised form, with random actions drawn beforehand."""
    env = gym.make_vec(case.env_id, num_envs=case.num_envs)
    env.reset(seed=0)
    random_actions = iter(np.random.default_rng(0).integers(0, 2, size=(8 * 500, case.num_envs)))
    try:
        return seconds_per_call(lambda: env.step(next(random_actions)), calls=500)
    finally:
        env.close()


@torch.no_grad()
def seconds_per_minibatch(case: Case, library: "InNumpy | InTorch") -> float:
    """Forward and backward products and tanh of actor and critic; no loss, no optimizer, no memory allocated."""
    networks = [BareNetwork(library, [4, *case.hidden_sizes, outputs], case.minibatch_size) for outputs in (2, 1)]

    def minibatch() -> None:
        for network in networks:
            network.forward()
            network.backward()

    return seconds_per_call(minibatch, calls=max(20, 100_000 // case.minibatch_size))


class BareNetwork:
    """The arithmetic of a tanh network on one minibatch, in memory laid out beforehand."""

    def __init__(self, library: "InNumpy | InTorch", sizes: list[int], rows: int) -> None:
        generator = np.random.default_rng(0)

        def random(*shape: int) -> Any:
            return library.array(generator.standard_normal(shape, dtype=np.float32) / np.float32(shape[-1] ** 0.5))

        self.library = library
        self.weights = [random(outputs, inputs) for inputs, outputs in pairwise(sizes)]
        self.weight_gradients = [random(outputs, inputs) for inputs, outputs in pairwise(sizes)]
        self.activations = [random(rows, size) for size in sizes]
        self.gradients = [random(rows, size) for size in sizes]
        self.scratch = [random(rows, size) for size in sizes]

    def forward(self) -> None:
        """`a[i + 1] = tanh(a[i] W^T)`, the last layer without tanh."""
        last = len(self.weights) - 1
        for i, weight in enumerate(self.weights):
            self.library.multiply(self.activations[i], weight.T, self.activations[i + 1])
            if i < last:
                self.library.tanh(self.activations[i + 1])

    def backward(self) -> None:
        """`dW = g[i + 1]^T a[i]`, `g[i] = (g[i + 1] W) (1 - a[i]^2)`; the input needs no gradient."""
        library, gradients = self.library, self.gradients
        for i in reversed(range(len(self.weights))):
            library.multiply(gradients[i + 1].T, self.activations[i], self.weight_gradients[i])
            if i > 0:
                library.multiply(gradients[i + 1], self.weights[i], self.scratch[i])
                library.tanh_backward(self.scratch[i], self.activations[i], gradients[i])


class InNumpy:
    """What `BareNetwork` needs, by NumPy."""

    def array(self, array: NDArray[Any]) -> NDArray[Any]:
        """An array of this library."""
        return array

    def multiply(self, left: NDArray[Any], right: NDArray[Any], out: NDArray[Any]) -> None:
        """`out = left right`."""
        np.matmul(left, right, out=out)

    def tanh(self, values: NDArray[Any]) -> None:
        """In place."""
        np.tanh(values, out=values)

    def tanh_backward(self, gradient: NDArray[Any], activation: NDArray[Any], out: NDArray[Any]) -> None:
        """`out = gradient (1 - activation^2)`."""
        np.multiply(activation, activation, out=out)
        np.subtract(1.0, out, out=out)
        np.multiply(gradient, out, out=out)


class InTorch:
    """What `BareNetwork` needs, by torch."""

    def array(self, array: NDArray[Any]) -> Tensor:
        """An array of this library."""
        return torch.from_numpy(array)

    def multiply(self, left: Tensor, right: Tensor, out: Tensor) -> None:
        """`out = left right`."""
        torch.mm(left, right, out=out)

    def tanh(self, values: Tensor) -> None:
        """In place."""
        torch.tanh(values, out=values)

    def tanh_backward(self, gradient: Tensor, activation: Tensor, out: Tensor) -> None:
        """`out = gradient (1 - activation^2)`."""
        torch.ops.aten.tanh_backward.grad_input(gradient, activation, grad_input=out)


def main() -> int:
    """Run one turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contestant", choices=("hybridppo", "stable-baselines3", "limits"))
    parser.add_argument("case", choices=CASES | SLOW_CASES)
    parser.add_argument("--placement", default="cpu", help="of hybridppo")
    parser.add_argument("--learning-device", default="cuda", help="of placements with two devices")
    parser.add_argument("--precision", default="fp32", help="of hybridppo")
    parser.add_argument("--num-workers", type=int, help="of hybridppo")
    parser.add_argument("--vector", choices=("dummy", "subproc"), default="dummy", help="of stable-baselines3")
    parser.add_argument("--start-method", help="of the processes of stable-baselines3")
    parser.add_argument("--num-envs", type=int, help="the same work by so many environments")
    parser.add_argument("--iterations", type=int, help="counted iterations instead of the case's own")
    arguments = parser.parse_args()
    case = (CASES | SLOW_CASES)[arguments.case]
    if arguments.num_envs is not None:
        case = case.with_envs(arguments.num_envs)
    if arguments.iterations is not None:
        case = replace(case, iterations=arguments.iterations)
    if arguments.contestant == "hybridppo":
        settings = arguments.placement, arguments.learning_device, arguments.num_workers, arguments.precision
        result = run_hybridppo(case, *settings)
    elif arguments.contestant == "stable-baselines3":
        result = run_stable_baselines3(case, arguments.vector, arguments.start_method)
    else:
        result = run_limits(case)
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
