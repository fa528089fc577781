"""A run in a process of its own, told by whoever began it: `python -m hybridppo.tools.one_run`.

The first line of the standard input is a `RunAsked` as JSON. When that input is closed, by a parent that wants the run
stopped or by its death, the run is saved and ends with 130.
"""

import json
import os
import signal
import sys
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hybridppo.errors import HybridPPOError

EXIT_DONE, EXIT_ERROR, EXIT_STOPPED = 0, 1, 130


@dataclass(frozen=True)
class RunAsked:
    """What is trained, where it is kept, and by which settings."""

    run_dir: str
    env_id: str
    total_steps: int
    seed: int
    agent: str
    """As in the registry of agents."""
    config: dict[str, Any]
    """The fields of the agent's configuration."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of `train`: those that a run may change, when it is gone on with, are taken then, too."""

    def to_line(self) -> str:
        """As a line of JSON."""
        return json.dumps(asdict(self)) + "\n"


def main() -> int:
    """Train, or go on with what is there; the exit code."""
    asked = RunAsked(**json.loads(sys.stdin.readline()))
    threading.Thread(target=_stop_when_closed, daemon=True).start()
    # After the thread is there: a parent that dies while all this is imported ends it, too.
    from hybridppo.agents.registry import config_from_json
    from hybridppo.options import changeable_names
    from hybridppo.resuming import resume
    from hybridppo.training import train

    try:
        if (Path(asked.run_dir) / "config.json").exists():
            changes = {name: asked.options[name] for name in changeable_names() if name in asked.options}
            result = resume(
                asked.run_dir, total_steps=asked.total_steps, progress=False, on_interrupt="return", **changes
            )
        else:
            result = train(
                asked.env_id,
                total_steps=asked.total_steps,
                seed=asked.seed,
                config=config_from_json(asked.agent, asked.config),
                run_dir=asked.run_dir,
                progress=False,
                on_interrupt="return",
                **asked.options,
            )
    except HybridPPOError as error:
        print(error, file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:  # before training had begun
        return EXIT_STOPPED
    return EXIT_STOPPED if result.interrupted else EXIT_DONE


def _stop_when_closed() -> None:
    descriptor = sys.stdin.fileno()
    while os.read(descriptor, 1024):
        pass
    signal.raise_signal(signal.SIGINT)


if __name__ == "__main__":
    sys.exit(main())
