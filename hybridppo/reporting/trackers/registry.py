"""The library's trackers by name. A new one is a file and a line here."""

import importlib
import importlib.util
from typing import TYPE_CHECKING

from hybridppo.errors import ConfigurationError, pip_install, shown
from hybridppo.names import meant_by

if TYPE_CHECKING:
    from hybridppo.reporting.trackers.base import Tracker

TRACKERS = {
    "tensorboard": "TensorBoard",
    "wandb": "Wandb",
    "trackio": "Trackio",
    "mlflow": "MLflow",
}
"""Classes by name. The file, the package that it needs, and the extra that installs it have the same name."""


def names_of_trackers(track: object) -> list[str]:
    """The names in a text that separates them by commas.

    Raises:
        ConfigurationError: if there is no tracker of a name.
    """
    if not isinstance(track, str):
        raise ConfigurationError(f"track must name trackers, with commas between, got {shown(track)}")
    names = [name.strip() for name in track.split(",") if name.strip()]
    for name in names:
        if name not in TRACKERS:
            near = meant_by(name, TRACKERS)
            hint = f"; did you mean {near}?" if near else ""
            raise ConfigurationError(f"track must name some of {', '.join(TRACKERS)}, got {shown(name)}{hint}")
    return list(dict.fromkeys(names))


def tracker_of(name: str) -> "Tracker":
    """The tracker of this name, with its defaults.

    Raises:
        ConfigurationError: if its package is not installed.
    """
    if importlib.util.find_spec(name) is None:
        raise ConfigurationError(f"tracking with {name} needs a package: {pip_install(name)}")
    module = importlib.import_module(f"hybridppo.reporting.trackers.{name}")
    made: Tracker = getattr(module, TRACKERS[name])()
    return made
