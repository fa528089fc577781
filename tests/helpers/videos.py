"""The pictures of a video."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest


def frames_of(path: Path) -> list[Any]:
    """Arrays `uint8 [height, width, 3]`."""
    reader = pytest.importorskip("imageio_ffmpeg").read_frames(str(path))
    width, height = next(reader)["size"]
    return [np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in reader]
