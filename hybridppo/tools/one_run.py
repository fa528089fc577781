"""The program of a run in its own process, which a parent starts: `python -m hybridppo.tools.one_run`.

The first line of the standard input is a `RunAsked` as JSON. When the input closes, because the parent stops the run or
dies, the run is saved and ends with 130.
"""

import base64
import json
import os
import signal
import sys
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle

from hybridppo.errors import HybridPPOError

EXIT_DONE, EXIT_ERROR, EXIT_STOPPED = 0, 1, 130
SECONDS_TO_WAIT = 60.0
"""The longest wait for another process that still trains in the run directory and is saving it."""


@dataclass(frozen=True)
class RunAsked:
    """The settings of a run."""

    run_dir: str
    env_id: str
    total_steps: int
    seed: int
    agent: str
    """The agent's name in the registry."""
    config: dict[str, Any]
    """The fields of the agent's configuration."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of `train`; a placement is a name or settings. `resume` gets the options that may change."""
    packed: str = ""
    """The function that makes the environment, if it has no id: by `pack` of `environments/pickling.py`, in Base64."""

    def to_line(self) -> str:
        """The settings as a line of JSON."""
        from hybridppo.run_directory.files import as_json

        return as_json(asdict(self), indent=None)


def main() -> int:
    """Train, or resume an existing run; the exit code."""
    asked = RunAsked(**json.loads(sys.stdin.readline()))
    threading.Thread(target=_stop_when_closed, daemon=True).start()
    # Imported after the thread has started, so that this process also ends if its parent dies during the import.
    from hybridppo.agents.registry import config_from_json
    from hybridppo.options import changeable_names
    from hybridppo.placements.by_name import placement_from_settings
    from hybridppo.resuming import resume
    from hybridppo.run_directory.lock import wait_until_free
    from hybridppo.training import train

    # Packed by the process that began this one.
    source = cloudpickle.loads(base64.b64decode(asked.packed))["source"] if asked.packed else None
    try:
        if (Path(asked.run_dir) / "config.json").exists():
            wait_until_free(Path(asked.run_dir), SECONDS_TO_WAIT)
            changes = {name: asked.options[name] for name in changeable_names() if name in asked.options}
            result = resume(
                asked.run_dir,
                env=source,
                total_steps=asked.total_steps,
                progress=False,
                on_interrupt="return",
                **changes,
            )
        else:
            placement = asked.options.get("placement", "auto")
            named = placement if isinstance(placement, str) else placement_from_settings(placement)
            result = train(
                asked.env_id if source is None else source,
                total_steps=asked.total_steps,
                seed=asked.seed,
                config=config_from_json(asked.agent, asked.config),
                run_dir=asked.run_dir,
                progress=False,
                on_interrupt="return",
                **{**asked.options, "placement": named},
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
