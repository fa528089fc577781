"""All cases, by name, in the order in which they are run."""

from hybridppo.tools.diagnosis.acceptance.behaviour import behaviour_cases
from hybridppo.tools.diagnosis.acceptance.case import Case
from hybridppo.tools.diagnosis.acceptance.kinds import kind_cases
from hybridppo.tools.diagnosis.acceptance.on_device import device_cases
from hybridppo.tools.diagnosis.acceptance.results import result_cases
from hybridppo.tools.diagnosis.acceptance.tensors import tensor_cases


def catalogue() -> dict[str, Case]:
    """Every case; the first are the most telling."""
    rooms = result_cases(), behaviour_cases(), kind_cases(), tensor_cases(), device_cases()
    return {case.name: case for cases in rooms for case in cases}
