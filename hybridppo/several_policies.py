"""Training with a policy for each kind of agents of a compiled environment: `train` and `resume` end here then.

hybridppo.train(compiled.tag(), config={"tagger": PPOConfig(), "runner": PPOConfig()}, total_steps=1_000_000)
agents = hybridppo.load_policies("runs/tag")
evaluations = hybridppo.evaluate_policies(agents, compiled.tag(), episodes=20)
"""

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hybridppo.agents.ppo.config import PPOConfig
from hybridppo.agents.ppo.memory import require_memory
from hybridppo.agents.ppo.ppo import PPO
from hybridppo.compiled.known import compiled_form
from hybridppo.environments.compiled_agents import CompiledAgents
from hybridppo.environments.making import make_environments
from hybridppo.environments.on_device import has_launcher
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.errors import CheckpointError, ConfigurationError, RunDirectoryError, TrainingInterrupted, shown
from hybridppo.interfaces import Metrics
from hybridppo.interruption import Interruption
from hybridppo.loading import fitting
from hybridppo.networks.precision import float32_products
from hybridppo.networks.threads import limit_threads
from hybridppo.observers import Reporting
from hybridppo.options import RunOptions
from hybridppo.placements.auto.auto import Auto
from hybridppo.placements.auto.named import PlacementChoice, resolve_placement
from hybridppo.placements.base import Placement
from hybridppo.placements.by_name import placement_from_settings
from hybridppo.placements.single_device import SingleDevice
from hybridppo.reporting.callbacks import Callbacks, TrainingRun
from hybridppo.run_directory.checkpoints import Checkpoint
from hybridppo.run_directory.directory import RunDirectory
from hybridppo.runners.assembly import policy_samplers
from hybridppo.runners.several_policies import Policy, SeveralPoliciesRunner, tensors_of
from hybridppo.seeds import seed_of
from hybridppo.settings import Settings, name_of_source
from hybridppo.validation import whole

logger = logging.getLogger(__name__)

Configs = Mapping[str, PPOConfig]
"""By the names of the kinds of agents."""

ALIKE = ("num_envs", "num_steps", "precision", "torch_threads")
"""What all configurations of a training have alike."""
REFUSED = {
    "num_workers": (None, 0),
    "evaluation_episodes": (0,),
    "evaluate_every": (0,),
    "total_episodes": (None,),
    "target_return": (None,),
    "start_from": (None,),
    "track": ("",),
    "distribution": ("local",),
}
"""Options of a run that are for one policy, with the values that ask for nothing."""


@dataclass(frozen=True)
class PoliciesResult:
    """What a training of several policies gives back."""

    agents: dict[str, PPO]
    """The trained agents, by the names of their kinds."""
    metrics: Metrics
    """The last iteration's; those of a policy begin with its name and a slash."""
    run_dir: Path | None
    """Where everything was written, or None."""
    seed: int
    """The seed used, also where none was given."""
    interrupted: bool
    """Whether a signal ended the training early; `resume` goes on."""
    saved: bool
    """Whether the last checkpoint is on the disk."""


def train_policies(
    env: EnvSource,
    configs: Configs,
    run: RunOptions,
    options: EnvironmentOptions,
    placement: PlacementChoice,
    run_dir: str | Path | None,
    reporting: Reporting,
    **others: object,
) -> PoliciesResult:
    """Train an agent for each kind; arguments are those of `train`.

    Raises:
        ConfigurationError: for what cannot be had with several policies, before anything begins.
    """
    for name, value in others.items():
        if value:
            raise _refusal(name)
    for name, asks_for_nothing in REFUSED.items():
        if getattr(run, name) not in asks_for_nothing:
            raise _refusal(name)
    configs = checked(configs)
    options = replace(options, vectorization=_compiled(options))
    resolved = _placement(placement)
    assert run.seed is not None  # `train` sees to that
    with contextlib.ExitStack() as stack:
        interruption = stack.enter_context(Interruption(saves=run_dir is not None))
        environments = _environments(env, configs, options, resolved)
        stack.callback(environments.close)
        settings = {
            name: Settings(
                env_id=name_of_source(env),
                env_is_registered=isinstance(env, str),
                config=config,
                environment=options,
                run=run,
                placement=resolved.settings(),
                observation_space=environments.observation_space,
                action_space=environments.action_space,
                own={},
            )
            for name, config in configs.items()
        }
        agents = {name: agent_of_policy(name, of_policy) for name, of_policy in settings.items()}
        directory = RunDirectory.create(run_dir, _to_json(settings)) if run_dir is not None else None
        try:
            return _run(settings, environments, agents, resolved, interruption, reporting, directory, None)
        except BaseException:
            if directory is not None:
                directory.discard()
            raise


