"""An evaluator's process: runs episodes with the parameters it receives, and sends back their returns.

`Beside` starts it as `python -m hybridppo.runners.evaluators.process ADDRESS`. It handles signals, errors and the end
of the trainer like a worker, and does not load torch.
"""

from dataclasses import fields
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from hybridppo.environments.registration import source_here
from hybridppo.runners.evaluation import Episodes
from hybridppo.runners.workers.process import main
from hybridppo.runners.workers.shared_arrays import SharedArrays
from hybridppo.system.interruption import Stopped
from hybridppo.system.seeds import seed_globals


def serve(connection: "Connection[Any, Any]") -> None:
    """Make the environments that the first message describes; then run an evaluation for each message."""
    connection.recv()  # the number of the worker: there is only one
    setup = cloudpickle.loads(connection.recv_bytes())
    setup["source"] = source_here(setup["source"], setup["options"].imports)
    episodes = Episodes(**{field.name: setup[field.name] for field in fields(Episodes)})
    seed_globals(episodes.seed, "making environments")
    environments = episodes.make()
    seed_globals(episodes.seed, "stepping environments")
    try:
        arrays = SharedArrays(setup["layout"], setup["path"])
        stop, steps = arrays["stop"], arrays["steps"]

        def is_told_to_stop() -> bool:
            steps[0] += 1  # shows the trainer that it does not hang
            return bool(stop[0])

        connection.send(("ready", None, None))
        while True:
            kind, parameters = connection.recv()
            if kind == "close":
                return
            try:
                evaluation = episodes.run(setup["form"].actor(parameters), environments, is_told_to_stop)
            except Stopped:
                connection.send(("done", None, 0.0))
            else:
                connection.send(("done", evaluation, 0.0))
    finally:
        environments.close()


if __name__ == "__main__":
    main(serve)
