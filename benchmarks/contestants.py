"""One turn of `fixed_work.py`: what runs in each fresh process. A line of JSON on stdout is its result.

python benchmarks/contestants.py stable-baselines3 small
python benchmarks/contestants.py hybridppo small --placement cpu
python benchmarks/contestants.py limits small
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ENV_ID = "CartPole-v1"
NUM_STEPS, NUM_EPOCHS, NUM_MINIBATCHES = 128, 4, 4
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

    @property
    def batch_size(self) -> int:
        """Rows of a rollout."""
        return self.num_envs * NUM_STEPS

    @property
    def minibatch_size(self) -> int:
        """Rows of a minibatch."""
        return self.batch_size // NUM_MINIBATCHES


CASES = {
    "small": Case(num_envs=8, hidden_sizes=(64, 64), warmup=5, iterations=40),
    "wide": Case(num_envs=64, hidden_sizes=(256, 256), warmup=2, iterations=10),
}


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
        "ms_sampling": 1e3 * statistics.mean(mark.seconds_sampling for mark in marks[1:]),
        "ms_learning": 1e3 * statistics.mean(mark.seconds_learning for mark in marks[1:]),
    }


def run_hybridppo(case: Case, placement: str, learning_device: str) -> dict[str, Any]:
    """A turn of this library, through its public `train`."""
    import hybridppo
    from hybridppo.placement import make_placement

    marks: list[Mark] = []

    def mark(metrics: dict[str, Any]) -> None:
        phases = metrics["seconds_sampling"], metrics["seconds_learning"]
        marks.append(Mark(time.perf_counter(), metrics["env_steps"], *phases))

    config = hybridppo.PPOConfig(
        num_envs=case.num_envs,
        num_steps=NUM_STEPS,
        num_epochs=NUM_EPOCHS,
        num_minibatches=NUM_MINIBATCHES,
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
    try:
        chosen = make_placement(placement, learning_device=learning_device)
    except hybridppo.HybridPPOError as error:
        return {"left_out": str(error)}
    # Rows that environments spend on a reset are no steps: this may take a few iterations more than are counted.
    total_steps = (case.warmup + case.iterations) * case.batch_size
    hybridppo.train(
        ENV_ID, total_steps=total_steps, seed=0, placement=chosen, config=config, progress=False, on_iteration=mark
    )
    return work_done(marks, case)


def run_stable_baselines3(case: Case) -> dict[str, Any]:
    """A turn of stable-baselines3 at its fastest: environments in turn, on the CPU, without monitor or log."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import DummyVecEnv

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
    agent = PPO(
        "MlpPolicy",
        DummyVecEnv([lambda: gym.make(ENV_ID)] * case.num_envs),
        n_steps=NUM_STEPS,
        n_epochs=NUM_EPOCHS,
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
    callback = Marking()
    total_steps = (case.warmup + case.iterations) * case.batch_size
    agent.learn(total_steps, callback=callback, log_interval=None)  # type: ignore[arg-type]  # None: never
    marks = [
        Mark(end, env_steps, sampled - begin, end - sampled)
        for (begin, end), (sampled, env_steps) in zip(pairwise(callback.begins), callback.sampled, strict=True)
    ]
    return work_done(marks, case)


def run_limits(case: Case) -> dict[str, Any]:
    """The yardstick: the work's environments and matrix products on one thread, and nothing else."""
    torch.set_num_threads(1)
    us_per_vector_step = 1e6 * seconds_per_vector_step(case.num_envs)
    in_numpy, in_torch = (1e3 * seconds_per_minibatch(case, library) for library in (InNumpy(), InTorch()))
    ms_sampling = 1e-3 * us_per_vector_step * NUM_STEPS
    ms_learning = min(in_numpy, in_torch) * NUM_EPOCHS * NUM_MINIBATCHES
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


def seconds_per_vector_step(num_envs: int) -> float:
    """One step of all environments, in gymnasium's own vectorised form, with random actions drawn beforehand."""
    env = gym.make_vec(ENV_ID, num_envs=num_envs)
    env.reset(seed=0)
    random_actions = iter(np.random.default_rng(0).integers(0, 2, size=(8 * 500, num_envs)))
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
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--placement", default="cpu", help="of hybridppo")
    parser.add_argument("--learning-device", default="cuda", help="of placements with two devices")
    parser.add_argument("--iterations", type=int, help="counted iterations instead of the case's own")
    arguments = parser.parse_args()
    case = CASES[arguments.case]
    if arguments.iterations is not None:
        case = replace(case, iterations=arguments.iterations)
    if arguments.contestant == "hybridppo":
        result = run_hybridppo(case, arguments.placement, arguments.learning_device)
    elif arguments.contestant == "stable-baselines3":
        result = run_stable_baselines3(case)
    else:
        result = run_limits(case)
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