def resume_policies(
    directory: RunDirectory,
    changes: dict[str, Any],
    *,
    env: EnvSource | None,
    reporting: Reporting,
    **others: object,
) -> PoliciesResult:
    """Go on with a run of several policies; arguments are those of `resume`.

    Raises:
        CheckpointError: where no checkpoint is whole, or the environment is not the one that was trained in.
    """
    for name, value in others.items():
        if value:
            raise _refusal(name)
    before = settings_of(directory)
    settings = {name: of_policy.with_options(changes) for name, of_policy in before.items()}
    some = next(iter(settings.values()))
    for name, asks_for_nothing in REFUSED.items():
        if getattr(some.run, name) not in asks_for_nothing:
            raise _refusal(name)
    checkpoint = None if directory.is_untouched else directory.load_checkpoint()
    with contextlib.ExitStack() as stack:
        interruption = stack.enter_context(Interruption())
        resolved = placement_from_settings(some.placement)
        configs = {name: of_policy.config for name, of_policy in settings.items()}
        environments = _environments(some.source(env), configs, some.environment, resolved)
        stack.callback(environments.close)
        spaces = environments.observation_space, environments.action_space
        if spaces != (some.observation_space, some.action_space):
            raise CheckpointError(
                f"the environment is not the one that was trained in: its spaces were {some.observation_space} and "
                f"{some.action_space}, and are {spaces[0]} and {spaces[1]}"
            )
        agents = {name: agent_of_policy(name, of_policy, checkpoint) for name, of_policy in settings.items()}
        directory.update_config({**_to_json(settings), "versions": directory.config.get("versions", {})})
        if checkpoint is None:
            directory.rewind(0, 0)
        else:
            with fitting("this run"):
                loop = checkpoint.state["runner"]
                iteration, number = whole(loop, "iteration"), whole(loop, "number")
            directory.rewind(iteration, number, iteration)
        return _run(settings, environments, agents, resolved, interruption, reporting, directory, checkpoint)


def settings_of(directory: RunDirectory) -> dict[str, Settings]:
    """The settings of each policy of a run.

    Raises:
        RunDirectoryError: where it has not several, or says what cannot be.
    """
    config = directory.config
    policies = config.get("policies")
    if not isinstance(policies, dict) or not policies or not all(isinstance(p, dict) for p in policies.values()):
        raise RunDirectoryError(f"{directory.path} is no run of several policies: hybridppo.load gives its agent")
    found = {}
    for name, of_policy in policies.items():
        alone = {key: value for key, value in config.items() if key != "policies"}
        found[name] = Settings.read(RunDirectory(directory.path, {**alone, "agent": "ppo", "config": of_policy}))
    return found


def checked(configs: Any) -> dict[str, PPOConfig]:
    """Configurations of several policies that can be trained together.

    Raises:
        ConfigurationError: naming what cannot be.
    """
    if not configs:
        raise ConfigurationError("config must have a configuration for each kind of agents, and has none")
    for name, config in configs.items():
        if not isinstance(config, PPOConfig):
            raise ConfigurationError(
                f"config must be one of PPOConfig, DDPGConfig, TD3Config, or have a PPOConfig for each kind of agents; "
                f"config[{name!r}] is {shown(config)}"
            )
        alone = ("recurrent", "episodes_per_rollout", "use_sde")
        what = next((field for field in alone if getattr(config, field)), None)
        if what is not None:
            raise ConfigurationError(f"config[{name!r}]: {what} cannot be had with several policies: leave it out")
    (first, model), *others = configs.items()
    for field in ALIKE:
        for name, config in others:
            if getattr(config, field) != getattr(model, field):
                raise ConfigurationError(
                    f"{field} must be the same for all policies, which are sampled together: it is "
                    f"{getattr(model, field)} of {first!r} and {getattr(config, field)} of {name!r}"
                )
    return dict(configs)


def _refusal(name: str) -> ConfigurationError:
    return ConfigurationError(f"{name} cannot be had with several policies (config is a mapping): leave it out")


def _compiled(options: EnvironmentOptions) -> Any:
    if options.vectorization not in ("auto", "compiled"):
        raise ConfigurationError(
            f"vectorization={options.vectorization!r} cannot be had with several policies, which are for compiled "
            "environments: leave it out"
        )
    return "compiled"


def _placement(choice: PlacementChoice) -> Placement:
    """The placement of each policy; auto is the CPU, for there is nothing yet to measure several policies with."""
    meant = resolve_placement(choice)
    if isinstance(meant, Auto):
        logger.info("several policies are trained on the CPU unless a placement is named: auto measures one policy")
        return SingleDevice("cpu")
    if meant.max_lag > 0:
        raise ConfigurationError(f"{meant} cannot be had with several policies: name a placement without lag")
    return meant


def _environments(
    env: EnvSource, configs: Mapping[str, Any], options: EnvironmentOptions, placement: Placement
) -> CompiledAgents:
    some = next(iter(configs.values()))
    definition = compiled_form(env)
    needs = {name: (config, definition.policies.get(name, 1)) for name, config in configs.items()}
    on_host = placement.learning_device.type == "cpu"
    if not has_launcher(placement.sampling_device):  # which says itself what its rollouts need
        require_memory(needs, definition.observation_space, definition.action_space, learns_on_host=on_host)
    environments = compiled_agents(env, some.num_envs, options)
    require_kinds(environments, configs)
    return environments


