"""Policies of a training of several, out of its run directory, and how well they do together.

agents = hybridppo.load_policies("runs/tag")
evaluations = hybridppo.evaluate_policies(agents, compiled.tag(), episodes=20)
evaluations["tagger"].return_mean
"""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hybridppo.agents.ppo.ppo import PPO
from hybridppo.environments.checks import require_spaces_of
from hybridppo.environments.compiled_agents import CompiledAgents
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.interfaces import SamplingActor
from hybridppo.networks.precision import float32_products
from hybridppo.placements.single_device import SingleDevice
from hybridppo.run_directory.directory import RunDirectory, WhichCheckpoint
from hybridppo.runners.evaluation import Evaluation
from hybridppo.runners.evaluation import evaluate as run_episodes
from hybridppo.spaces.distributions import distribution_for
from hybridppo.system.seeds import seed_of
from hybridppo.training.several_policies import agent_of_policy, compiled_agents, definition_with_kinds, settings_of


def load_policies(run_dir: str | Path, checkpoint: WhichCheckpoint = "latest") -> dict[str, PPO]:
    """The agents of a run of several policies, on the CPU, by the names of their kinds.

    Raises:
        CheckpointError: where no checkpoint is whole.
        RunDirectoryError: where it is no run of several policies.
    """
    directory = RunDirectory.open(run_dir)
    settings = settings_of(directory)
    found = directory.load_checkpoint(checkpoint)
    return {name: agent_of_policy(name, of_policy, found) for name, of_policy in settings.items()}


def evaluate_policies(
    agents: Mapping[str, Any],
    env: EnvSource,
    *,
    episodes: int = 20,
    num_envs: int = 10,
    seed: int = 0,
    deterministic: bool = False,
) -> dict[str, Evaluation]:
    """Whole episodes with an agent for each kind: the returns of the agents of each.

    Args:
        agents: by the names of the kinds; an agent, or a function of observations `[n, obs]` that gives the outputs
            `[n, outputs]` of an actor, as a scripted policy can.
        env: a compiled environment with these kinds.
        episodes: of the environment.
        num_envs: environments side by side.
        seed: of the environments, and of the actions.
        deterministic: take the most probable action instead of a random one.
    """
    options = EnvironmentOptions(vectorization="compiled")
    kinds = list(definition_with_kinds(env, options, agents).policies)
    environments = compiled_agents(env, min(num_envs, episodes), options)
    try:
        with contextlib.ExitStack() as stack:
            actors = []
            for kind in kinds:
                agent = agents[kind]
                if isinstance(agent, PPO):
                    require_spaces_of(agent, environments)
                    placement = SingleDevice(agent.parameters.values.device)
                    placement.prepare(agent)
                    stack.enter_context(float32_products(agent.config.precision, placement.sampling_device))
                    agent = stack.enter_context(placement.evaluating(agent))
                actors.append(agent)
            distribution = distribution_for(environments.action_space)
            found = run_episodes(
                _ByKind(actors, environments, distribution.output_size),
                distribution,
                environments,
                episodes=episodes,
                seed=seed_of(seed, "evaluation"),
                deterministic=deterministic,
            )
    finally:
        environments.close()
    evaluations = {}
    for kind in kinds:
        of_kind = [i for i, name in enumerate(found.agents) if name.rpartition("_")[0] == kind]
        returns, lengths = tuple(found.returns[i] for i in of_kind), tuple(found.lengths[i] for i in of_kind)
        evaluations[kind] = Evaluation(returns, lengths, tuple(found.agents[i] for i in of_kind))
    return evaluations


class _ByKind:
    """An actor for all agents: each kind's own for its columns."""

    version = 0

    def __init__(self, actors: list[SamplingActor], environments: CompiledAgents, num_outputs: int) -> None:
        self._actors, self._columns = actors, environments.columns_of_kinds
        self._outputs = np.empty((environments.num_envs, num_outputs), np.float32)

    def __call__(self, observations: Any) -> Any:
        for actor, columns in zip(self._actors, self._columns, strict=True):
            self._outputs[columns] = actor(observations[columns])
        return self._outputs
