"""Cases about the course of a training: waits, memory, stops, resumed runs, errors, the choice of `auto`."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from gpu_cases.case import (
    PLACEMENTS,
    SMALL,
    TOLERANCES,
    Bench,
    Case,
    distance,
    placement_on,
    require,
    values_of,
    waits_of,
)
from gpu_cases.environments import Enormous
from gpu_cases.results import EPISODES, WIDE

from hybridppo.agents import PPO, PPOConfig
from hybridppo.auto.auto import Auto
from hybridppo.auto.trials import Training
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.errors import DeviceError, TrainingError
from hybridppo.evaluation import evaluate_agent
from hybridppo.loading import load
from hybridppo.placements.placement import Placement, SingleDevice
from hybridppo.rollouts.rollout import Rollout
from hybridppo.runners.sampler import LocalFiller, RolloutPlan, Sampler
from hybridppo.system.devices import num_cuda_devices
from hybridppo.system.signals import Stopped
from hybridppo.training import resume

EAGER, RECORDED = replace(SMALL, fast_updates=False), replace(SMALL, cuda_graphs=True)
MANY_SIZES = 40


class _BreakOffError(Exception):
    pass


@contextlib.contextmanager
def breaking_off() -> Iterator[Callable[[Any], None]]:
    """Returns an `on_iteration` that stops a training after its third iteration, by an error that is caught here."""

    def break_off(metrics: Any) -> None:
        if metrics["iteration"] == 3:
            raise _BreakOffError

    with contextlib.suppress(_BreakOffError):
        yield break_off


@dataclass(frozen=True)
class Loop:
    """An agent, its placement and its sampler, for cases that look between sampling and learning."""

    agent: PPO
    placement: Placement
    sampler: Sampler

    def rollout(self) -> Rollout:
        """The next rollout, on the learner's device."""
        with self.placement.sampling(self.agent) as actor:
            return self.placement.to_learner(self.sampler.collect(actor))


@contextlib.contextmanager
def loop(placement: Placement, config: PPOConfig, env: Any = "CartPole-v1", kind: type[PPO] = PPO) -> Iterator[Loop]:
    """The parts of a training, closed afterwards."""
    environments = make_environments(env, config.num_envs, vectorization="sync")
    agent = kind(environments.observation_space, environments.action_space, config, seed=0)
    placement.prepare(agent)
    plan = RolloutPlan(
        agent.distribution, np.random.default_rng(0), env_seed=0, num_steps=config.num_steps, memory=agent.memory,
        pin_for=placement.pin_for,
    )  # fmt: skip
    sampler = Sampler(LocalFiller(environments, plan), plan)
    try:
        yield Loop(agent, placement, sampler)
    finally:
        sampler.close()


def waits_once(bench: Bench, config: PPOConfig, env: Any = "CartPole-v1", *, each_pass: bool = False) -> str:
    """Updates wait for the device once, except for a read per epoch and the update that records steps."""
    bench.needs_gpu("counting waits")
    counts = []
    with loop(placement_on("hybrid", bench), config, env) as parts:
        for _ in range(4):
            rollout = parts.rollout()
            counts.append(waits_of(partial(parts.agent.update, rollout), bench.device))
    expected = 1 + config.num_epochs if each_pass else 1
    expected += config.recurrent is not None  # where episodes start is asked once
    said = f"waits of four updates: {', '.join(map(str, counts))} (expected from the third on: {expected})"
    require(counts[2:] == [expected] * 2, said)
    return said


class Own(PPO):
    """A subclass, whose minibatches are not padded to a few sizes."""


def memory_stays(bench: Bench) -> str:
    """With more sizes of minibatches than are recorded, again and again, the device's memory does not grow."""
    bench.needs_gpu("recording a CUDA graph")
    config = replace(RECORDED, num_envs=1, num_minibatches=1, num_epochs=1, num_steps=256)
    taken = []
    with loop(placement_on("single", bench), config, kind=Own) as parts:
        whole = parts.rollout()
        for _ in range(6):
            for steps in range(16, 16 + MANY_SIZES):
                parts.agent.update(first_steps(whole, steps))
            taken.append(torch.cuda.memory_allocated(bench.device))
    said = f"MiB after each round of {MANY_SIZES} sizes: {', '.join(f'{size / 2**20:.2f}' for size in taken)}"
    require(len(set(taken[2:])) == 1, said)
    return said


def first_steps(rollout: Rollout, steps: int) -> Rollout:
    """The first steps of a rollout whose rows are all steps."""
    parts = {
        name: getattr(rollout, name)[:steps] for name in ("actions", "log_probs", "rewards", "terminated", "truncated")
    }
    num_envs = rollout.rewards.shape[1]
    rows = rollout.valid_rows[rollout.valid_rows < steps * num_envs]
    finals = rollout.final_rows < steps * num_envs
    return replace(
        rollout,
        observations=rollout.observations[: steps + 1],
        valid_rows=rows,
        final_rows=rollout.final_rows[finals],
        final_observations=rollout.final_observations[finals],
        **parts,
    )


