"""Compiled Tag beside the same game in vectorized NumPy, and the promises of its description."""

from typing import Any

import numpy as np
import pytest
from numpy_tag import NumpyTag
from selection import only_by_default
from tagging import tag, tag_on_grid

from hybridppo import ConfigurationError
from hybridppo.compiled.rehearsal import phases_that_race
from hybridppo.environments.making import make_environments

pytest.importorskip("numba")
pytestmark = [pytest.mark.extras, pytest.mark.usefixtures("without_rollouts")]

PLANE: dict[str, Any] = {"taggers": 3, "runners": 9, "tagging_distance": 0.08, "episode_length": 60}
GRID: dict[str, Any] = {"taggers": 2, "runners": 3, "episode_length": 50}
FORMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "nearest": (tag, {**PLANE, "nearest": 4}),
    "egocentric": (tag, {**PLANE, "nearest": 4, "egocentric": True}),
    "all": (tag, {**PLANE, "nearest": 0, "exits": False}),
    "grid": (tag_on_grid, {**GRID, "side": 6}),
}
FIELDS = ("x", "y", "speed", "direction", "x_speed", "y_speed", "heading_x", "heading_y")


def put(reference: NumpyTag, environments: Any, which: Any) -> None:
    """Give the drawn initial positions to the reference."""
    for name in FIELDS:
        getattr(reference, name)[which] = environments.states[name][which]
    reference.in_game[which] = environments.states["in_game"][which] != 0


@pytest.mark.parametrize("form", only_by_default(("nearest",), FORMS, pytest.mark.slow))
def test_it_is_the_game_that_numpy_plays(form: str) -> None:
    make, options = FORMS[form]
    num_envs = 40
    environments: Any = make_environments(make(**options), num_envs, vectorization="compiled")
    changes = {"on_grid": options["side"], "nearest": 0, "tagging_distance": 1.0} if form == "grid" else {}
    reference = NumpyTag(num_envs, **{**{k: v for k, v in options.items() if k != "side"}, **changes})
    first = environments.reset(7)
    put(reference, environments, slice(None))
    reference.observe()
    num_agents = environments.num_agents
    shape = num_envs, num_agents
    np.testing.assert_allclose(first.reshape(*shape, -1), reference.observations, atol=1e-6)
    generator = np.random.default_rng(3)
    nvec = [5] if form == "grid" else [21, 21]
    num_ends = num_tags = 0
    for _ in range(300):
        actions = generator.integers(0, nvec, (*shape, len(nvec)))
        observations, rewards, terminated, truncated, _, _ = environments.step(actions.reshape(-1, len(nvec)))
        _, expected, ended, was_there = reference.step(actions[..., 0] if form == "grid" else actions)
        np.testing.assert_array_equal(~environments.absent.reshape(shape), was_there)
        np.testing.assert_array_equal(terminated.reshape(shape), ended | ~was_there)
        np.testing.assert_array_equal(rewards.reshape(shape), expected)
        has_begun = environments.lengths == 0
        np.testing.assert_array_equal(has_begun, reference.time == 0)
        put(reference, environments, has_begun)
        reference.observe()
        np.testing.assert_allclose(observations.reshape(*shape, -1), reference.observations, atol=1e-6)
        # As one, for the next step to begin from; a rounding must not grow to a tag more or less.
        put(reference, environments, slice(None))
        assert not truncated.any()
        num_ends, num_tags = (
            num_ends + int(has_begun.sum()),
            num_tags + int((expected > 0)[:, : options["taggers"]].sum()),
        )
    assert num_ends > 100
    assert num_tags > 100


def test_others_are_seen_from_ones_own_heading() -> None:
    environments: Any = make_environments(
        tag(taggers=1, runners=1, egocentric=True, unit=0.2), 1, vectorization="compiled"
    )
    environments.reset(0)
    # The tagger looks up; the runner is above it and to its left, and looks to the left.
    placed = {"x": (0.5, 0.4), "y": (0.5, 0.7), "direction": (np.pi / 2, np.pi)}
    placed |= {"heading_x": (0.0, -1.0), "heading_y": (1.0, 0.0)}
    for name, values in placed.items():
        environments.states[name][0] = values
    middle, fastest = 10, 20
    observations = environments.step(np.array([[middle, middle], [fastest, middle]]))[0].reshape(2, -1)
    # 0.004 is a third of the fastest, 0.012; distances are in multiples of 0.2.
    np.testing.assert_allclose(observations[0, 7:13], [0.2 / 0.2, 0.104 / 0.2, 0.0, 1 / 3, 0.0, 1.0], atol=1e-5)
    # For the runner, who looks to the left, the tagger is behind it, and to its left, which is below.
    np.testing.assert_allclose(observations[1, 7:13], [-0.104 / 0.2, 0.2 / 0.2, 0.0, 0.0, 1.0, 1.0], atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_phases_depend_on_no_order(form: str) -> None:
    make, options = FORMS[form]
    assert phases_that_race(make(**options), steps=20) == []


def test_starts_are_drawn_anew_for_every_episode_and_environment() -> None:
    environments: Any = make_environments(tag_on_grid(episode_length=3, side=50), 8, vectorization="compiled")
    environments.reset(0)
    starts = [environments.states["x"].copy()]
    for _ in range(5):
        for _ in range(3):
            environments.step(np.zeros(environments.num_envs, np.int64))
        starts.append(environments.states["x"].copy())
    distinct = np.unique(np.concatenate(starts), axis=0)
    assert len(distinct) == 48


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"levels": 4}, "levels must be odd"),
        ({"tagging_distance": 0.0}, "tagging_distance must be a number above 0"),
        ({"runners": 0}, "runners must be"),
        ({"nearest": -1}, "nearest must be"),
    ],
    ids=str,
)
def test_what_cannot_be_played_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        tag(**options)
