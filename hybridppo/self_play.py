"""Self-play: keeps snapshots of an agent and their ratings, and gives environments their opponents."""

import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from hybridppo.agents import PPO
from hybridppo.agents.policies import Policies, PoliciesConfig, PolicyOf, policy_by_name
from hybridppo.agents.registry import AnyAgent, AnyConfig
from hybridppo.distributions.base import Drawing
from hybridppo.environments.base import Steering
from hybridppo.environments.checks import require_spaces_of
from hybridppo.environments.options import EnvironmentOptions, EnvSource, SelfPlayOptions
from hybridppo.environments.self_play_game import Opponent
from hybridppo.errors import ConfigurationError, EnvError, RunDirectoryError, shown
from hybridppo.evaluation import acting, options_for, require_names
from hybridppo.interfaces import Metrics
from hybridppo.loading import load
from hybridppo.reporting.callbacks import Callback, TrainingRun
from hybridppo.run_directory.checkpoints import numbers_named, remove_numbered
from hybridppo.run_directory.directory import RunDirectory, WhichCheckpoint
from hybridppo.runners.episodes import evaluate as run_episodes
from hybridppo.runners.episodes import made_for
from hybridppo.runners.runner import Runner
from hybridppo.settings import RunOptions, SelfPlay
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.kinds import each_of
from hybridppo.system.messages import ThrottledWarning
from hybridppo.system.seeds import seed_of
from hybridppo.system.validation import require_whole

ONLY_PPO = "self_play is for PPO (PPOConfig): leave it out"
FIRST_RATING, SCALE = 1200.0, 400.0
"""The rating of the first snapshot, and the difference at which a win is ten times as likely as a loss."""
STEP = 16.0
"""The most that one game changes a rating (Elo, "The Rating of Chessplayers", 1978)."""
WINDOW = 100
"""The latest games that count in the score against a snapshot."""


def opponent_of(path: Path) -> Opponent:
    """The opponent in an agent's file, which draws its actions.

    Raises:
        EnvError: if the file is gone.
    """
    try:
        state = path.stat()
    except OSError:
        raise EnvError(f"the snapshot {path} is gone: self-play needs all that are in its pool") from None
    return _loaded(path, state.st_ino, state.st_mtime_ns)


@lru_cache(maxsize=64)
def _loaded(path: Path, inode: int, written: int) -> Opponent:
    """The opponent in a file as it is now: another run may have had one of the same name."""
    return opponent(load(path, agent=PPO))  # a snapshot of a subclass acts as PPO does


def opponent(agent: Any) -> Opponent:
    """An agent as an opponent, which draws its actions."""
    with acting(agent) as acting_with:
        actor = acting_with["actor"]
    each, memory = each_of(agent.action_space), agent.memory

    def act(rows: Array, generator: np.random.Generator, states: list[Any]) -> tuple[Sequence[Any], list[Any]]:
        if memory is not None:
            nothing = np.zeros(memory.state_size, np.float32)
            actor.state = np.stack([nothing if state is None else state for state in states])
        actions = Drawing(agent.distribution, generator, len(rows)).actions(actor, rows)
        after = states if memory is None else list(actor.state)
        return list(each(agent.distribution.to_env(actions))), after

    return act


def with_self_play(
    options: EnvironmentOptions, run: RunOptions, config: AnyConfig, policy_of: PolicyOf | None = None
) -> EnvironmentOptions:
    """The options of the environments that are trained in: with self-play, snapshots play the other agents.

    Args:
        options: of environments without self-play.
        run: with the settings of self-play.
        config: of the agent.
        policy_of: as for `train`, for a configuration that does not yet have the agents of the environments.
    """
    if run.self_play is None:
        return options
    policies: dict[str, Any] = {}
    if isinstance(config, PoliciesConfig):
        policies["policy_of"] = config.agents.get if config.agents else policy_of or policy_by_name
        policies["policies"] = tuple(policy for policy in config.policies if policy not in config.played)
    return SelfPlayOptions(**vars(options), opponent_of=opponent_of, **policies)


def ratings_of(run_dir: str | Path, checkpoint: WhichCheckpoint = "latest") -> dict[str, float]:
    """The Elo ratings of a run at a checkpoint, by the names of their metrics; empty without self-play."""
    _, loop = RunDirectory.open(run_dir).load_checkpoint(checkpoint).part("runner")
    return {name: value for name, value in loop["metrics"].items() if name.endswith("self_play/rating")}


