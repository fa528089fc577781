"""What is promised of a GPU, as cases by name. `tests/test_gpu_cases.py` runs them."""

from gpu_cases.behaviour import behaviour_cases
from gpu_cases.case import Case
from gpu_cases.kinds import kind_cases
from gpu_cases.on_device import device_cases
from gpu_cases.policies import policy_cases
from gpu_cases.results import result_cases
from gpu_cases.tensors import tensor_cases


def catalogue() -> dict[str, Case]:
    groups = result_cases(), behaviour_cases(), kind_cases(), policy_cases(), tensor_cases(), device_cases()
    return {case.name: case for cases in groups for case in cases}
