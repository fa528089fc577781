"""A video file that is written picture by picture."""

from pathlib import Path
from typing import Any

import numpy as np

from hybridppo.errors import EnvError


class Video:
    """A video file; its length costs no memory.

    Args:
        path: the file, `.mp4`.
        fps: pictures per second.
    """

    def __init__(self, path: Path, fps: float) -> None:
        self._path, self._fps = path, fps
        self._shape: tuple[int, ...] = ()
        self._frames = 0
        self._writer: Any = None

    def add(self, picture: Any) -> None:
        """Write a picture, `uint8 [height, width, 3]`; all have the shape of the first.

        Raises:
            EnvError: if it is another array.
        """
        picture = np.asarray(picture)
        shape = self._shape or picture.shape
        if picture.dtype != np.uint8 or len(shape) != 3 or shape[2] != 3 or picture.shape != shape:
            wanted = list(self._shape) or "[height, width, 3]"
            raise EnvError(f"a picture must be uint8 {wanted}, got {picture.dtype} {list(picture.shape)}")
        if self._writer is None:
            self._shape = shape
            self._writer = self._begun()
        self._writer.send(np.ascontiguousarray(picture))
        self._frames += 1

    def _begun(self) -> Any:
        from imageio_ffmpeg import write_frames

        # Players need even sizes: a row or a column of black is added, and nothing is scaled.
        even = ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2"]
        height, width, _ = self._shape
        options = {"fps": self._fps, "quality": None, "macro_block_size": 1, "output_params": even}
        writer = write_frames(str(self._path), (width, height), ffmpeg_log_level="error", **options)
        next(writer)
        return writer

    def close(self) -> None:
        """Finish the file."""
        if self._writer is not None:
            self._writer.close()

    def require_whole(self) -> None:
        """Count the pictures in the file.

        Raises:
            OSError: if some are missing, as on a full disk.
        """
        from imageio_ffmpeg import count_frames_and_secs

        try:
            found, _ = count_frames_and_secs(str(self._path))
        except RuntimeError as error:  # it is no video
            raise OSError(str(error)) from error
        if found != self._frames:
            raise OSError(f"{found} of {self._frames} pictures were written: is the disk full?")
