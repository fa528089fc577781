"""Names that other libraries have for settings, and ours: so that an error says which one was meant.

From stable-baselines3, CleanRL, rsl_rl and RLlib. `docs/coming_from.md` has more on each.
"""

import difflib
import functools
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any, TypeVar

OF_CONFIGS = {
    "n_envs": "num_envs",
    "num_envs_per_env_runner": "num_envs",
    "num_envs_per_worker": "num_envs",
    "n_steps": "num_steps",
    "num_steps_per_env": "num_steps",
    "rollout_fragment_length": "num_steps",
    "train_batch_size": "num_steps",
    "train_batch_size_per_learner": "num_steps",
    "n_epochs": "num_epochs",
    "update_epochs": "num_epochs",
    "num_learning_epochs": "num_epochs",
    "num_sgd_iter": "num_epochs",
    "batch_size": "num_minibatches",
    "minibatch_size": "num_minibatches",
    "sgd_minibatch_size": "num_minibatches",
    "num_mini_batches": "num_minibatches",
    "lr": "learning_rate",
    "qf_learning_rate": "critic_learning_rate",
    "critic_lr": "critic_learning_rate",
    "anneal_lr": "anneal_learning_rate",
    "lam": "gae_lambda",
    "lambda": "gae_lambda",
    "lambda_": "gae_lambda",
    "clip_coef": "clip_range",
    "clip_param": "clip_range",
    "clip_vloss": "clip_range_vf",
    "vf_clip_param": "clip_range_vf",
    "use_clipped_value_loss": "clip_range_vf",
    "ent_coef": "entropy_coef",
    "entropy_coeff": "entropy_coef",
    "vf_coef": "value_coef",
    "vf_loss_coeff": "value_coef",
    "value_loss_coef": "value_coef",
    "grad_clip": "max_grad_norm",
    "kl_target": "target_kl",
    "norm_adv": "normalize_advantage",
    "normalize_advantage_per_mini_batch": "normalize_advantage",
    "norm_obs": "normalize_observations",
    "empirical_normalization": "normalize_observations",
    "norm_reward": "normalize_rewards",
    "net_arch": "hidden_sizes",
    "fcnet_hiddens": "hidden_sizes",
    "actor_hidden_dims": "hidden_sizes",
    "critic_hidden_dims": "hidden_sizes",
    "activation_fn": "activation",
    "fcnet_activation": "activation",
    "ortho_init": "orthogonal_init",
    "init_noise_std": "log_std_init",
    "use_lstm": "recurrent",
    "rnn_type": "recurrent",
    "lstm_hidden_size": "recurrent_size",
    "lstm_cell_size": "recurrent_size",
    "rnn_hidden_dim": "recurrent_size",
    "rnn_hidden_size": "recurrent_size",
    "max_seq_len": "sequence_length",
    "train_freq": "train_frequency",
    "n_step": "n_steps",
    "exploration_noise": "exploration_std",
    "policy_frequency": "policy_delay",
    "policy_noise": "target_noise_std",
    "target_policy_noise": "target_noise_std",
    "noise_clip": "target_noise_clip",
}
"""Fields of configurations, by the names that others have for them."""
OF_TRAIN = {
    "total_timesteps": "total_steps",
    "num_timesteps": "total_steps",
    "n_timesteps": "total_steps",
    "max_iterations": "total_steps",
    "num_env_runners": "num_workers",
    "num_rollout_workers": "num_workers",
    "n_stack": "frame_stack",
    "env_config": "env_kwargs",
    "eval_freq": "evaluate_every",
    "evaluation_interval": "evaluate_every",
    "n_eval_episodes": "evaluate_episodes",
    "evaluation_duration": "evaluate_episodes",
    "tensorboard_log": "track",
    "save_freq": "checkpoint_seconds",
    "save_interval": "checkpoint_seconds",
    "log_dir": "run_dir",
    "device": "placement",
    "cuda": "placement",
    "progress_bar": "progress",
    "callback": "callbacks",
}
"""Arguments of `train`, likewise."""

Class = TypeVar("Class", bound=type)


def meant_by(name: str, ours: Iterable[str]) -> str | None:
    """Which of our names somebody meant who wrote another: another library's, or one that is spelled nearly so."""
    ours = list(ours)
    known = OF_CONFIGS.get(name) or OF_TRAIN.get(name)
    if known is not None:
        return known if known in ours else None
    return next(iter(difflib.get_close_matches(name, ours, 1)), None)


def names_what_was_meant(kind: Class) -> Class:
    """Let a configuration's class say which field was meant by a name that is none."""
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
