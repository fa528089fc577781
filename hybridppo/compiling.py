"""`compiled=True`: compiles environments and updates, as far as they can be compiled."""

import logging
from dataclasses import replace
from typing import Any

from hybridppo.agents.policies import PoliciesConfig
from hybridppo.agents.ppo.config import PPOConfig
from hybridppo.agents.registry import AnyConfig, replaced
from hybridppo.compiled.modules import has_numba
from hybridppo.environments.making import compiled_definition
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.errors import ConfigurationError, EnvError, pip_install

logger = logging.getLogger(__name__)


def compiled_options(
    env: EnvSource, config: AnyConfig, options: EnvironmentOptions, *, has_own_parts: bool = False
) -> tuple[AnyConfig, EnvironmentOptions]:
    """The settings of an agent and of environments, with everything compiled that has a compiled form.

    Args:
        env: the environment to train in.
        config: the agent's settings. With several policies, the updates of all are compiled, or of none.
        options: how environments are made. An explicit `vectorization` stays as it is.
        has_own_parts: whether the loss, the networks or the agent are not made from `config` by the library.

    Raises:
        ConfigurationError: if Numba is not installed, or neither environments nor updates can be compiled.
    """
    if not has_numba():
        raise ConfigurationError(
            f"compiled=True needs Numba, which is not installed: {pip_install('compiled')}, or leave it out"
        )
    options, why_no_environments = _compiled_environments(env, options)
    each = list(config.policies.values()) if isinstance(config, PoliciesConfig) else [config]
    why_no_updates = next((why for of_policy in each if (why := _why_no_updates(of_policy, has_own_parts))), None)
    if why_no_environments and why_no_updates:
        raise ConfigurationError(
            f"compiled=True: neither environments nor updates can be compiled, so leave it out: {why_no_environments}; "
            f"{why_no_updates}"
        )
    for what, why in (("environments", why_no_environments), ("updates", why_no_updates)):
        if why:
            logger.info("compiled=True: %s are not compiled: %s", what, why)
    return config if why_no_updates else replaced(config, compiled_updates=True), options


def compiled_if_possible(env: EnvSource, options: EnvironmentOptions) -> EnvironmentOptions:
    """The options for environments that are compiled, if they have a compiled form and Numba is installed."""
    return _compiled_environments(env, options)[0] if has_numba() else options


def _compiled_environments(env: EnvSource, options: EnvironmentOptions) -> tuple[EnvironmentOptions, str | None]:
    """The options for compiled environments; or the same options, and the reason."""
    if options.vectorization != "auto":
        return options, None if options.vectorization == "compiled" else "vectorization='sync' was asked for"
    if options.env_kwargs:
        return options, "env_kwargs were given, which a compiled form does not take"
    try:
        compiled = replace(options, vectorization="compiled")
        compiled_definition(env, compiled)
    except (EnvError, ConfigurationError) as error:
        return options, str(error)
    return compiled, None


def _why_no_updates(config: Any, has_own_parts: bool) -> str | None:
    """Why updates with these settings cannot be compiled; None if the settings allow it."""
    if has_own_parts:
        return "a loss, networks or an agent of one's own are not compiled"
    if not isinstance(config, PPOConfig):
        return "only PPO has compiled updates"
    if not config.fast_updates:
        return "fast_updates=False asks for autograd"
    if config.recurrent is not None:
        return f"recurrent={config.recurrent!r} learns by autograd"
    return None
