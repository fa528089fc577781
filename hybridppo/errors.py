"""Every error that the library raises on purpose. The message says what, the value seen, what to do."""


class HybridPPOError(Exception):
    """Base of the library's own errors; the command line prints the message and exits with 1."""


class ConfigurationError(HybridPPOError, ValueError):
    """A setting that cannot work: names the field and the rule."""


class DeviceError(HybridPPOError, RuntimeError):
    """A device that was asked for is not there, or a copy between devices went wrong."""


class EnvError(HybridPPOError, RuntimeError):
    """An environment that cannot be made, or whose spaces or reset mode are not supported."""


class CheckpointError(HybridPPOError, RuntimeError):
    """A checkpoint that is missing, damaged, or made for something else."""


class RunDirectoryError(HybridPPOError, RuntimeError):
    """A run directory that exists already, or is not one."""
