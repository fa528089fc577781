"""What policies add to a training, in seconds, measured between real processes: learners of this machine, Ray's actors.

`prediction.py` makes predictions of it. Everything is measured by the parts that a training is made of.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from hybridppo.distribution.cluster import Cluster
from hybridppo.distribution.exchange import InSharedMemory
from hybridppo.distribution.link import Link
from hybridppo.distribution.meeting import store_of_this_machine
from hybridppo.distribution.prediction import Crossings
from hybridppo.distribution.team import SECONDS_TO_START
from hybridppo.environments.pickling import pack
from hybridppo.errors import DistributionError
from hybridppo.runners.workers.pool import WorkerPool
from hybridppo.runners.workers.transport import WorkerLostError
from hybridppo.runs.distribution_policies import SingleLearnerCoarse

TIMES, LARGE = 50, 2**23
"""How often small things are timed, and the bytes of a large one."""
WARMUP = 5
_ONE = [0]


def measure_learners(crossings: Crossings, num_columns: int, bytes_of_part: int) -> Crossings:
    """With what crosses between two learners of this machine.

    Args:
        crossings: as known.
        num_columns: of the rows that they exchange for every minibatch.
        bytes_of_part: of a rollout, that one of them has sampled.

    Raises:
        DistributionError: where the other cannot be started.
    """
    store = store_of_this_machine()
    setup = pack({"port": store.port, "columns": num_columns, "bytes": bytes_of_part})
    module = "hybridppo.distribution.probing"
    pool = WorkerPool([slice(0, 1)], setup, lambda worker: 0, SECONDS_TO_START, module=module, role="learner")
    link = exchange = None
    try:
        start = time.perf_counter()
        pool.start(0, 0)
        pool.connect(_ONE)
        link = Link(store, 0, 2, timeout=SECONDS_TO_START, start_timeout=SECONDS_TO_START)
        exchange = InSharedMemory(link, 1, num_columns)
        pool.wait_until_ready(_ONE)
        seconds = {"learner_start": time.perf_counter() - start}
        part = bytes(bytes_of_part)

        def meet() -> None:
            exchange.to_fill()
            exchange.filled(asks=False)

        def answer() -> None:
            pool.send(0, ("answer", 1))
            for _, found in pool.answers(_ONE):
                if isinstance(found, WorkerLostError):
                    raise found

        gather = link.gather
        for name, kind, what in (("exchange", "exchange", meet), ("gather", "gather", lambda: gather(part))):
            pool.send(0, (kind, TIMES + WARMUP))
            seconds[name] = _median_of(what)
        seconds["served"] = _median_of(answer)
        return crossings.measured(**seconds)
    except WorkerLostError as error:
        raise DistributionError(f"a second learner could not be measured: {error}") from error
    finally:
        pool.close()
        if exchange is not None:
            exchange.close()
        if link is not None:
            link.close()


def measure_ray(crossings: Crossings, address: str | None, cores: int) -> tuple[Crossings, int, bool]:
    """With what crosses between this process and Ray's actors; its CPUs; whether they are on more machines than this.

    Args:
        crossings: as known.
        address: of a cluster that is there already; None starts one on this machine.
        cores: of this machine.

    Raises:
        ConfigurationError: where Ray is not installed.
        DistributionError: where no cluster answers at the address, or it has no CPU free.
    """
    start = time.perf_counter()
    cluster = Cluster(str(SingleLearnerCoarse(2)), address, max(2, cores))
    try:
        seconds = {"ray_start": time.perf_counter() - start}
        import ray

        from hybridppo.distribution.ray_workers import explained
        from hybridppo.distribution.remote_probe import RemoteProbe

        with explained():
            cpus = int(ray.cluster_resources().get("CPU", 0))
            has_more = len([node for node in ray.nodes() if node["Alive"]]) > 1
            kind = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(RemoteProbe)
            start = time.perf_counter()
            actors: list[Any] = [kind.remote(LARGE) for _ in range(min(2, max(1, cpus)))]
            ready = [actor.answer.remote(0) for actor in actors]
            there, _ = ray.wait(ready, num_returns=len(ready), timeout=SECONDS_TO_START)
            if len(there) < len(ready):
                raise DistributionError(
                    f"the cluster started none of two workers within {SECONDS_TO_START:g} s: it has {cpus} CPUs, of "
                    f"which {ray.available_resources().get('CPU', 0):g} are free"
                )
            seconds["actor_start"] = time.perf_counter() - start
            alone = _median_of(lambda: ray.get(actors[0].answer.remote(0)))
            seconds["call"] = alone
            if len(actors) > 1:
                both = _median_of(lambda: ray.get([actor.answer.remote(0) for actor in actors]))
                seconds["another_call"] = max(0.0, both - alone)
            # Copied, as the learner does with what comes.
            large = _median_of(lambda: ray.get(actors[0].array.remote()).copy(), WARMUP)
            seconds["byte"] = max(0.0, large - alone) / LARGE
            for actor in actors:
                ray.kill(actor)
        return crossings.measured(**seconds), cpus, has_more
    finally:
        cluster.close()


def _median_of(what: Callable[[], object], times: int = TIMES) -> float:
    """Of its seconds; the first few are not counted."""
    seconds: Sequence[float] = [_timed(what) for _ in range(times + WARMUP)]
    return statistics.median(seconds[WARMUP:])


def _timed(what: Callable[[], object]) -> float:
    start = time.perf_counter()
    what()
    return time.perf_counter() - start
