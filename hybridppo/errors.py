"""The library's errors. A message names the fault, the value, and the remedy, such as a name that was meant."""

import difflib
import math
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple


class HybridPPOError(Exception):
    """Base class of the library's errors. The command line exits with 1, or 2 for a `ConfigurationError`."""


class ConfigurationError(HybridPPOError, ValueError):
    """An invalid setting: names the field and the rule."""


class DeviceError(HybridPPOError, RuntimeError):
    """A requested device is missing, or a copy between devices failed."""


class EnvError(HybridPPOError, RuntimeError):
    """An environment failed, cannot be made, or has unsupported spaces or an unsupported autoreset mode."""


class EnvStateError(EnvError):
    """The state of an environment cannot be saved or restored."""


class TrainingError(HybridPPOError, ArithmeticError):
    """A loss, a gradient or a parameter is not finite: the agent cannot learn any more."""


class DistributedError(HybridPPOError, RuntimeError):
    """One of several processes that train together is lost."""


class LearnerLostError(DistributedError):
    """One of several learners has died or does not answer."""


class OutOfMemoryError(HybridPPOError, MemoryError):
    """A device or the machine lacks the memory that the configuration needs."""


class CheckpointError(HybridPPOError, RuntimeError):
    """A checkpoint is missing or damaged, or does not fit."""


class RunDirectoryError(HybridPPOError, RuntimeError):
    """A run directory exists already, or a folder is not a run directory."""


class CallbackError(HybridPPOError, RuntimeError):
    """A callback failed; the message names it, and its error is the cause."""


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C or another signal ended a training, which was saved if it has a run directory.

    `train` and `resume` raise it after saving and closing, so that Ctrl-C also ends a loop around them.
    """

    def __init__(self, result: Any) -> None:
        where = f"go on with hybridppo.resume({str(result.run_dir)!r})" if result.saved else "nothing was saved of it"
        super().__init__(f"the training was interrupted: {where}; the result so far is this exception's `result`")
        self.result = result
        """The `TrainResult` that `train(..., on_interrupt="return")` would have returned."""


def failures() -> tuple[type[BaseException], ...]:
    """The errors of failing user code, for an `except` clause: all but Ctrl-C, which passes.

    `sys.exit()`, `asyncio.CancelledError` or an own `BaseException` must not end a training without a message.
    """
    return () if isinstance(sys.exc_info()[1], KeyboardInterrupt) else (BaseException,)


def message_of(error: BaseException) -> str:
    """The message of an error, whose `__str__` may fail."""
    try:
        return str(error)
    except failures() as own:
        return f"(no message: its __str__ raises {type(own).__name__})"


def shown_error(error: BaseException) -> str:
    """The type and the message of an error."""
    return f"{type(error).__name__}: {message_of(error)}"


class BadValueError(Exception):
    """An environment returned an invalid value.

    The caller of the environment turns it into an `EnvError` that names the environment and the step.
    """


def add_advice(error: BaseException, advice: str) -> None:
    """Add a remedy to an error: to the message of the library's errors, as a note to others."""
    if isinstance(error, HybridPPOError):
        error.args = (f"{error}; {advice}",)
    else:
        error.__notes__ = [*getattr(error, "__notes__", ()), advice]


def shown(value: Any, limit: int = 200) -> str:
    """A value as text for a message, cut if it is long; of an array with several lines, its shape."""
    try:
        text = repr(value)
    except ValueError:  # an int with more digits than Python prints
        return "a number of thousands of digits"
    except failures() as error:
        return f"{type(value).__name__} (its __repr__ raises {type(error).__name__})"
    if "\n" in text and hasattr(value, "shape"):
        return f"{type(value).__name__} of shape {list(value.shape)}"
    text = "; ".join(text.splitlines())
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def shown_name(part: object) -> str:
    """The name of a function or class, also if `functools.partial` binds its arguments; of an object, its class's."""
    while isinstance(part, partial):
        part = part.func
    return str(getattr(part, "__qualname__", type(part).__name__))


def command(*words: object) -> str:
    """A command for this system's shell; words are quoted if necessary, such as a path with spaces."""
    texts = [str(word) for word in words]
    return subprocess.list2cmdline(texts) if os.name == "nt" else shlex.join(texts)


def pip_install(extra: str) -> str:
    """The command that installs an extra; hybridppo is installed from a clone, since no index has it."""
    return f"{command('pip', 'install', f'.[{extra}]')} in your clone of hybridppo"


def is_installed(package: str) -> bool:
    """Whether Python finds a package, and not only a folder of that name; imports nothing."""
    spec = find_spec(package)
    return spec is not None and spec.origin is not None


def meant_by(name: str, ours: Iterable[str]) -> str | None:
    """The name that is most like another one; None if none is like it."""
    return next(iter(difflib.get_close_matches(name, list(ours), 1)), None)


class Meant(NamedTuple):
    """A name of the library that was probably meant by another one."""

    name: str
    value: Any = None
    """The value that means the same; None if it is not known."""
    why: str = ""
    """Why it is another value."""


