"""Loads agents and runners from checkpoints."""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
from torch import Tensor, nn

from hybridppo.agents.policies import ALIKE
from hybridppo.agents.ppo.config import PPOConfig
from hybridppo.agents.ppo.ppo import PPO
from hybridppo.agents.registry import (
    AnyAgent,
    AnyConfig,
    agent_class,
    agents_by_policy,
    config_from_json,
    explaining_memory,
    make_agent,
)
from hybridppo.distributions.own import MakeDistribution
from hybridppo.environments.checks import require_spaces_of
from hybridppo.errors import CheckpointError, ConfigurationError, HybridPPOError, shown, shown_error
from hybridppo.networks.making import Networks
from hybridppo.run_directory.checkpoints import Checkpoint, read_agent_file
from hybridppo.run_directory.directory import RunDirectory, WhichCheckpoint, path_of
from hybridppo.settings import Settings, name_of_source, require_own
from hybridppo.spaces.serialization import space_from_json
from hybridppo.system.seeds import seed_of
from hybridppo.system.validation import whole

logger = logging.getLogger(__name__)

PARTS = ("actor", "critic")
"""The parts that `start_from` takes; optimizer, generators and counters start anew."""
MEANINGS = ("activation", "squash_actions", "actor_keys", "critic_keys")
"""The fields of a configuration that change what the library's networks compute, and no tensor's shape."""
SHAPES = (
    "hidden_sizes", "critic_hidden_sizes", "normalize_observations", "layer_norm", "shared_trunk", "recurrent",
    "recurrent_size", "use_sde", "encoder_sizes", "convolutions",
)  # fmt: skip
"""The fields of a configuration that the tensors of the library's networks follow from."""


def load(
    run_dir: str | Path,
    checkpoint: WhichCheckpoint = "latest",
    *,
    agent: type[AnyAgent] | None = None,
    networks: Networks | None = None,
    action_distribution: MakeDistribution | None = None,
    modules: Mapping[str, nn.Module] | None = None,
) -> AnyAgent:
    """Load the agent of a run's checkpoint, or of a file, on the CPU.

    An agent of several policies has an agent for each (`agents`), and acts for all (`act`).

    Args:
        run_dir: a run directory, its `config.json`, the folder of one of its checkpoints, or a file written by
            `agent.save`.
        checkpoint: the `latest` checkpoint of the run, or the `best`: the one with the highest mean return, of
            evaluations during training (`evaluate_every`) if there are any, else of 100 episodes of training. Until 100
            episodes have ended, the latest is the best.
        agent: the subclass that was trained, if there was one.
        networks: the function that made its own networks, if there was one.
        action_distribution: its own distribution of actions, if there was one.
        modules: modules of the same shapes as its `modules_of`, if it has any. Acting does not need them.

    Raises:
        CheckpointError: if no checkpoint is whole.
        RunDirectoryError: if `run_dir` is no run directory, or its own networks are missing.
    """
    saved = SavedAgent.read(run_dir, checkpoint)
    return saved.made(agent, networks=networks, action_distribution=action_distribution, modules=modules)


def is_agent_file(path: Path) -> bool:
    """Whether a path is a file of `agent.save`, and not the `config.json` of a run."""
    return os.path.isfile(path) and path.name != "config.json"  # Path.is_file raises an error below a closed folder


def load_policies(
    run_dir: str | Path,
    checkpoint: WhichCheckpoint = "latest",
    *,
    agent: type[AnyAgent] | None = None,
    networks: Networks | None = None,
    action_distribution: MakeDistribution | None = None,
) -> dict[str, AnyAgent]:
    """Load the agents of a run, or of an agent's file, by the names of their policies.

    Args:
        run_dir: as for `load`.
        checkpoint: as for `load`.
        agent: as for `load`.
        networks: as for `load`.
        action_distribution: as for `load`.

    Raises:
        CheckpointError: if no checkpoint is whole.
        RunDirectoryError: if `run_dir` is no run directory, or its own networks are missing.
    """
    saved = SavedAgent.read(run_dir, checkpoint)
    made = saved.made(agent, networks=networks, action_distribution=action_distribution)
    return agents_by_policy(made, saved.policy)


