"""Each kind of space by hand: its rows, what it refuses, its masks."""

import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from hybridppo.distributions.categorical import Categorical
from hybridppo.distributions.of_space import distribution_for, distribution_of
from hybridppo.errors import BadValueError, EnvError
from hybridppo.spaces import kinds
from hybridppo.spaces.kinds import Kind
from hybridppo.spaces.masks import MaskedObservation
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.spaces.serialization import FORMATS, space_from_json, space_to_json

VECTORS = Dict(
    speed=Box(-1.0, 1.0, (2,)), gear=Discrete(3, start=1), keys=Tuple((MultiBinary(2), MultiDiscrete([2, 2])))
)
CAMERA = Dict(camera=Box(0, 255, (3, 4, 1), np.uint8), speed=Box(-1.0, 1.0, (2,)))


def observed(**changes: Any) -> dict[str, Any]:
    """A member of `VECTORS`."""
    good = {"speed": np.array([0.5, -1.0], np.float32), "gear": 3, "keys": (np.array([1, 0]), np.array([1, 0]))}
    return {**good, **changes}


def seen(**changes: Any) -> dict[str, Any]:
    """A member of `CAMERA`."""
    image = np.arange(12, dtype=np.uint8).reshape(3, 4, 1)
    return {"camera": image, "speed": np.array([0.5, -1.0], np.float32), **changes}


# Rows


def test_a_row_is_its_parts_in_turn() -> None:
    encode = ObservationEncoder(VECTORS)
    assert (encode.shape, encode.dtype, encode.layout.images) == ((3 + 2 + 4 + 2,), np.float32, ())
    # gear, keys[0], keys[1], speed: whatever order the keys were given in, it is the alphabetical one
    expected = [0, 0, 1, 1, 0, 0, 1, 1, 0, 0.5, -1.0]
    np.testing.assert_array_equal(encode.one(observed()), expected)
    batch = {
        "speed": np.array([[0.5, -1.0], [0.0, 0.25]], np.float32),
        "gear": np.array([3, 1]),
        "keys": (np.array([[1, 0], [1, 1]]), np.array([[1, 0], [0, 0]])),
    }
    np.testing.assert_array_equal(encode(batch), [expected, [1, 0, 0, 1, 1, 1, 0, 1, 0, 0, 0.25]])
    assert encode.names[0] == "['gear'][0]"
    assert encode.names[-1] == "['speed'][1]"


def test_images_beside_numbers_stay_bytes() -> None:
    encode = ObservationEncoder(CAMERA)
    assert (encode.shape, encode.dtype, encode.image) == ((2 * 4 + 12,), np.uint8, None)
    row = encode.one(seen())
    np.testing.assert_array_equal(row[:8].view(np.float32), [0.5, -1.0])
    np.testing.assert_array_equal(row[8:], np.arange(12))
    rows = encode({"camera": np.stack([seen()["camera"]] * 3), "speed": np.stack([seen()["speed"]] * 3)})
    np.testing.assert_array_equal(rows, np.stack([row] * 3))
    np.testing.assert_array_equal(encode.layout.numbers(rows), [[0.5, -1.0]] * 3)


def test_what_is_single_is_written_as_a_batch_is() -> None:
    generator = np.random.default_rng(0)
    for space in (Discrete(7, start=-3), MultiDiscrete([[2, 3], [4, 2]], start=[[1, 0], [-1, 5]]), MultiBinary((2, 3))):
        space.seed(int(generator.integers(100)))
        encode, members = ObservationEncoder(space), [space.sample() for _ in range(20)]
        np.testing.assert_array_equal(encode(np.stack(members)), [encode.one(member) for member in members])
        if not isinstance(space, MultiBinary):  # a 1 for each choice
            assert encode(np.stack(members)).sum() == 20 * max(1, np.prod(space.shape))


