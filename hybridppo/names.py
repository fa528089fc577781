"""Other libraries' names of settings, so that an error can suggest ours.

From stable-baselines3, CleanRL, rsl_rl and RLlib. `docs/coming_from.md` has more on each.
"""

import difflib
import functools
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any, TypeVar

_FIELDS = {
    "num_envs": "n_envs num_envs_per_env_runner num_envs_per_worker",
    "num_steps": "n_steps num_steps_per_env rollout_fragment_length train_batch_size train_batch_size_per_learner",
    "num_epochs": "n_epochs update_epochs num_learning_epochs num_sgd_iter",
    "num_minibatches": "batch_size minibatch_size sgd_minibatch_size num_mini_batches",
    "learning_rate": "lr",
    "critic_learning_rate": "qf_learning_rate critic_lr",
    "anneal_learning_rate": "anneal_lr",
    "gae_lambda": "lam lambda lambda_",
    "clip_range": "clip_coef clip_param",
    "clip_range_vf": "clip_vloss vf_clip_param use_clipped_value_loss",
    "entropy_coef": "ent_coef entropy_coeff",
    "value_coef": "vf_coef vf_loss_coeff value_loss_coef",
    "max_grad_norm": "grad_clip",
    "target_kl": "kl_target",
    "normalize_advantage": "norm_adv normalize_advantage_per_mini_batch",
    "normalize_observations": "norm_obs empirical_normalization",
    "normalize_rewards": "norm_reward",
    "hidden_sizes": "net_arch policy_kwargs fcnet_hiddens actor_hidden_dims critic_hidden_dims",
    "activation": "activation_fn fcnet_activation",
    "orthogonal_init": "ortho_init",
    "log_std_init": "init_noise_std init_std",
    "recurrent": "use_lstm rnn_type",
    "recurrent_size": "lstm_hidden_size lstm_cell_size rnn_hidden_dim rnn_hidden_size",
    "sequence_length": "max_seq_len",
    "train_frequency": "train_freq",
    "n_steps": "n_step",
    "exploration_std": "exploration_noise action_noise",
    "policy_delay": "policy_frequency",
    "target_noise_std": "policy_noise target_policy_noise",
    "target_noise_clip": "noise_clip",
}
"""Other libraries' names for the fields of our configurations."""
_ARGUMENTS = {
    "total_steps": "total_timesteps num_timesteps n_timesteps timesteps steps max_iterations num_learning_iterations",
    "num_workers": "num_env_runners num_rollout_workers",
    "frame_stack": "n_stack",
    "env_kwargs": "env_config",
    "evaluate_every": "eval_freq evaluation_interval",
    "evaluate_episodes": "n_eval_episodes evaluation_duration",
    "track": "tensorboard_log",
    "checkpoint_seconds": "save_freq save_interval save_every checkpoint_every checkpoint_freq",
    "run_dir": "log_dir exp_name save_model",
    "placement": "device cuda",
    "progress": "progress_bar verbose",
    "schedules": "lr_schedule",
    "seed": "random_seed",
    "callbacks": "callback",
    "distributed": "distribution",
}
"""Other libraries' names for the arguments of `train`."""

ELSEWHERE = {
    "env": "the environment has no flag, and comes first: train ENV_ID",
    "env_id": "the environment has no flag, and comes first: train ENV_ID",
    "capture_video": "a finished run is filmed by the command play",
    "resume": "a run is continued by the command resume",
    "wandb_project_name": "the variable WANDB_PROJECT names the project of --track wandb",
}
"""Flags of other libraries' training commands that have no flag here, and what to do instead."""

COMMANDS_ELSEWHERE = {"video": "play", "record": "play", "enjoy": "play", "eval": "evaluate", "test": "evaluate"}
"""Commands of other libraries, or expected, and ours."""

OF_CONFIGS = {name: ours for ours, names in _FIELDS.items() for name in names.split()}
"""The field for each of these names."""
OF_TRAIN = {name: ours for ours, names in _ARGUMENTS.items() for name in names.split()}
"""The argument of `train` for each of these names."""

Class = TypeVar("Class", bound=type)


def meant_by(name: str, ours: Iterable[str]) -> str | None:
    """Our name for another library's name or for a misspelled name; None if unknown."""
    ours = list(ours)
    known = OF_CONFIGS.get(name) or OF_TRAIN.get(name)
    if known is not None:
        return known if known in ours else None
    return next(iter(difflib.get_close_matches(name, ours, 1)), None)


def names_what_was_meant(kind: Class) -> Class:
    """Let the errors of a configuration's class suggest the field that was meant."""
    init: Callable[..., None] = kind.__init__  # type: ignore[misc]

    @functools.wraps(init)
    def checked(self: Any, *arguments: Any, **settings: Any) -> None:
        known = {each.name for each in fields(self)}
        for name in settings:
            if name not in known:
                raise TypeError(
                    f"{type(self).__name__}() got an unexpected keyword argument {name!r}{_hint(name, known)}"
                )
        init(self, *arguments, **settings)

    kind.__init__ = checked  # type: ignore[misc]
    return kind


def _hint(name: str, known: Iterable[str]) -> str:
    of_train = OF_TRAIN.get(name, name)
    if of_train in OF_TRAIN.values():
        return f": did you mean hybridppo.train({of_train}=...)?"
    near = meant_by(name, known)
    return f": did you mean {near}?" if near else ""