def round_robin(
    agents: Mapping[str, AnyAgent | str | Path],
    env: EnvSource,
    *,
    games: int = 100,
    num_envs: int = 10,
    seed: int = 0,
    env_kwargs: dict[str, Any] | None = None,
    imports: str = "",
) -> dict[str, dict[str, float]]:
    """Let every agent play against every other; return the mean scores by names: a win counts 1, a draw 0.5.

    Agents draw their actions at random. In every game, one of the two plays one random side, and the other agent plays
    all other sides.

    Args:
        agents: two or more agents by name: PPO agents, run directories, or files of `agent.save`.
        env: an environment of two or more agents with the same spaces.
        games: number of games of each pair.
        num_envs: number of games side by side.
        seed: seed of the environments, sides and actions.
        env_kwargs: as for `train`.
        imports: as for `train`.

    Raises:
        ConfigurationError: if there are fewer than two agents, or one is not a PPO agent with one policy.
        EnvError: if the environment does not have several agents with the same spaces, or has other spaces than an
            agent.
    """
    require_whole("games", games)
    require_whole("num_envs", num_envs)
    require_whole("seed", seed, 0, below=2**128)
    require_names(agents)
    players: dict[str, Any] = {
        name: load(given) if isinstance(given, (str, Path)) else given for name, given in agents.items()
    }
    if len(players) < 2:
        raise ConfigurationError(f"a round robin is for two or more agents, got {len(players)}")
    for name, player in players.items():
        if not isinstance(player, PPO):
            what = f"a round robin is for agents of one policy of PPO, and {name} is {shown(player)}"
            raise ConfigurationError(f"{what}: evaluate_policies lets several policies play together")
    options = EnvironmentOptions(env_kwargs=env_kwargs, imports=imports)
    scores: dict[str, dict[str, float]] = {name: {} for name in players}
    for one, other in combinations(players, 2):
        score = _score(players[one], players[other], env, options, games, min(num_envs, games), seed)
        scores[one][other], scores[other][one] = score, 1.0 - score
    return scores


