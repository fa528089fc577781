"""What bounds a training from images on one core: its parts alone, beside whole iterations.

    taskset -c 0 python benchmarks/images.py

Milliseconds per iteration. `kernels` are the convolutions and the large linear layer of actor and critic alone, forward
and backward, by oneDNN. The bound is the steps per second if only the environments and these kernels took time.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import machine
import torch
from cases import ALL_CASES, Case, our_config, run_ours

from hybridppo import PPO
from hybridppo.agents.ppo.by_autograd import Backend
from hybridppo.networks.actors import arrays_of, twin_of
from hybridppo.networks.modes import ByOneDNN
from hybridppo.spaces.rows import ImageLayout


def milliseconds(call: Callable[[], Any], repeats: int = 20) -> float:
    """The median time of a call."""
    times = []
    for _ in range(repeats + 2):
        begin = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times[2:])


def kernels(image: ImageLayout, rows: int, hidden: int) -> dict[str, tuple[float, float]]:
    """For each layer, the milliseconds of its forward and backward products for so many images."""
    found, sizes = {}, image.sizes
    backward = torch.ops.aten.convolution_backward
    for number, (filters, kernel, stride) in enumerate(image.convolutions):
        (height, width, channels), after = sizes[number], sizes[number + 1]
        inputs = torch.randn(rows, channels, height, width).to(memory_format=torch.channels_last)
        gradient = torch.randn(rows, filters, *after[:2]).to(memory_format=torch.channels_last)
        weight, bias = torch.randn(filters, channels, kernel, kernel), torch.randn(filters)
        needed = [number > 0, True, True]

        def forward(layer: Any = (inputs, weight, bias, stride)) -> None:
            torch.nn.functional.conv2d(*layer)

        def back(given: Any = (gradient, inputs, weight), layer: Any = (filters, stride, needed)) -> None:
            backward(*given, [layer[0]], [layer[1]] * 2, [0, 0], [1, 1], False, [0, 0], 1, layer[2])

        found[f"convolution {number + 1}"] = milliseconds(forward), milliseconds(back)
    features, weight = torch.randn(rows, image.num_features), torch.randn(hidden, image.num_features)
    bias = torch.randn(hidden)
    gradient = torch.randn(rows, hidden)

    def linear(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        with ByOneDNN():
            torch.nn.functional.linear(inputs, weight, bias)

    both = milliseconds(lambda: linear(gradient, weight.t())) + milliseconds(lambda: linear(gradient.t(), features.t()))
    found["linear"] = milliseconds(lambda: linear(features, weight, bias)), both
    return found


def environments(case: Case) -> Any:
    """The environments of a case, stepped in this thread."""
    if case.env_id.startswith("ALE/"):
        import ale_py  # noqa: F401 - which registers its games

        options: dict[str, Any] = {"vectorization_mode": "vector_entry_point", "num_threads": 1}
    else:
        options = {"vectorization_mode": "sync"}
    return gym.make_vec(case.env_id, num_envs=case.num_envs, **options)


def parts_of(name: str) -> dict[str, Any]:
    """The parts of an iteration of a case."""
    case, vector = ALL_CASES[name], environments(ALL_CASES[name])
    config, (hidden,) = our_config(case), case.hidden_sizes
    seen, _ = vector.reset(seed=0)
    step = milliseconds(lambda: vector.step(vector.action_space.sample()), 40)
    agent = PPO(vector.single_observation_space, vector.single_action_space, config, seed=0)
    vector.close()
    image = ImageLayout.of(agent.observation_space)
    form = twin_of(agent.actor)
    assert image is not None
    assert form is not None
    twin = form.actor([array.numpy() for array in arrays_of(agent.actor)])
    rows, steps = torch.from_numpy(seen), case.num_epochs * case.num_minibatches
    layers = kernels(image, case.minibatch_size, hidden)
    forward = sum(each for each, _ in layers.values())
    once = 2 * sum(sum(each) for each in layers.values())
    with torch.no_grad():
        in_torch = milliseconds(lambda: agent.actor(rows))
    backend = Backend(agent)
    whole = run_ours(case, case.env_id, config)
    simulation, of_kernels = case.num_steps * step, steps * once + case.num_minibatches * forward
    acting = case.num_steps * forward * case.num_envs / case.minibatch_size
    return {
        "case": case.in_words(),
        "sampling, ms": whole["ms_sampling"],
        "of which environments": simulation,
        "of which acting in NumPy": case.num_steps * milliseconds(lambda: twin(seen)),
        "acting in torch instead": case.num_steps * in_torch,
        "learning, ms": whole["ms_learning"],
        "of which kernels of optimizer steps": steps * once,
        "kernels by layer": {layer: [2 * steps * each for each in both] for layer, both in layers.items()},
        "of which clipped gradients and Adam": steps * milliseconds(backend.descend),
        "of which values": milliseconds(lambda: backend.values(rows.repeat(case.num_steps, 1, 1, 1)), 3),
        "steps per second": whole["steps_per_second"],
        "bound, steps per second": 1e3 * case.batch_size / (simulation + of_kernels + acting),
    }


def as_markdown(result: dict[str, Any]) -> str:
    """The parts, a column for each case."""
    cases = result["cases"]
    names = [part for part, value in next(iter(cases.values())).items() if isinstance(value, float)]
    rows = [[part, *(f"{case[part]:,.0f}" for case in cases.values())] for part in names]
    lines = [f"| | {' | '.join(cases)} |", f"|---|{'---:|' * len(cases)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def main() -> None:
    """Measure both cases and save the results."""
    torch.set_num_threads(1)
    result = {"cpu": machine.describe()["cpu"], "cases": {name: parts_of(name) for name in ("racing", "pong")}}
    machine.save("images_parts", result)
    print(as_markdown(result))


if __name__ == "__main__":
    main()