@dataclass(frozen=True)
class SavedAgent:
    """An agent as a run's checkpoint or an agent's file describes it."""

    config: AnyConfig
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    own: Mapping[str, str]
    """The names of the user's own parts."""
    tensors: dict[str, Tensor]
    state: dict[str, Any]
    described_by: str
    """What describes it, for messages."""
    seed: int = 0
    policy: str = "policy"
    """The name of the policy, if there is only one."""

    @classmethod
    def read(cls, path: str | Path, checkpoint: WhichCheckpoint = "latest") -> "SavedAgent":
        """Read an agent; arguments are as for `load`.

        Raises:
            CheckpointError: if no checkpoint is whole, or the file is damaged.
            RunDirectoryError: if `path` is no run directory.
        """
        path = path_of(path)
        if not is_agent_file(path):
            directory = RunDirectory.open(path)
            return cls.of_run(Settings.read(directory), directory.load_checkpoint(checkpoint))
        tensors, description = read_agent_file(path)
        described_by = f"what {path} says of it"
        with fitting(described_by):
            config = config_from_json(description["agent"], description["config"])
            observation, action = (space_from_json(description[f"{name}_space"]) for name in ("observation", "action"))
            return cls(config, observation, action, description["own"], tensors, description["state"], described_by)

    @classmethod
    def of_run(cls, settings: Settings, checkpoint: Checkpoint) -> "SavedAgent":
        """The agent of a run at a checkpoint."""
        given = (settings.config, settings.observation_space, settings.action_space, settings.own)
        described_by, seed = "the network in config.json", seed_of(settings.seed, "agent")
        return cls(*given, *checkpoint.part("agent"), described_by, seed, settings.policy)

    def made(self, agent: type[AnyAgent] | None = None, **parts: Any) -> AnyAgent:
        """The agent, with its own parts. Without its modules, it can act and not learn.

        Raises:
            CheckpointError: if its tensors do not fit, or a part is given that it does not have.
            RunDirectoryError: if a part is missing.
        """
        needed = parts if agent is not None else {**parts, "agent": None}
        require_own(self.own, **{name: part for name, part in needed.items() if name != "modules" or part is not None})
        made = new_agent(self, agent, seed=self.seed, **parts)
        tensors = self.tensors
        if parts.get("modules") is None and "modules" in self.own:
            tensors = {n: t for n, t in tensors.items() if n.partition(".")[0] not in ("modules", "optimizer")}
        with fitting(self.described_by):
            made.load_state(tensors, self.state)
        return made


def new_agent(
    saved: SavedAgent | Settings, agent: type[AnyAgent] | None = None, *, seed: int, **parts: Any
) -> AnyAgent:
    """A new agent for the spaces and the configuration of another.

    Raises:
        ConfigurationError: if `agent` is not the class of an agent.
    """
    kind = agent if agent is not None else agent_class(saved.config)
    if not (isinstance(kind, type) and issubclass(kind, AnyAgent)):
        raise ConfigurationError(f"agent must be the class that was trained, got {shown(kind)}")
    with explaining_memory():
        return make_agent(kind, saved.observation_space, saved.action_space, saved.config, seed=seed, **parts)


def start_agent_from(agent: AnyAgent, path: str | Path) -> None:
    """Give a fresh agent the networks of another training.

    Args:
        agent: fresh, on the CPU.
        path: a run directory, for its newest checkpoint, the folder of a checkpoint, or a file written by `agent.save`.

    Raises:
        CheckpointError: if the spaces or the networks differ, or there are none.
    """
    before, what = SavedAgent.read(path), f"a training cannot start from {path}"
    theirs, ours = before.config, agent.config
    try:
        remedy = " (docs/runs.md, other observations: copy what fits into a new agent)"
        require_spaces_of(before, agent, error=CheckpointError, remedy=remedy)
        is_other = bool(_differences(agent.state()[0], before.tensors))
        if type(theirs) is type(ours) and "networks" not in agent.own:
            _require_equal(theirs, ours, (*MEANINGS, *SHAPES) if is_other else MEANINGS)
        elif is_other and type(theirs) is not type(ours):
            raise CheckpointError(f"its config is a {type(theirs).__name__}, and this one's is a {type(ours).__name__}")
    except CheckpointError as error:
        raise CheckpointError(f"{what}: {error}") from None
    take_networks(agent, before.tensors, what, before.own)


def _require_equal(theirs: AnyConfig, ours: AnyConfig, fields: Sequence[str]) -> None:
    """Refuse networks that these fields would make others."""
    of_each = theirs.policies, ours.policies
    for policy in of_each[0].keys() & of_each[1].keys():
        for field in fields:
            there, here = (getattr(configs[policy], field, None) for configs in of_each)
            if there != here:
                raise CheckpointError(f"{field} is {there!r} there and {here!r} here: give it the same value")