def _score(
    agent: PPO, other: PPO, env: EnvSource, options: EnvironmentOptions, games: int, num_envs: int, seed: int
) -> float:
    """The mean score of an agent in games against another."""
    against = opponent(other)
    options = SelfPlayOptions(**vars(options_for(agent, options)), opponent_of=lambda path: against)
    with closing(made_for(agent, env, num_envs, options, own_number=True)) as environments:
        require_spaces_of(other, environments)
        environments.steer(Steering("self_play", "set_opponents", [{"": {"snapshots": ["other"], "weights": [1.0]}}]))
        with acting(agent) as acting_with:
            of_evaluation = seed_of(seed, "evaluation")
            run_episodes(
                **acting_with, environments=environments, episodes=games, seed=of_evaluation, deterministic=False
            )
        played = environments.steer(Steering("once", "take_results", []))
    # The number of games of each environment is fixed beforehand: else short ones would count more.
    counts = [games // num_envs + (number < games % num_envs) for number in range(num_envs)]
    counted = [score for count, (results, _) in zip(counts, played, strict=True) for *_, score in results[:count]]
    return float(np.mean(counted))


@dataclass
class OpponentPool:
    """The snapshots of a policy."""

    learns: bool
    rating: float = FIRST_RATING
    """The present rating of the policy."""
    snapshots: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By name, from the oldest to the newest: the `rating`, and the `results` of learners in the latest games against
    it, a digit for each: 2 for a win, 1 for a draw, 0 for a loss."""

    def weights(self, latest: float, *, prioritised: bool) -> list[float]:
        """The probability of each snapshot; `latest` is that of the newest."""
        *others, _ = self.snapshots.values()
        if not others:
            return [1.0]
        shares = np.ones(len(others))
        if prioritised:
            # One draw is added to the games, so that every opponent is drawn at times.
            results = [one["results"] for one in others]
            beaten = np.array([(sum(map(int, each)) + 1) / (2 * len(each) + 2) for each in results])
            shares = (1.0 - beaten) ** 2
        found: list[float] = [*((1.0 - latest) * shares / shares.sum()), latest]
        return [float(share) for share in found]


class OpponentPools(Callback):
    """The snapshots of a training, with a rating for each and for the agent; for each policy if there are several.

    Games are counted after each rollout, in all learners; so are the opponents of the next games chosen.

    Args:
        options: the fields of `SelfPlay`.
        runner: the training, whose environments are games of self-play. The first of its processes writes snapshots.
        folder: the folder for snapshots; None for a temporary one.

    Raises:
        ConfigurationError: if the agent is not PPO, or its snapshots cannot act.
    """

    is_of_library = True

    def __init__(self, options: dict[str, Any], runner: Runner, folder: Path | None) -> None:
        agent: Any = runner.agent
        if not isinstance(agent, (PPO, Policies)):
            raise ConfigurationError(ONLY_PPO)
        if part := next((name for name in ("networks", "action_distribution") if name in agent.own), None):
            raise ConfigurationError(f"self_play loads snapshots, which files hold without {part}: leave one out")
        self._options, self._sampler, self._group = SelfPlay(**options), runner.sampler, runner.group
        self._temporary = tempfile.TemporaryDirectory(prefix="hybridppo-") if folder is None else None
        self._folder = folder if folder is not None else Path(self._temporary.name)  # type: ignore[union-attr]
        self._outage = ThrottledWarning(f"writing a snapshot to {self._folder}")
        self._removing = ThrottledWarning(f"removing snapshots of {self._folder}")
        self._told, self._told_before = set[str](), set[str]()
        """The names that environments draw from, and those before, which they may still draw from."""
        self._agents: Mapping[str, PPO] = agent.agents if isinstance(agent, Policies) else {"": agent}
        played = agent.config.played if isinstance(agent, Policies) else ()
        self.pools = {policy: OpponentPool(policy not in played) for policy in self._agents}
        """By policy; the only policy has the name ""."""
        # Before a state is loaded, whose episodes may begin anew: the run directory may have been moved since.
        # Workers over Ray have another working directory.
        self._sampler.steer(Steering("self_play", "use_folder", [str(self._folder.absolute())]))

    def on_start(self, run: TrainingRun) -> None:
        """Take the first snapshots; or in a resumed run, use the earlier ones.

        Raises:
            RunDirectoryError: if an earlier snapshot is gone.
        """
        before = next((each for each in self._sampler.steering if each.name == "set_opponents"), None)
        if before is None:
            self._take_snapshots(self.pools)
            self._tell()
            return
        for policy, pool in before.arguments[0].items():
            snapshots = {name: {"results": "", **snapshot} for name, snapshot in pool["snapshots"].items()}
            self.pools[policy].rating, self.pools[policy].snapshots = pool["rating"], snapshots
        paths = [self._folder / policy / name for policy, pool in self.pools.items() for name in pool.snapshots]
        missing = [path for path in paths if not path.is_file()]
        if missing:
            what = f"{len(missing)} of the {len(paths)} snapshots of self-play are gone, the first is {missing[0]}"
            raise RunDirectoryError(f"{what}: put them back, or begin a new run with start_from")

    def on_rollout(self, run: TrainingRun) -> None:
        """Count the games of a rollout that has ended, take snapshots if they are due, and weigh the opponents."""
        for results, missed in self._sampler.steer(Steering("once", "take_results", [])):
            for result in results:
                self._count(*result)
            self._sampler.counts.add_missed(missed)
        learning = [policy for policy, pool in self.pools.items() if pool.learns]
        newest = int(next(reversed(self.pools[learning[0]].snapshots)))
        if self._sampler.counts.env_steps >= newest + self._options.snapshot_every:
            # Other learners would not know that there is no snapshot.
            errors = RunDirectoryError if self._group.size == 1 else ()
            with self._outage.tolerating(errors, "self-play goes on, and tries again after the next rollout"):
                self._take_snapshots(learning)
        self._tell()
        if self._temporary is not None:
            self._remove_unused(set())

    def on_checkpoint(self, run: TrainingRun, path: Path) -> None:
        """Remove the snapshots that neither checkpoints nor games need."""
        with self._removing.tolerating(OSError, "they stay for now"):
            self._remove_unused(numbers_named(path.parent))

    def _remove_unused(self, saved: set[str]) -> None:
        for policy in self.pools:
            remove_numbered(self._folder / policy, self._told | self._told_before | saved)

    def on_metrics(self, run: TrainingRun, metrics: Any) -> Metrics:
        """Ratings, and the mean score in the latest games against each snapshot."""
        found: Metrics = {}
        for policy, pool in self.pools.items():
            name = f"{policy}/self_play" if policy else "self_play"
            found |= {f"{name}/rating": pool.rating, f"{name}/snapshots": len(pool.snapshots)}
            for snapshot, one in pool.snapshots.items():
                if results := one["results"]:
                    found[f"{name}/score/{int(snapshot)}"] = sum(map(int, results)) / (2 * len(results))
        return found

    def on_end(self, run: TrainingRun) -> None:
        """Remove the folder if it is a temporary one."""
        if self._temporary is not None:
            self._temporary.cleanup()

    def _take_snapshots(self, policies: Collection[str]) -> None:
        name = f"{self._sampler.counts.env_steps:012d}"
        for policy in policies if self._group.is_first else ():
            self._agents[policy].save(self._folder / policy / name)
        for policy in policies:
            pool = self.pools[policy]
            pool.snapshots[name] = {"rating": pool.rating, "results": ""}
            while len(pool.snapshots) > self._options.pool:
                del pool.snapshots[next(iter(pool.snapshots))]

    def _count(self, learner: str, policy: str, name: str, score: float) -> None:
        pool, snapshot = self.pools[learner], self.pools[policy].snapshots.get(name)
        if snapshot is None:  # it has left the pool during the game
            return
        expected = 1.0 / (1.0 + 10.0 ** ((snapshot["rating"] - pool.rating) / SCALE))
        change = STEP * (score - expected)
        pool.rating += change
        snapshot["rating"] -= change
        snapshot["results"] = f"{snapshot['results']}{round(2 * score)}"[-WINDOW:]

    def _tell(self) -> None:
        pools = {}
        self._told, self._told_before = {name for pool in self.pools.values() for name in pool.snapshots}, self._told
        for policy, pool in self.pools.items():
            weights = pool.weights(self._options.latest, prioritised=self._options.opponents == "prioritised")
            pools[policy] = {"rating": pool.rating, "snapshots": pool.snapshots, "weights": weights}
        self._sampler.steer(Steering("self_play", "set_opponents", [pools]))
