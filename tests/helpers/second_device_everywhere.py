"""Registers the second device when imported: learners' processes import it by the option `imports`."""

import second_device

second_device.announce()
second_device.register()