def stops_within_an_update(bench: Bench, config: PPOConfig) -> str:
    """An interrupted update leaves the agent unchanged, and its repetition ends as if it had never begun."""
    if config.cuda_graphs:
        bench.needs_gpu("recording a CUDA graph")
    ends = []
    for stops in (False, True):
        with loop(placement_on("hybrid", bench), config) as parts:
            agent = parts.agent
            for update in range(3):
                rollout = parts.rollout()
                if stops and update == 2:
                    before = [tensor.clone() for tensor in agent._changing()]
                    _break_off(agent, rollout, after=3)
                    same = all(torch.equal(*pair) for pair in zip(agent._changing(), before, strict=True))
                    require(same, "an update that was broken off left something changed")
                agent.update(rollout)
            ends.append(values_of(agent))
    require(torch.allclose(ends[0], ends[1], rtol=1e-5, atol=1e-7), "the update that was made anew ended elsewhere")
    return "bit for bit" if torch.equal(*ends) else "as before, but for rounding"


def _break_off(agent: PPO, rollout: Rollout, after: int) -> None:
    asked = iter(range(after))
    agent.should_stop = lambda: next(asked, None) is None
    try:
        agent.update(rollout)
    except Stopped:
        return
    finally:
        agent.should_stop = lambda: False
    require(False, "nothing was broken off")


def resumes(bench: Bench, name: str, config: PPOConfig) -> str:
    """A run that is stopped and resumed ends like one that was never stopped."""
    if config.cuda_graphs:
        bench.needs_gpu("recording a CUDA graph")
    whole, _ = bench.train(placement_on(name, bench), config)
    run_dir = bench.folder / "run"
    with breaking_off() as break_off:
        bench.train(placement_on(name, bench), config, run_dir=run_dir, checkpoint_seconds=0.0, on_iteration=break_off)
    resumed = resume(run_dir, progress=False)
    require(resumed.metrics["iteration"] == whole.metrics["iteration"], "the resumed run is of another length")
    if torch.equal(values_of(resumed.agent), values_of(whole.agent)):
        return "bit for bit"
    apart = distance(resumed.agent, whole.agent, bench.begun(config))
    require(apart <= TOLERANCES["fp32"], f"ends {apart:.2g} of the way from the whole run's end")
    return f"ends {apart:.2g} of the way from the whole run's end"


def loads_on_the_cpu(bench: Bench) -> str:
    """A checkpoint made on the device is an ordinary one."""
    run_dir = bench.folder / "run"
    trained, _ = bench.train(placement_on("hybrid", bench), run_dir=run_dir)
    loaded = load(run_dir)
    require(loaded.parameters.values.device.type == "cpu", "the agent was not loaded to the CPU")
    require(torch.equal(values_of(loaded), values_of(trained.agent)), "the checkpoint holds other parameters")
    return "bit for bit"


def stops_by_kl(bench: Bench, config: PPOConfig) -> str:
    """`target_kl` ends an update after the same epoch as on the CPU, and leaves the generator as the CPU does."""
    if config.cuda_graphs:
        bench.needs_gpu("recording a CUDA graph")
    config = replace(config, target_kl=1e-9, num_epochs=5)
    plain, states = replace(config, cuda_graphs=False), []
    for placement, of in ((placement_on("hybrid", bench), config), (SingleDevice("cpu"), plain)):
        states.append(bench.train(placement, of)[0].agent.state()[1]["order"])
    require(states[0] == states[1], "the generator of minibatch orders is elsewhere than on the CPU")
    return "after the same pass, with the generator in the same state"


def diverges(bench: Bench) -> str:
    """A value that is not finite ends the training, and is named."""
    try:
        bench.train(placement_on("hybrid", bench), env=Enormous)
    except TrainingError as error:
        return str(error).partition(". ")[0]
    require(False, "training went on with numbers that are not finite")
    return ""


def records_by_itself(bench: Bench) -> str:
    """By default the library's own steps are recorded, and with `fast_updates=False` none is."""
    bench.needs_gpu("recording a CUDA graph")
    for config, is_recorded in ((SMALL, True), (EAGER, False)):
        _, history = bench.train(placement_on("hybrid", bench), config)
        replays = sum(metrics.get("graph_replays", 0) for metrics in history)
        require((replays > 0) is is_recorded, f"{replays:.0f} steps were replayed with {config.fast_updates=}")
    return "as they should be"


def comes_back(bench: Bench) -> str:
    """An agent whose steps were recorded learns on the CPU, and on the device again."""
    bench.needs_gpu("recording a CUDA graph")
    on_device = placement_on("single", bench)
    with loop(on_device, RECORDED) as parts:
        for placement in (on_device, SingleDevice("cpu"), on_device):
            placement.prepare(parts.agent)
            for _ in range(3):
                with placement.sampling(parts.agent) as actor:
                    rollout = parts.sampler.collect(actor)
                metrics = parts.agent.update(placement.to_learner(rollout))
    require(metrics["graph_replays"] > 0, "nothing was replayed in the end")
    return "learned there, here, and there again"