_OF_ONE_MEANING = {
    "env_id": "env env_name gym_id task",
    "total_steps": "timesteps total_timesteps n_timesteps num_timesteps max_timesteps total_env_steps",
    "num_envs": "n_envs num_env nenvs num_environments",
    "num_steps": "n_steps nsteps num_steps_per_env rollout_length rollout_steps rollout_fragment_length horizon",
    "num_epochs": "n_epochs nepochs update_epochs num_sgd_iter num_learning_epochs noptepochs ppo_epochs",
    "num_minibatches": "num_mini_batches n_minibatches nminibatches",
    "minibatch_size": "batch_size mini_batch_size sgd_minibatch_size",
    "learning_rate": "lr pi_lr actor_lr actor_learning_rate",
    "critic_learning_rate": "critic_lr vf_lr value_lr",
    "anneal_learning_rate": "anneal_lr",
    "gamma": "discount discount_factor",
    "gae_lambda": "lam lambda_ gae_lam",
    "clip_range": "clip_coef clip_param clip_ratio cliprange clip_eps eps_clip",
    "entropy_coef": "ent_coef entropy_coeff ent_coeff entropy_loss_coef",
    "max_grad_norm": "grad_clip",
    "normalize_advantage": "norm_adv normalize_advantages",
    "normalize_observations": "norm_obs obs_normalization normalize_obs",
    "normalize_rewards": "norm_reward norm_rewards normalize_reward",
    "hidden_sizes": "net_arch hidden_dims hiddens actor_hidden_dims fcnet_hiddens",
    "critic_hidden_sizes": "critic_hidden_dims",
    "episodes_per_evaluation": "evaluate_episodes n_eval_episodes",
    "num_workers": "num_env_runners n_workers num_processes",
    "progress": "progress_bar",
    "run_dir": "log_dir logdir save_path",
    "train_frequency": "train_freq",
    "exploration_std": "act_noise exploration_noise",
    "target_noise_std": "target_policy_noise",
    "target_noise_clip": "noise_clip",
}
"""Names of other libraries, or of older versions, for the same thing, by our names."""
_HALF = "the value loss is half the squared error here, as in CleanRL, whose value is the same"
_ROLLOUTS = "of {num_envs} x {num_steps} steps"
_CONVERTED: dict[str, tuple[str, Callable[[float, Mapping[str, int]], Any], str]] = {
    **dict.fromkeys(
        ("vf_coef", "vf_loss_coeff", "value_loss_coef", "vf_loss_coef"),
        ("value_coef", lambda x, _: 2 * float(x), _HALF),
    ),
    **dict.fromkeys(
        ("init_std", "init_noise_std"), ("log_std_init", lambda x, _: round(math.log(x), 4), "the logarithm")
    ),
    **dict.fromkeys(
        ("train_batch_size", "train_batch_size_per_learner", "steps_per_epoch"),
        ("num_steps", lambda x, sizes: round(x / sizes["num_envs"]), "of each of {num_envs} environments"),
    ),
    **dict.fromkeys(
        ("max_iterations", "num_iterations", "num_learning_iterations", "num_updates"),
        ("total_steps", lambda x, sizes: round(x * sizes["num_envs"] * sizes["num_steps"]), f"iterations {_ROLLOUTS}"),
    ),
    "save_interval": (
        "checkpoint_every",
        lambda x, sizes: round(x * sizes["num_envs"] * sizes["num_steps"]),
        f"iterations {_ROLLOUTS}",
    ),
    "save_freq": (
        "checkpoint_every",
        lambda x, sizes: round(x * sizes["num_envs"]),
        "steps of {num_envs} environments",
    ),
    "eval_freq": ("evaluate_every", lambda x, sizes: round(x * sizes["num_envs"]), "steps of {num_envs} environments"),
    "polyak": ("tau", lambda x, _: round(1 - x, 10), "1 - polyak"),
    "tensorboard_log": ("track", lambda x, _: "tensorboard", "it writes into run_dir"),
}
"""Names of other libraries for the same thing in another unit: our name, the conversion, and why."""


def hint_of(found: Meant | None, holders: Mapping[str, str] = {}) -> str:
    """The end of a message: what was meant, as an argument in Python; empty if nothing was found.

    Args:
        found: what was meant.
        holders: by name, what holds the argument, as `config=PPOConfig({})`.
    """
    if found is None:
        return ""
    holder = holders.get(found.name, "{}")
    value = (
        "" if found.value is None and holder == "{}" else "=..." if found.value is None else f"={shown(found.value)}"
    )
    return f": did you mean {holder.format(found.name + value)}?" + (f" ({found.why})" if found.why else "")


def meant(name: str, value: Any, ours: Iterable[str], sizes: Mapping[str, int]) -> Meant | None:
    """What an unknown name and its value probably mean; None if nothing is like it.

    Args:
        name: the unknown name.
        value: its value.
        ours: the names that there are.
        sizes: `num_envs` and `num_steps`, with which a value in another unit is converted.
    """
    ours = [*ours]
    same = next((own for own, theirs in _OF_ONE_MEANING.items() if name in theirs.split()), None)
    if same is not None:
        return Meant(same, value) if same in ours else None
    if name in _CONVERTED:
        own, convert, why = _CONVERTED[name]
        try:
            return Meant(own, convert(value, sizes), why.format(**sizes)) if own in ours else None
        except (TypeError, ValueError, KeyError):  # a schedule, text; an agent without rollouts
            return Meant(own)
    near = meant_by(name, ours)
    return None if near is None else Meant(near)
