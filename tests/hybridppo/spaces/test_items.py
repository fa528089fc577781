"""Texts, sequences, graphs, and one of several spaces as rows, and their encoders."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Graph, GraphInstance, OneOf, Sequence, Text

import hybridppo
from hybridppo import EnvError
from hybridppo.distributions.of_space import distribution_for
from hybridppo.errors import BadValueError
from hybridppo.networks.items import WIDTH, ItemsEncoder
from hybridppo.networks.layers import initialised
from hybridppo.spaces.items import LimitedGraph, LimitedSequence, limited, max_items_of
from hybridppo.spaces.observations import ObservationEncoder

TEXT = Text(3, charset="cab")
SET = LimitedSequence(Sequence(Dict(a=Box(-9.0, 9.0, (1,)), b=Discrete(2))), 3)
STACKED = LimitedSequence(Sequence(Box(-9.0, 9.0, (2,)), stack=True), 2)
STACKED_PARTS = LimitedSequence(Sequence(Dict(a=Box(-9.0, 9.0, (1,)), b=Discrete(2)), stack=True), 2)
GRAPH = LimitedGraph(Graph(Box(-9.0, 9.0, (1,)), Discrete(2)), 2)
EITHER = OneOf([Discrete(2), Box(-9.0, 9.0, (2,))])


def graph(nodes: Any, edges: Any, links: Any) -> GraphInstance:
    return GraphInstance(np.array(nodes, np.float32).reshape(-1, 1), np.array(edges), np.array(links).reshape(-1, 2))


def item(a: float, b: int) -> dict[str, Any]:
    return {"a": np.array([a]), "b": b}


@pytest.mark.parametrize(
    ("space", "observation", "row"),
    [
        (TEXT, "ba", [1, 1, 1, 0, 0, 0]),
        (TEXT, "", [0] * 6),
        (SET, (item(5.0, 1), item(-2.0, 0)), [1, 5, 0, 1, 1, -2, 1, 0, 0, 0, 0, 0]),
        (SET, (), [0] * 12),
        (STACKED, np.array([[3.0, 4.0]]), [1, 3, 4, 0, 0, 0]),
        (GRAPH, graph([7.0, 8.0], [1], [[1, 0]]), [1, 7, 1, 8, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0]),
        (GRAPH, GraphInstance(np.array([[7.0]]), None, None), [1, 7] + [0] * 12),
        (GRAPH, GraphInstance(np.array([[7.0]]), np.array([]), np.array([])), [1, 7] + [0] * 12),
        (EITHER, (0, 1), [1, 0, 0, 1, 0, 0]),
        (EITHER, (np.int64(1), np.array([3.0, 4.0])), [0, 1, 0, 0, 3, 4]),
    ],
)
def test_rows_by_hand(space: Any, observation: Any, row: list[float]) -> None:
    encode = ObservationEncoder(space)
    np.testing.assert_array_equal(encode.one(observation), np.array(row, np.float32))
    np.testing.assert_array_equal(encode((observation, observation)), np.array([row, row], np.float32))


@pytest.mark.parametrize(
    ("space", "observation", "message"),
    [
        (TEXT, 3, "its observation must be text, and is 3"),
        (TEXT, "abca", "has 4 characters, and its space 3"),
        (TEXT, "ax", "has the character 'x', which its space has not"),
        (SET, 3, "must be a sequence, and is 3"),
        (SET, (item(0.0, 0),) * 4, r"has 4 items, and max_items \(--max-items\) is 3"),
        (SET, (item(np.nan, 0),), r"its observation\[\]\['a'\].* nan"),
        (SET, (item(0.0, 2),), r"its observation\[\]\['b'\] is 2, which is not one of its space"),
        (SET, ({"a": np.array(["x"]), "b": 0},), r"its observation\[\]\['a'\] is not a number or an array of numbers"),
        (SET, ({"a": np.array([1j]), "b": 0},), r"its observation\[\]\['a'\] is not a number or an array of numbers"),
        (
            STACKED_PARTS,
            {"a": np.zeros((2, 1)), "b": np.zeros(1, int)},
            r"must be a sequence, stacked as values of Dict",
        ),
        (STACKED_PARTS, {"a": np.zeros((2, 1))}, "must be a sequence, stacked as values of Dict"),
        (STACKED_PARTS, np.zeros((2, 1)), "must be a sequence, stacked as values of Dict"),
        (GRAPH, 3, "must be a GraphInstance, and is 3"),
        (GRAPH, (None, None, None), r"its observation.nodes is not a number or an array of numbers: None"),
        (GRAPH, ([[1.0]], "x", None), r"its observation.edges is not a number or an array of numbers: 'x'"),
        (GRAPH, ([[1.0]], [0], [[0], [0, 0]]), r"its observation.edge_links is not an array"),
        (GRAPH, ([[1.0]], 3, None), "must have as many edges as edge_links, 0, and has"),
        (GRAPH, graph([1.0, 2.0, 3.0], [0], [[0, 1]]), r"has 3 nodes, and max_items \(--max-items\) is 2"),
        (GRAPH, graph([1.0], [0] * 3, [[0, 0]] * 3), "has 3 edges, and max_items"),
        (GRAPH, graph([1.0], [0], [[0, 1]]), "numbers of two of its 1 nodes each, and is"),
        (GRAPH, graph([1.0], [], [[0, 0]]), "must have as many edges as edge_links, 1, and has"),
        (EITHER, 3, "must be a pair, a space's number and a value, and is 3"),
        (EITHER, (2, 0), "names space 2, and there are 2"),
        (EITHER, (np.array([0]), 0), "names space .*0.*, and there are 2"),
        (EITHER, (np.array([0, 1]), 0), "names space .*0, 1.*, and there are 2"),
        (LimitedSequence(Sequence(Sequence(Discrete(2))), 2), (), "cannot be a Sequence"),
        (OneOf([Graph(Discrete(2), None), Discrete(2)]), (), "cannot be a Graph"),
        (LimitedSequence(Sequence(Discrete(2)), 10**8), (), "lower max_items"),
        (Sequence(Discrete(2)), (), "the observation space Sequence.* is not supported: .* max_items"),
        (Graph(Discrete(2), None), (), "the observation space Graph.* is not supported: .* max_items"),
        (OneOf([Text(3), Discrete(2)]), (), "items and members of a OneOf cannot be a Text"),
        (OneOf([Sequence(Discrete(2))]), (), "items and members of a OneOf cannot be a Sequence"),
        (limited(Sequence(Dict(a=Graph(Discrete(2), None))), 2), (), "items and members of a OneOf cannot be a Graph"),
        (LimitedSequence(Sequence(Box(0, 255, (3, 3, 1), np.uint8)), 2), (), "cannot be an image"),
    ],
)
def test_what_does_not_fit_is_refused(space: Any, observation: Any, message: str) -> None:
    with pytest.raises((EnvError, BadValueError), match=message):
        ObservationEncoder(space).checked(observation)


@pytest.mark.parametrize(
    ("space", "observation", "is_outside"),
    [
        (SET, (item(9.0, 1),), False),
        (SET, (item(9.5, 1),), True),
        (LimitedSequence(Sequence(Box(2.0, 3.0, (1,))), 2), ([2.0],), False),
        (STACKED, np.array([[3.0, -9.5]]), True),
        (GRAPH, graph([9.5], [], []), True),
        (GRAPH, graph([9.0, 1.0], [1], [[1, 0]]), False),
        (EITHER, (1, [0.0, 9.5]), True),
        (EITHER, (1, [0.0, 9.0]), False),
        (TEXT, "c", False),
    ],
)
def test_an_item_outside_of_its_bounds_is_warned_of(space: Any, observation: Any, is_outside: bool) -> None:
    encode = ObservationEncoder(space)
    warning = encode.warning_of_bounds(encode.one(observation)[None, None], np.zeros((1, 1), bool))
    assert (warning is not None and "[] was" in warning and "9.5, outside of the bounds" in warning) == is_outside


def test_a_limit_for_nothing_is_refused() -> None:
    with pytest.raises(
        hybridppo.ConfigurationError, match="max_items=3 is for observations with a Sequence or a Graph"
    ):
        hybridppo.train("CartPole-v1", total_steps=8, max_items=3, progress=False)


def test_a_limit_reaches_every_part() -> None:
    space = Dict(a=Sequence(Discrete(2)), b=gym.spaces.Tuple((Graph(Discrete(2), None), Discrete(2))))
    assert max_items_of(space) == 0
    assert ObservationEncoder(limited(space, 3)).layout.num_numbers == 3 * 3 + 3 * 3 + 3 * 3 + 2
    assert max_items_of(limited(space, 3)) == 3
    assert limited(space, 3) == limited(space, 3) != limited(space, 4)


def test_an_action_of_items_is_refused_as_an_action() -> None:
    with pytest.raises(EnvError, match=r"the action space Sequence.* is not supported: use Discrete"):
        distribution_for(Sequence(Discrete(2)))


def found_for(space: Any, observations: Any) -> tuple[ItemsEncoder, Any]:
    """An encoder of a space, and its features of observations."""
    encode, generator = ObservationEncoder(space), torch.Generator().manual_seed(0)
    network = ItemsEncoder(encode.layout.items[0][1], lambda layer, gain: initialised(layer, gain, generator))
    return network, network(torch.from_numpy(encode(observations))).detach().numpy()


def plain(layer: Any, numbers: Any) -> Any:
    weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    return np.maximum(weight @ np.asarray(numbers, np.float32) + bias, 0.0)


def test_a_set_is_the_mean_over_its_items() -> None:
    items = item(5.0, 1), item(-2.0, 0)
    network, found = found_for(SET, (items, items[::-1], ()))
    expected = [plain(network.second, plain(network.first, numbers)) for numbers in ([5, 0, 1], [-2, 1, 0])]
    np.testing.assert_allclose(found[0], [*np.mean(expected, 0), 2 / 3], atol=1e-5)
    np.testing.assert_allclose(found[1], found[0], atol=1e-5)  # whatever the order
    np.testing.assert_array_equal(found[2], np.zeros(WIDTH + 1))  # no item


def test_a_text_is_the_mean_over_characters_and_their_places() -> None:
    network, found = found_for(TEXT, ("ba", "ab"))
    one_hot = np.eye(6)  # the characters a, b and c, then three places
    hidden = [plain(network.first, one_hot[1] + one_hot[3]), plain(network.first, one_hot[0] + one_hot[4])]
    expected = np.mean([plain(network.second, each) for each in hidden], 0)
    np.testing.assert_allclose(found[0], [*expected, 2 / 3], atol=1e-5)
    assert np.abs(found[0] - found[1]).max() > 0.01  # the order matters


def test_nodes_of_a_graph_get_the_mean_of_messages() -> None:
    space = LimitedGraph(Graph(Box(-9.0, 9.0, (1,)), Discrete(2)), 3)
    network, found = found_for(space, (graph([7.0, 8.0, 9.0], [1, 0], [[0, 2], [1, 2]]),))
    nodes = [plain(network.first, [number]) for number in (7, 8, 9)]
    messages = [plain(network.message, [*nodes[0], 0, 1]), plain(network.message, [*nodes[1], 1, 0])]
    received = [np.zeros(WIDTH), np.zeros(WIDTH), np.mean(messages, 0)]
    expected = [plain(network.second, [*node, *mail]) for node, mail in zip(nodes, received, strict=True)]
    np.testing.assert_allclose(found[0], [*np.mean(expected, 0), 1.0], atol=1e-4)


class Bag(gym.Env[Any, Any]):
    """The action is the sign of the sum of some numbers."""

    observation_space: gym.Space[Any] = Sequence(Box(-99.0, 99.0, (1,)))
    action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._numbers = self.np_random.uniform(-99.0, 99.0, (self.np_random.integers(1, 4), 1)).astype(np.float32)
        return tuple(self._numbers), {}

    def step(self, action: Any) -> Any:
        return self.reset()[0], float(action == (self._numbers.sum() > 0.0)), False, False, {}


def test_check_takes_the_limit() -> None:
    assert hybridppo.check_env(Bag, max_items=3, steps=20).is_usable
    assert "max_items" in str(hybridppo.check_env(Bag, steps=20))


def test_the_limit_is_saved_with_the_run_and_the_agent(tmp_path: Any) -> None:
    with pytest.raises(EnvError, match="max_items"):
        hybridppo.train(Bag, total_steps=128, placement="cpu", progress=False)
    how: dict[str, Any] = {"progress": False, "run_dir": tmp_path / "run"}
    config = hybridppo.PPOConfig(num_envs=2, num_steps=64)
    hybridppo.train(Bag, total_steps=128, placement="cpu", max_items=3, config=config, **how)
    longer = hybridppo.resume(env=Bag, total_steps=256, **how)
    assert longer.metrics["env_steps"] == 256
    assert max_items_of(longer.agent.observation_space) == 3
    with pytest.raises(EnvError, match="has 4 items"):
        longer.agent.act((np.ones(1, np.float32),) * 4)


def test_an_evaluation_takes_the_limit_of_an_agent_with_masks() -> None:
    class Masked(Bag):
        def reset(self, **options: Any) -> Any:
            return super().reset(**options)[0], {"action_mask": np.ones(2, np.int8)}

        def step(self, action: Any) -> Any:
            return self.reset()[0], 0.0, True, False, {"action_mask": np.ones(2, np.int8)}

    config, how = hybridppo.PPOConfig(num_envs=2, num_steps=4), {"placement": "cpu", "progress": False}
    agent = hybridppo.train(Masked, total_steps=8, max_items=3, action_masks=True, config=config, **how).agent
    assert hybridppo.evaluate_agent(agent, Masked, episodes=2, seed=0).returns == (0.0, 0.0)
