"""The version of the library, read by setup.cfg without importing torch."""

__version__ = "0.1.0"
