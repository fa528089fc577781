"""A process that evaluates: runs episodes with the parameters it receives, and sends back their returns.

`Evaluator` starts it as `python -m hybridppo.runners.evaluator_process ADDRESS`. It handles signals, errors and the end
of the trainer like a worker, and does not load torch.
"""

from dataclasses import fields
from typing import Any

from hybridppo.environments.registration import source_here
from hybridppo.runners.evaluation import Episodes
from hybridppo.runners.processes import Trainer, main
from hybridppo.system.seeds import seed_globals
from hybridppo.system.signals import Stopped


def serve(trainer: Trainer) -> None:
    """Make the environments; then run an evaluation for each message. Counted steps show that the process works."""
    setup, steps, stop = trainer.setup, trainer.heartbeat, trainer.arrays["stop"]
    setup["source"] = source_here(setup["source"], setup["options"].imports)
    episodes = Episodes(**{field.name: setup[field.name] for field in fields(Episodes)})
    seed_globals(episodes.seed, "making environments")
    environments = episodes.make()
    seed_globals(episodes.seed, "stepping environments")

    def should_stop() -> bool:
        steps[0] += 1
        return bool(stop[0])

    def evaluate(kind: str, parameters: Any) -> tuple[Any, float]:
        try:
            return episodes.run(setup["form"].actor(parameters), environments, should_stop), 0.0
        except Stopped:
            return None, 0.0

    try:
        trainer.answer(evaluate)
    finally:
        environments.close()


if __name__ == "__main__":
    main(serve)