def compiled_agents(env: EnvSource, num_envs: int, options: EnvironmentOptions) -> CompiledAgents:
    """Environments with kinds of agents.

    Raises:
        ConfigurationError: where they have one agent.
    """
    environments = make_environments(env, num_envs, options)
    if not isinstance(environments, CompiledAgents):
        environments.close()
        raise ConfigurationError(
            f"several policies are for environments with kinds of agents, made by compiled.environment(policies=...), "
            f"and {name_of_source(env)} has one agent"
        )
    return environments


def require_kinds(environments: CompiledAgents, given: Mapping[str, Any]) -> None:
    """Refuse what is not given for each kind of agents, and close the environments."""
    kinds = environments.definition.policies
    if {*given} != {*kinds}:
        environments.close()
        raise ConfigurationError(
            f"there must be one for each kind of agents of {environments.definition.name}, {', '.join(kinds)}, got "
            f"{', '.join(given)}"
        )


def agent_of_policy(name: str, settings: Settings, checkpoint: Checkpoint | None = None) -> PPO:
    """The agent of a policy, as it began or as it was at a checkpoint."""
    config = settings.config
    assert isinstance(config, PPOConfig)
    spaces = settings.observation_space, settings.action_space
    agent = PPO(*spaces, config, seed=seed_of(settings.seed, f"agent {name}"))
    agent.config = replace(config, torch_threads=config.torch_threads or 1)
    if checkpoint is not None:
        with fitting("the networks that config.json describes"):
            state = checkpoint.state["policies"][name]["agent"]
            agent.load_state(tensors_of(checkpoint.tensors, f"{name}.agent."), state)
    return agent


def _to_json(settings: Mapping[str, Settings]) -> dict[str, Any]:
    """What `config.json` holds: what policies share, and the configuration of each."""
    shared = next(iter(settings.values())).to_json()
    del shared["agent"], shared["config"]
    return {**shared, "policies": {name: of_policy.config.to_json() for name, of_policy in settings.items()}}


def _run(
    settings: Mapping[str, Settings],
    environments: CompiledAgents,
    agents: dict[str, PPO],
    placement: Placement,
    interruption: Interruption,
    reporting: Reporting,
    directory: RunDirectory | None,
    checkpoint: Checkpoint | None,
) -> PoliciesResult:
    some, run = next(iter(agents.values())).config, next(iter(settings.values())).run
    assert run.seed is not None
    kinds = list(environments.definition.policies)
    with contextlib.ExitStack() as stack:
        stack.enter_context(limit_threads(some.torch_threads or 1))
        stack.enter_context(float32_products(some.precision, placement.sampling_device, placement.learning_device))
        if directory is not None:
            stack.callback(directory.close)
        env_seed, first = seed_of(run.seed, "environments"), agents[kinds[0]]
        sampler_of = policy_samplers(environments, first, placement, num_steps=some.num_steps, env_seed=env_seed)
        policies = {}
        for number, name in enumerate(kinds):
            own = placement_from_settings(placement.settings())
            own.prepare(agents[name])
            noise = np.random.default_rng(seed_of(run.seed, f"noise {name}"))
            policies[name] = Policy(agents[name], sampler_of(number, noise), own)
        seen = TrainingRun(agents[kinds[0]], _to_json(settings), directory.path if directory is not None else None)
        callbacks = Callbacks(reporting.callbacks, seen)
        runner = SeveralPoliciesRunner(
            policies,
            num_envs=environments.num_environments,
            total_steps=run.total_steps,
            run_directory=directory,
            checkpoint_seconds=run.checkpoint_seconds,
            keep_checkpoints=run.keep_checkpoints,
            progress=reporting.progress,
            callbacks=callbacks,
            interruption=interruption,
        )
        if checkpoint is not None:
            with fitting("this run"):
                env_seed = seed_of(
                    run.seed, f"environments resumed at iteration {checkpoint.state['runner']['iteration']}"
                )
                reason = runner.load_state(checkpoint.tensors, checkpoint.state, env_seed=env_seed)
            if reason is not None:
                logger.info("everything is as it was but the environments, which start new episodes: %s", reason)
        with callbacks.told():
            metrics = runner.run()
            if directory is not None and not runner.interrupted:
                returns = {f"{name}/episode_return_mean": metrics.get(f"{name}/episode_return_mean") for name in kinds}
                directory.write_result(
                    {
                        "env_id": next(iter(settings.values())).env_id,
                        "seed": run.seed,
                        "env_steps": runner.env_steps,
                        "seconds": runner.seconds,
                        "placement": placement.settings(),
                        **returns,
                    }
                )
    path = directory.path if directory is not None else None
    result = PoliciesResult(agents, metrics, path, run.seed, runner.interrupted, runner.saved)
    if runner.interrupted and reporting.on_interrupt == "raise":
        raise TrainingInterrupted(result)
    return result