def test_a_tuple_may_be_a_list_and_other_parts_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    encode = ObservationEncoder(VECTORS)
    expected = encode.one(observed())
    np.testing.assert_array_equal(encode.one(observed(keys=[*observed()["keys"]])), expected)
    for _ in range(2):
        np.testing.assert_array_equal(encode.one(observed(cargo=[1, 2])), expected)
    assert encode.others == "its observation has parts that its space does not have: 'cargo'"
    assert [record.getMessage() for record in caplog.records] == [
        f"{encode.others}. They are ignored, and there is no other warning"
    ]


# What is refused


@pytest.mark.parametrize(
    ("space", "observation", "words"),
    [
        (
            VECTORS,
            observed(gear=4),
            r"its observation['gear'] is 4, which is not one of its space, Discrete(3, start=1)",
        ),
        (VECTORS, observed(gear=1_000_000), "its observation['gear'] is 1000000"),
        (VECTORS, observed(gear=1.5), "its observation['gear'] is not whole: 1.5"),
        (VECTORS, observed(gear="fast"), "its observation['gear'] is not a number or an array of numbers: 'fast'"),
        (
            VECTORS,
            observed(keys=(np.array([1, 2]), np.array([0, 0]))),
            "its observation['keys'][0][1] is 2, which is n",
        ),
        (
            VECTORS,
            observed(keys=(np.array([1, 0]), np.array([0, -1]))),
            "its observation['keys'][1][1] is -1, which is",
        ),
        (
            VECTORS,
            observed(keys=(np.array([1, 0]),)),
            "its observation['keys'] has the parts [0], and its space [0, 1]",
        ),
        (VECTORS, observed(keys=np.zeros((2, 2))), "its observation['keys'] must be a tuple, as its space is a Tuple"),
        (
            VECTORS,
            observed(speed=np.zeros(3)),
            "its observation['speed'] is of shape (3,), and that of its space is (2",
        ),
        (VECTORS, 3, "its observation must be a dict, as its space is a Dict, and is 3"),
        (CAMERA, seen(camera=np.zeros((4, 4, 1), np.uint8)), "its observation['camera'] is of shape (4, 4, 1)"),
        (
            CAMERA,
            seen(camera=np.full((3, 4, 1), 300)),
            "its observation['camera'][0, 0, 0] is 300, and images",
        ),
        (MultiDiscrete([2, 2]), np.array([0.5, 1.0]), "its observation is not whole: [0.5, 1.0]"),
        (MultiBinary(2), np.zeros(3), "its observation is of shape (3,), and that of its space is (2,)"),
    ],
)
def test_what_is_not_of_the_space_is_refused_at_any_step(space: gym.Space, observation: Any, words: str) -> None:
    encode = ObservationEncoder(space)
    with pytest.raises(BadValueError) as raised:
        encode.one(observation)
    assert words in str(raised.value)
    with pytest.raises(BadValueError):
        encode.checked(observation)


def test_numbers_that_are_not_finite_are_named_by_part() -> None:
    for space, bad in (
        (VECTORS, observed(speed=np.array([0.0, np.nan]))),
        (CAMERA, seen(speed=np.array([0.0, np.nan]))),
    ):
        encode = ObservationEncoder(space)
        row = encode.one(bad)
        assert not np.isfinite(encode.finite_test(1)(row))
        with pytest.raises(BadValueError, match=r"its observation\['speed'\]\[1\] is nan"):
            encode.require_finite("its observation", row)
    rows = np.stack([encode.one(seen()), encode.one(seen())])
    assert np.isfinite(encode.finite_test(2)(rows.ravel()))


def test_what_was_checked_is_of_the_space() -> None:
    for space, member in ((VECTORS, observed()), (CAMERA, seen())):
        assert space.contains(ObservationEncoder(space).checked(member))


# Masks


