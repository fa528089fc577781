"""Registers the second device where it is imported: in the processes of learners, by the option `imports`."""

import second_device

second_device.announce()
second_device.register()
