"""Training with a policy for each kind of agents of a compiled environment: `train` and `resume` end here then.

hybridppo.train(compiled.tag(), config={"tagger": PPOConfig(), "runner": PPOConfig()}, total_steps=1_000_000)
agents = hybridppo.load_policies("runs/tag")
evaluations = hybridppo.evaluate_policies(agents, compiled.tag(), episodes=20)
"""

import contextlib
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridppo.agents.ppo.config import PPOConfig
from hybridppo.agents.ppo.memory import require_memory
from hybridppo.agents.ppo.ppo import PPO
from hybridppo.auto.auto import Auto
from hybridppo.auto.named import PlacementChoice, resolve_placement
from hybridppo.environments.checks import require_spaces_of
from hybridppo.environments.compiled_agents import CompiledAgents
from hybridppo.environments.making import compiled_definition, make_environments
from hybridppo.environments.on_device import has_launcher
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.errors import CheckpointError, ConfigurationError, RunDirectoryError, TrainingInterrupted, shown
from hybridppo.interfaces import Metrics
from hybridppo.networks.precision import float32_products
from hybridppo.placements.base import Placement
from hybridppo.placements.by_name import placement_from_settings
from hybridppo.placements.single_device import SingleDevice
from hybridppo.reporting.callbacks import Callbacks, TrainingRun
from hybridppo.run_directory.checkpoints import Checkpoint
from hybridppo.run_directory.directory import RunDirectory
from hybridppo.runners.assembly import policy_samplers
from hybridppo.runners.several_policies import Policy, SeveralPoliciesRunner, tensors_of
from hybridppo.runs.loading import fitting
from hybridppo.runs.observers import Reporting
from hybridppo.runs.options import RunOptions
from hybridppo.runs.settings import Settings, name_of_source
from hybridppo.system.interruption import Interruption
from hybridppo.system.seeds import seed_of
from hybridppo.system.threads import limit_threads
from hybridppo.system.validation import whole

if TYPE_CHECKING:
    from hybridppo.compiled.definition import Definition

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


@dataclass(frozen=True)
class _Job:
    """A training that is about to begin, or to go on from a checkpoint."""

    settings: dict[str, Settings]
    environments: CompiledAgents
    agents: dict[str, PPO]
    placement: Placement
    interruption: Interruption
    reporting: Reporting
    directory: RunDirectory | None
    checkpoint: Checkpoint | None = None

    @property
    def shared(self) -> Settings:
        """Those of any policy, for what all of them share."""
        return next(iter(self.settings.values()))


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
    _refuse_what_is_for_one(run, others)
    configs = checked(configs)
    options = replace(options, vectorization=_compiled(options))
    resolved = _placement(placement)
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
            return _run(_Job(settings, environments, agents, resolved, interruption, reporting, directory))
        except BaseException:
            if directory is not None:
                directory.discard()
            raise
        finally:
            if directory is not None:
                directory.close()


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
    settings = {name: of_policy.with_options(changes) for name, of_policy in settings_of(directory).items()}
    some = next(iter(settings.values()))
    _refuse_what_is_for_one(some.run, others)
    checkpoint = None if directory.is_untouched else directory.load_checkpoint()
    with contextlib.ExitStack() as stack:
        interruption = stack.enter_context(Interruption())
        resolved = placement_from_settings(some.placement)
        configs = {name: of_policy.config for name, of_policy in settings.items()}
        environments = _environments(some.source(env), configs, some.environment, resolved)
        stack.callback(environments.close)
        require_spaces_of(some, environments, error=CheckpointError)
        agents = {name: agent_of_policy(name, of_policy, checkpoint) for name, of_policy in settings.items()}
        directory.update_config({**_to_json(settings), "versions": directory.config.get("versions", {})})
        if checkpoint is None:
            directory.rewind(0, 0)
        else:
            with fitting("this run"):
                loop = checkpoint.state["runner"]
                iteration, number = whole(loop, "iteration"), whole(loop, "number")
            directory.rewind(iteration, number, iteration)
        return _run(_Job(settings, environments, agents, resolved, interruption, reporting, directory, checkpoint))


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


def _refuse_what_is_for_one(run: RunOptions, others: Mapping[str, object]) -> None:
    asked_for = [name for name, value in others.items() if value]
    asked_for += [name for name, asks_for_nothing in REFUSED.items() if getattr(run, name) not in asks_for_nothing]
    if asked_for:
        raise ConfigurationError(
            f"{asked_for[0]} cannot be had with several policies (config is a mapping): leave it out"
        )


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
    definition = definition_with_kinds(env, options, configs)
    some = next(iter(configs.values()))
    if not has_launcher(placement.sampling_device):  # which says itself what its rollouts need
        needs = {name: (config, definition.policies[name]) for name, config in configs.items()}
        on_host = placement.learning_device.type == "cpu"
        require_memory(needs, definition.observation_space, definition.action_space, learns_on_host=on_host)
    return compiled_agents(env, some.num_envs, options)


