"""The tests that `mutants.py` runs for each source file."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# All but `test_serialization.py`, which trains in every space and takes minutes.
SPACES = " ".join(
    f"hybridppo/spaces/{path.name}"
    for path in sorted((ROOT / "tests/hybridppo/spaces").glob("test_*.py"))
    if path.name != "test_serialization.py"
)
# The tests that should find the mistakes of each room or file, the quickest first; the longest row that fits holds.
TESTS: dict[str, str] = {
    "hybridppo/spaces": f"{SPACES} agents/ppo/test_ppo.py runners/test_evaluation.py "
    "hybridppo/environments/test_envs.py::test_unsupported_action_spaces_are_refused_by_name",
    "hybridppo/rollouts": "hybridppo/rollouts agents/ppo/test_ppo.py runners/samplers",
    "hybridppo/networks/numpy_forms": f"hybridppo/networks {SPACES} hybridppo/test_golden.py",
    "hybridppo/networks/numpy_forms/recurrent.py": "agents/ppo/test_memory.py",
    "hybridppo/rollouts/replay.py": "hybridppo/rollouts/test_replay.py runners/test_off_policy.py",
    "hybridppo/spaces/deterministic.py": "hybridppo/spaces/test_deterministic.py agents/ddpg/test_ddpg.py",
    "agents/ddpg": "agents/ddpg agents/test_every_agent.py",
    "agents/common": "agents/test_schedules.py agents/ppo/test_ppo.py agents/ppo/test_ppo_config.py "
    "agents/test_every_agent.py agents/ddpg/test_ddpg.py agents/ppo runners/test_evaluation.py",
    "agents/common/loop.py": "agents/ppo/test_backends.py agents/ddpg agents/ppo agents/test_every_agent.py",
    "runners/off_policy.py": "runners/test_off_policy.py agents/test_every_agent.py "
    "runners/test_many_agents_everywhere.py::test_agents_with_a_replay_buffer_say_that_they_learn_from_one",
    "agents/ppo": "agents/ppo hybridppo/networks/test_modes.py runners/samplers/test_episode_sampler.py "
    "hybridppo/test_golden.py "
    "hybridppo/training/test_resume.py::test_an_update_that_is_broken_off_leaves_the_agent_as_it_was",
    "agents/ppo/loss.py": "agents/ppo/test_losses.py agents/ppo",
    "agents/ppo/memory.py": "test_faults_of_training.py hybridppo/spaces/test_images.py agents/ppo",
    "hybridppo/rollouts/advantages.py": "hybridppo/rollouts/test_advantages.py agents/ppo/test_pool.py",
    **dict.fromkeys(
        ("runners/samplers/fused.py", "runners/samplers/fused_actor.py"),
        "hybridppo/compiled runners/samplers",
    ),
    "runners/samplers/in_process.py": "runners/samplers agents/ppo/test_memory.py",
    "runners/samplers/device_base.py": "runners/samplers/test_tensor_sampler.py hybridppo/test_tensor_environments.py",
    "agents/ppo/stacked_rows.py": "agents/ppo/test_stacked_rows.py hybridppo/test_frame_stack.py",
    "hybridppo/rollouts/memory.py": "hybridppo/rollouts/test_episode_memory.py agents/ppo/test_memory.py",
    "runners/samplers": "runners/samplers hybridppo/system/test_seeds.py "
    "runners/test_environment_faults.py::test_restart_drops_the_partial_episode_and_counts_it "
    "runners/test_environment_faults.py::test_restart_forgets_what_an_episode_gained_in_rollouts_before "
    "runners/test_environment_faults.py::test_restart_after_an_episode_drops_nothing "
    "runners/test_environment_faults.py::test_restart_with_no_step_left_is_an_error "
    "runners/test_environment_faults.py::test_restart_with_no_step_left_samples_again",
    "runners/samplers/stepping.py": "runners/samplers hybridppo/environments/test_env_state.py "
    "runners/test_environment_faults.py::test_slow_steps_are_no_hang "
    "hybridppo/training/test_resume.py::test_an_environment_that_was_changed_starts_new_episodes "
    "hybridppo/training/test_resume.py::test_many_stops_change_nothing",
    "hybridppo/placements": "hybridppo/placements/test_mirroring.py hybridppo/placements/test_placements.py "
    "runners/test_accounting.py",
    "hybridppo/auto": "hybridppo/auto",
    "hybridppo/compiled": "hybridppo/compiled runners/samplers/test_on_device.py agents/ppo/test_backends.py "
    "agents/ddpg/test_compiled_off_policy_steps.py",
}
FIRST_STEPS = "hybridppo/test_names.py hybridppo/test_errors.py hybridppo/test_commands.py hybridppo/test_first_hour.py"
LOOSE = ("__init__", "__main__", "_lazy", "_version", "errors", "interfaces", "names", "tensors")
IF_NAMED: dict[str, str] = {
    **dict.fromkeys((f"hybridppo/{name}.py" for name in LOOSE), FIRST_STEPS),
    "hybridppo/commands": FIRST_STEPS,
    "hybridppo/distribution": "hybridppo/distribution",
    "hybridppo/environments": "hybridppo/environments",
    "hybridppo/networks": "hybridppo/networks agents/ppo/test_ppo.py hybridppo/test_golden.py",
    "hybridppo/reporting": "hybridppo/reporting",
    "hybridppo/run_directory": "hybridppo/run_directory test_faults_of_files.py hybridppo/training/test_resume.py",
    "hybridppo/runs": "hybridppo/runs hybridppo/training",
    "hybridppo/system": "hybridppo/system",
    "hybridppo/tools": "hybridppo/tools",
    "hybridppo/training": "hybridppo/training",
    "agents": "agents",
    "runners": "runners",
}
"""The tests of the other rooms, which are tried only if `--files` names them."""
NOT_BY_DEFAULT = (
    "hybridppo/auto",
    "agents/common/recorded_step.py",
    "agents/ppo/config.py",
    "agents/ddpg/config.py",
)


def selected_tests(path: str) -> tuple[str, ...]:
    """The tests that should find a mistake in a file."""
    rows = IF_NAMED | TESTS
    room = max((room for room in rows if path.startswith(room)), key=len, default=None)
    if room is None:
        raise SystemExit(f"{path}: TESTS in scripts/mutant_tests.py has no row for {Path(path).parent}/: add one")
    return tuple(f"tests/{test}" for test in rows[room].split())