def auto_measures(bench: Bench, config: PPOConfig) -> str:
    """`auto` measures the device with this configuration and all of its parts."""
    bench.needs_gpu("a GPU as a candidate")
    environments = make_environments("CartPole-v1", config.num_envs)
    try:
        choice = Auto(max_lag=1).choose(
            Training("CartPole-v1", config, EnvironmentOptions()), environments, total_steps=20_000_000
        )
    finally:
        environments.close()
    left_out = [reason for reason in choice.table["left_out"] if "cuda" in reason or reason.startswith("all")]
    require(not left_out, f"left out: {'; '.join(left_out)}")
    names = {row["name"] for row in choice.table["trials"]}
    require(names >= {"cpu", "hybrid"}, f"tried only {', '.join(sorted(names))}")
    return str(choice.table["line"])


def evaluates(bench: Bench, name: str) -> str:
    """Evaluations on the device give the same results as on the CPU."""
    placement = placement_on(name, bench)
    result, _ = bench.train(placement)
    found = evaluate_agent(result.agent, "CartPole-v1", episodes=8, placement=placement, progress=False).returns
    SingleDevice("cpu").prepare(result.agent)
    expected = evaluate_agent(result.agent, "CartPole-v1", episodes=8, progress=False).returns
    same = sum(a == b for a, b in zip(sorted(found), sorted(expected), strict=True))
    # Where two actions are as good as equal, rounding decides; seldom, and then an episode goes another way.
    require(same >= 6, f"{same} of 8 episodes end as on the CPU")
    return f"{same} of 8 episodes end as on the CPU"


def counts_crossings(bench: Bench) -> str:
    """A mirror publishes once per update, and rollouts are in page-locked memory."""
    bench.needs_gpu("page-locked memory")
    with loop(placement_on("hybrid", bench), EAGER) as parts, parts.placement.sampling(parts.agent) as actor:
        require(parts.sampler.collect(actor).observations.is_pinned(), "rollouts are not page-locked")
    _, history = bench.train(placement_on("hybrid", bench), EAGER)
    require([metrics["publishes"] for metrics in history] == [1, 2, 3, 4], "not one publish an update")
    return f"{history[-1]['bytes_copied']:.0f} bytes in {len(history)} updates"


def refuses_what_is_not_there(bench: Bench) -> str:
    """A device beyond the last is an error that lists the existing ones."""
    try:
        SingleDevice(f"cuda:{num_cuda_devices()}")
    except DeviceError as error:
        return str(error)
    require(False, "a device that is not there was taken")
    return ""


def behaviour_cases() -> Iterator[Case]:
    """All cases of this file."""
    yield Case("waits/eager", "an update waits once, eager steps", partial(waits_once, config=EAGER))
    yield Case("waits/recorded", "an update waits once, recorded steps", partial(waits_once, config=RECORDED))
    by_kl = replace(EAGER, target_kl=1e9)
    yield Case(
        "waits/target_kl",
        "with target_kl it waits once a pass besides",
        partial(waits_once, config=by_kl, each_pass=True),
    )
    yield Case("memory/sizes", "sizes without end take no memory without end", memory_stays)
    for form, config in (("eager", EAGER), ("recorded", RECORDED)):
        case = partial(stops_within_an_update, config=config)
        yield Case(f"stop/{form}", f"a stop in the middle of an update, {form} steps", case)
        case = partial(stops_by_kl, config=config)
        yield Case(f"target_kl/{form}", f"target_kl ends an update where the CPU does, {form} steps", case)
        for name in PLACEMENTS:
            case = partial(resumes, name=name, config=config)
            yield Case(f"resume/{name}/{form}", f"{name}, {form} steps: resumed as if never stopped", case)
    episodes = partial(resumes, name="hybrid", config=replace(EPISODES, fast_updates=False))
    yield Case("resume/episodes", "whole episodes: resumed as if never stopped", episodes)
    yield Case("checkpoint", "a checkpoint of the device loads on the CPU", loads_on_the_cpu)
    yield Case("divergence", "numbers that are not finite end the training", diverges)
    yield Case("recorded by itself", "the library's own steps are recorded by default", records_by_itself)
    yield Case("round trip", "an agent goes to the CPU and comes back", comes_back)
    wide = replace(WIDE, cuda_graphs=True, num_steps=128)
    yield Case("auto/recorded", "auto measures recorded steps of wide networks", partial(auto_measures, config=wide))
    small = replace(SMALL, num_steps=128)
    yield Case("auto/eager", "auto measures eager steps of small networks", partial(auto_measures, config=small))
    for name in ("single", "migrate", "hybrid"):
        case = partial(evaluates, name=name)
        yield Case(f"evaluation/{name}", f"{name}: evaluation as on the CPU", case)
    yield Case("crossings", "a mirror publishes once an update, from page-locked memory", counts_crossings)
    yield Case("beyond the last", "a device that is not there is an error", refuses_what_is_not_there)