@pytest.mark.parametrize(
    ("action", "mask", "flat"),
    [
        (Discrete(3, start=4), np.array([1, 0, 1], np.int8), [1, 0, 1]),
        (MultiDiscrete([2, 3]), (np.array([1, 0], np.int8), np.array([0, 1, 1], np.int8)), [1, 0, 0, 1, 1]),
        (MultiDiscrete([2, 3]), np.array([1, 0, 0, 1, 1], np.int8), [1, 0, 0, 1, 1]),
        (MultiDiscrete([2, 3]), [1, 0, 0, 1, 1], [1, 0, 0, 1, 1]),
        (MultiDiscrete([[2], [1]]), ((np.array([0, 1], np.int8),), (np.array([1], np.int8),)), [0, 1, 1]),
        (MultiBinary(3), np.array([0, 1, 2], np.int8), [1, 0, 0, 1, 1, 1]),
        (Tuple((Box(-1, 1), Discrete(2))), (None, np.array([0, 1], np.int8)), [0, 1]),
        (Tuple((Discrete(2), Discrete(2))), (None, np.array([0, 1], np.int8)), [1, 1, 0, 1]),
        (
            Dict(b=MultiBinary(1), a=Tuple((Discrete(2), Box(-1, 1)))),
            {"a": (np.array([1, 0], np.int8), None), "b": np.array([0], np.int8)},
            [1, 0, 1, 0],
        ),
    ],
)
def test_a_mask_is_what_gymnasiums_sample_takes(action: gym.Space, mask: Any, flat: list[int]) -> None:
    space = MaskedObservation(Box(-1.0, 1.0, (1,)), action)
    row = space.row([0.5], mask)
    np.testing.assert_array_equal(row, [0.5, *flat])
    space.require_allowed(row)
    if not (isinstance(action, MultiDiscrete) and not isinstance(mask, tuple)):  # flat is more than gymnasium takes
        action.seed(0)
        action.sample(mask)
    assert space_from_json(space_to_json(space)) == space
    assert distribution_for(action).mask_size == len(flat)


@pytest.mark.parametrize(
    ("action", "mask", "words"),
    [
        (Discrete(2), [1], "its action mask must be 2 truths, one for each action, and is [1]"),
        (Discrete(2), "yes", "its action mask must be 2 truths, one for each action, and is 'yes'"),
        (Discrete(3), np.array([0, -np.inf, 0]), "its action mask[1] is -inf, and must be 1 if the action is allowed"),
        (Discrete(3), [1, np.nan, 0], "its action mask[1] is nan, and must be 1 if the action is allowed, else 0"),
        (
            Discrete(3),
            np.array([1, 0, -1], np.int8),
            "its action mask[2] is -1, and must be 1 if the action is allowed",
        ),
        (Discrete(3), [1, 2, 0], "its action mask[1] is 2, and must be 1 if the action is allowed, else 0"),
        (MultiDiscrete([2, 3]), (np.ones(2), [0, 0.5, 1]), "its action mask[1][1] is 0.5, and must be 1 if the action"),
        (MultiDiscrete([2, 3]), [1, 0], "must be 5 truths, those of all choices in turn, of [2, 3], and is [1, 0]"),
        (MultiDiscrete([2, 3]), (np.ones(2),), "must be a tuple of 2 masks, one for each choice, and is 1 of them"),
        (MultiDiscrete([2, 3]), (np.ones(2), np.ones(2)), "its action mask[1] must be 3 truths"),
        (MultiDiscrete([2, 3]), 7, "must be a tuple of 2 masks, one for each choice, and is a int"),
        (
            MultiBinary(2),
            [0, 3],
            "must be of shape (2,), with 0 or 1 for what an action must be there and 2 for either",
        ),
        (Tuple((Discrete(2), Discrete(2))), ([1, 1],), "its action mask has the parts [0], and its space [0, 1]"),
        (Tuple((Discrete(2), Discrete(2))), [[1, 1], [1, 1]], "its action mask must be a tuple, as its space is a Tup"),
        (Dict(a=Discrete(2), b=Box(-1, 1)), {"a": [1, 1], "b": [1]}, "its action mask['b'] must be None, for a Box ha"),
        (Dict(a=Discrete(2)), {"a": [1, 1, 1]}, "its action mask['a'] must be 2 truths"),
    ],
)
def test_a_mask_of_another_form_is_refused(action: gym.Space, mask: Any, words: str) -> None:
    with pytest.raises(BadValueError) as raised:
        MaskedObservation(Discrete(2), action).row(0, mask)
    assert words in str(raised.value)


