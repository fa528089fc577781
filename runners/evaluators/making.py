"""Chooses the evaluator."""

from dataclasses import replace
from types import SimpleNamespace

from hybridppo.environments.making import is_tensor_env
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.errors import ConfigurationError
from hybridppo.interfaces import Agent
from hybridppo.networks.forms import actor_form
from hybridppo.placements.placement import Placement
from hybridppo.runners.evaluation import Episodes
from hybridppo.runners.evaluators.beside import Beside
from hybridppo.runners.evaluators.in_between import InBetween
from hybridppo.system.signals import Interruption

MOST_SIDE_BY_SIDE = 32
"""Environments that an evaluation steps together."""


def make_evaluator(
    source: EnvSource,
    agent: Agent,
    placement: Placement,
    options: EnvironmentOptions,
    *,
    beside: bool | None,
    num_envs: int,
    episodes: int,
    seed: int,
    interruption: Interruption,
) -> Beside | InBetween:
    """The evaluator: beside the training if asked for, or if sampling and learning overlap and NumPy can act.

    Otherwise, evaluations run between two iterations.

    Args:
        source: makes the training's environments; evaluations make new ones from it.
        agent: the agent, prepared by the placement.
        placement: the placement.
        options: how environments are made.
        beside: whether to use another process; None if sampling and learning overlap.
        num_envs: number of environments of the training, which a function may need to make a vector.
        episodes: episodes of an evaluation.
        seed: seed of every evaluation.
        interruption: stops an evaluation.

    Raises:
        ConfigurationError: for environments that cannot be made again, or for `beside` if NumPy cannot act.
    """
    if is_tensor_env(source):
        raise ConfigurationError(
            f"evaluate_every needs environments of its own, and {type(source).__name__} is what the training steps: "
            "pass a function that makes one"
        )
    num_envs = num_envs_of(source, num_envs, episodes)
    options = replace(options, episodic_life=False)  # clipped rewards are for learning only
    device = placement.sampling_device
    form = actor_form(agent.actor) if device.type == "cpu" else None
    if beside and form is None:
        has = "networks that NumPy has not (one's own, or with layer_norm, a3c or impala convolutions)"
        why = f"it has {has}" if device.type == "cpu" else f"it samples on {device}"
        raise ConfigurationError(f"evaluate_beside needs a policy that acts in NumPy, on the CPU: {why}. Leave it out")
    spaces = SimpleNamespace(observation_space=agent.observation_space, action_space=agent.action_space)
    evaluated = Episodes(source, num_envs, options, spaces, agent.distribution, episodes, seed, agent.memory)
    if form is not None and (placement.max_lag > 0 if beside is None else beside):
        process = Beside(evaluated, form)
        interruption.tell(process.request_stop)
        return process
    return InBetween(evaluated, lambda: interruption.requested)


def num_envs_of(source: EnvSource, num_envs: int, episodes: int) -> int:
    """Number of environments of an evaluation; a function may only make vectors of the training's size."""
    return min(episodes, MOST_SIDE_BY_SIDE) if isinstance(source, str) else num_envs