def definition_with_kinds(env: EnvSource, options: EnvironmentOptions, given: Collection[str]) -> "Definition":
    """The definition of environments with kinds of agents, for each of which something was given; nothing is compiled.

    Raises:
        ConfigurationError: where they have one agent, or kinds of other names.
        EnvError: where they cannot be compiled at all.
    """
    definition = compiled_definition(env, options)
    kinds = definition.policies
    if not kinds:
        raise ConfigurationError(
            f"several policies are for environments with kinds of agents, made by compiled.environment(policies=...), "
            f"and {name_of_source(env)} has one agent"
        )
    if {*given} != {*kinds}:
        raise ConfigurationError(
            f"there must be one for each kind of agents of {definition.name}, {', '.join(kinds)}, got "
            f"{', '.join(given)}"
        )
    return definition


def compiled_agents(env: EnvSource, num_envs: int, options: EnvironmentOptions) -> CompiledAgents:
    """The environments of such a definition."""
    environments = make_environments(env, num_envs, options)
    assert isinstance(environments, CompiledAgents)  # as its definition has kinds
    return environments


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


def _run(job: _Job) -> PoliciesResult:
    """Train to the end that the options name, from the start or from a checkpoint; write the result."""
    agents, run, placement, directory = job.agents, job.shared.run, job.placement, job.directory
    first = agents[next(iter(job.environments.definition.policies))]
    path = directory.path if directory is not None else None
    with contextlib.ExitStack() as stack:
        stack.enter_context(limit_threads(first.config.torch_threads or 1))
        products = float32_products(first.config.precision, placement.sampling_device, placement.learning_device)
        stack.enter_context(products)
        callbacks = Callbacks(job.reporting.callbacks, TrainingRun(first, _to_json(job.settings), path))
        runner = SeveralPoliciesRunner(
            _policies(job),
            num_envs=job.environments.num_environments,
            total_steps=run.total_steps,
            run_directory=directory,
            checkpoint_seconds=run.checkpoint_seconds,
            keep_checkpoints=run.keep_checkpoints,
            progress=job.reporting.progress,
            callbacks=callbacks,
            interruption=job.interruption,
        )
        if job.checkpoint is not None:
            _go_on(runner, job.checkpoint, job.shared.seed)
        with callbacks.told():
            metrics = runner.run()
            if directory is not None and not runner.interrupted:
                directory.write_result(_result(job, runner, metrics))
    result = PoliciesResult(agents, metrics, path, job.shared.seed, runner.interrupted, runner.saved)
    if runner.interrupted and job.reporting.on_interrupt == "raise":
        raise TrainingInterrupted(result)
    return result


def _policies(job: _Job) -> dict[str, Policy]:
    """Each with a sampler, a placement and noise of its own, in the order of the kinds of agents."""
    kinds = list(job.environments.definition.policies)
    first = job.agents[kinds[0]]
    env_seed, num_steps = seed_of(job.shared.seed, "environments"), first.config.num_steps
    sampler_of = policy_samplers(job.environments, first, job.placement, num_steps=num_steps, env_seed=env_seed)
    policies = {}
    for number, name in enumerate(kinds):
        own = placement_from_settings(job.placement.settings())
        own.prepare(job.agents[name])
        noise = np.random.default_rng(seed_of(job.shared.seed, f"noise {name}"))
        policies[name] = Policy(job.agents[name], sampler_of(number, noise), own)
    return policies


def _go_on(runner: SeveralPoliciesRunner, checkpoint: Checkpoint, seed: int) -> None:
    """Bring a fresh runner to where the checkpoint was written, and say what cannot be as it was."""
    with fitting("this run"):
        env_seed = seed_of(seed, f"environments resumed at iteration {checkpoint.state['runner']['iteration']}")
        reason = runner.load_state(checkpoint.tensors, checkpoint.state, env_seed=env_seed)
    if reason is not None:
        logger.info("everything is as it was but the environments, which start new episodes: %s", reason)


def _result(job: _Job, runner: SeveralPoliciesRunner, metrics: Metrics) -> dict[str, Any]:
    returns = {name: metrics.get(name) for name in (f"{kind}/episode_return_mean" for kind in runner.policies)}
    return {
        "env_id": job.shared.env_id,
        "seed": job.shared.seed,
        "env_steps": runner.env_steps,
        "seconds": runner.seconds,
        "placement": job.placement.settings(),
        **returns,
    }