@pytest.mark.parametrize("observation", [Discrete(2), Box(0, 255, (3, 3, 1), np.uint8)])
def test_every_choice_needs_something_allowed(observation: gym.Space) -> None:
    action = Dict(arm=Tuple((Box(-1, 1), Discrete(2))), legs=MultiDiscrete([2, 3]))
    space = MaskedObservation(observation, action)
    seen_now = 0 if isinstance(observation, Discrete) else np.zeros((3, 3, 1), np.uint8)
    ones = np.ones(2, np.int8)
    space.require_allowed(space.row(seen_now, {"arm": (None, ones), "legs": (ones, np.ones(3))}))
    for mask, where in (
        ({"arm": (None, 0 * ones), "legs": (ones, np.ones(3))}, r"\['arm'\]\[1\]"),
        ({"arm": (None, ones), "legs": (ones, np.zeros(3))}, r"\['legs'\]\[1\]"),
    ):
        with pytest.raises(BadValueError, match=f"its action mask allows no action for {where}, and the episode"):
            space.require_allowed(space.row(seen_now, mask))


@pytest.mark.parametrize("action", [Box(-1, 1), Tuple((Box(-1, 1), Dict(a=Box(-1, 1)))), gym.spaces.Text(2)])
def test_where_there_is_no_choice_there_is_no_mask(action: gym.Space) -> None:
    with pytest.raises(EnvError, match=r"action_masks=True needs a Discrete action space|is not supported"):
        MaskedObservation(Discrete(2), action)


@pytest.mark.parametrize("choice", [Discrete(2**40), MultiDiscrete([2**40, 2])])
def test_a_choice_with_too_many_options_for_a_row_is_refused(choice: gym.Space) -> None:
    with pytest.raises(EnvError, match=r"at \['cell'\] of .* networks would see 1,099,511,627,77\d numbers of it"):
        ObservationEncoder(Dict(cell=choice))


# A further kind


class Angle(gym.Space):
    """A kind that the library does not know: an angle, in degrees."""

    def __init__(self) -> None:
        super().__init__((), np.int64)

    def contains(self, x: Any) -> bool:
        return 0 <= x < 360


class AngleKind(Kind[Angle]):
    """Sine and cosine; as an action, one of four directions."""

    of, size = Angle, 2

    def write(self, observations: Any, rows: np.ndarray) -> None:
        radians = np.deg2rad(np.asarray(observations))
        rows[..., 0], rows[..., 1] = np.sin(radians), np.cos(radians)

    def checked(self, observation: Any, *, bounds: bool = True) -> Any:
        if not self.space.contains(observation):
            raise BadValueError(f"its observation{self.path} is {observation}, which is no angle")
        return observation


def test_a_further_kind_is_one_class_and_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    space = Dict(wind=Angle(), speed=Box(-1.0, 1.0, (1,)))
    with pytest.raises(EnvError, match=r"which is at \['wind'\]"):
        ObservationEncoder(space)
    monkeypatch.setattr(kinds, "KINDS", [*kinds.KINDS, AngleKind])
    monkeypatch.setitem(FORMATS, "Angle", (Angle, lambda angle: {}, lambda json: Angle()))
    distribution_of.register(AngleKind, lambda kind, squash: Categorical(4))
    encode = ObservationEncoder(space)
    np.testing.assert_allclose(encode.one({"wind": 90, "speed": [0.5]}), [0.5, 1.0, 0.0], atol=1e-6)
    with pytest.raises(BadValueError, match=r"its observation\['wind'\] is 400, which is no angle"):
        encode.checked({"wind": 400, "speed": [0.5]})
    assert distribution_for(space).output_size == 4 + 2
    assert list(space_from_json(space_to_json(space)).spaces) == ["speed", "wind"]


def test_the_room_is_free_of_torch() -> None:
    code = "import sys, hybridppo.spaces.serialization; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