def given_policies(config: Mapping[str, PPOConfig | PPO | str | Path]) -> tuple[dict[str, PPOConfig], dict[str, PPO]]:
    """The settings of each policy, and the agents of the policies that act and do not learn, by name.

    Args:
        config: for each policy, its settings; or an agent, a run directory or a file of `agent.save`. From a run of
            several policies, the policy of the same name is loaded.

    Raises:
        CheckpointError: if a run has no policy of this name.
        ConfigurationError: if an agent is not PPO's, or no policy is left to train.
        RunDirectoryError: if a path is no run directory.
    """
    agents: dict[str, PPO] = {}
    for name, given in config.items():
        if isinstance(given, PPOConfig):
            continue
        if name in PPOConfig.__dataclass_fields__:
            raise ConfigurationError(
                f"config has the setting {name!r} in place of a policy's name: write config=PPOConfig(**config)"
            )
        found = agents_by_policy(load(given), name) if isinstance(given, (str, Path)) else {name: given}
        if name not in found:
            raise CheckpointError(f"{given} has the policies {', '.join(found)}, and not {name!r}")
        agent = found[name]
        if not isinstance(agent, PPO):
            raise ConfigurationError(
                "config must be one of PPOConfig, DDPGConfig, TD3Config, or have a PPOConfig for each policy (for one "
                "that is not trained, an agent of PPO, a run directory or an agent's file); "
                f"config[{name!r}] is {shown(agent)}"
            )
        agents[name] = agent
    trained = {name: given for name, given in config.items() if isinstance(given, PPOConfig)}
    if not agents:
        return trained, {}
    if not trained:
        raise ConfigurationError("config has agents alone, which are not trained: give a PPOConfig for one at least")
    # Rollouts are the same for all policies, and one that does not learn needs no minibatches.
    model = next(iter(trained.values()))
    of_rollouts: dict[str, Any] = {field: getattr(model, field) for field in ALIKE if field != "squash_actions"}
    of_rollouts |= {"num_minibatches": 1, "minibatch_size": None, "pool_size": 1, "episodes_per_rollout": None}
    of_rollouts["normalize_rewards"] = False
    remember = (each.sequence_length for each in trained.values() if each.recurrent is not None)
    of_rollouts["sequence_length"] = next(remember, model.sequence_length)
    configs = {name: trained.get(name) or replace(agents[name].config, **of_rollouts) for name in config}
    return configs, agents


def put_networks(trained: AnyAgent, agents: Mapping[str, PPO]) -> None:
    """Copy the networks of the agents that do not learn into their policies.

    Args:
        trained: the agent of several policies.
        agents: the agents that do not learn, by policy.

    Raises:
        ConfigurationError: if an agent has other spaces than its policy.
        CheckpointError: if an agent has other networks than its policy.
    """
    for name, agent in agents.items():
        mine = agents_by_policy(trained)[name]
        require_spaces_of(agent, mine, error=ConfigurationError)
        take_networks(mine, agent.state()[0], f"policy {name!r} cannot be played", agent.own)


def take_networks(agent: AnyAgent, found: dict[str, Tensor], what: str, own: Mapping[str, Any]) -> None:
    """Load an agent's networks from another's tensors, whose own parts or their names are `own`.

    Raises:
        CheckpointError: if the networks or distributions differ; it begins with `what`.
    """
    there, here = (parts.get("action_distribution") for parts in (own, agent.own))
    if name_of_source(there) != name_of_source(here):
        raise CheckpointError(f"{what}: its action_distribution is {shown(there)} there, and {shown(here)} here")
    mine, state = agent.state()
    if differences := _differences(mine, found):
        raise CheckpointError(
            f"{what}: its networks are others: {'; '.join(differences[:4])}: train with the same environment, "
            "hidden_sizes and networks"
        )
    agent.load_state({name: tensor for name, tensor in found.items() if _is_of_network(name)}, state)


def _differences(mine: dict[str, Tensor], found: dict[str, Tensor]) -> list[str]:
    """The tensors of networks that have other shapes, or are missing."""
    return [
        f"{name} is {_shape(found, name)} there and {_shape(mine, name)} here"
        for name in sorted(filter(_is_of_network, found.keys() | mine.keys()))
        if _shape(found, name) != _shape(mine, name)
    ]


def _is_of_network(name: str) -> bool:
    """Whether an agent's tensor belongs to its networks. With several policies, names begin with `policies.NAME.`."""
    parts = name.split(".")
    return parts[2 if parts[0] == "policies" else 0] in PARTS


def _shape(tensors: dict[str, Tensor], name: str) -> str:
    return str(list(tensors[name].shape)) if name in tensors else "nothing"


def rewind_to(directory: RunDirectory, checkpoint: Checkpoint) -> int:
    """Remove what a run has written after a checkpoint; the checkpoint's environment steps."""
    with fitting("this run"):
        loop = checkpoint.state["runner"]
        iteration, number = whole(loop, "iteration"), whole(loop, "number")
        reported = whole(checkpoint.state["evaluation"], "reported")
        directory.rewind(iteration, number, reported)
        return checkpoint.env_steps


@contextmanager
def fitting(what: str) -> Iterator[None]:
    """A context in which the errors of torch and NumPy for wrong shapes and types become a `CheckpointError`."""
    try:
        yield
    except HybridPPOError:
        raise
    except Exception as error:
        raise CheckpointError(f"the checkpoint does not fit {what}: {shown_error(error)}") from error
