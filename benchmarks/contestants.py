"""One turn of `speed.py` or `field.py`, in a fresh process. Its result is a line of JSON on stdout.

python benchmarks/contestants.py stable-baselines3 small
python benchmarks/contestants.py stable-baselines3 lander --vector subproc --num-envs 4
python benchmarks/contestants.py skrl small
python benchmarks/contestants.py hybridppo small --placement cpu
python benchmarks/contestants.py hybridppo lander --num-workers 2
"""

import argparse
import json
from dataclasses import replace
from typing import Any

import peers
from cases import ALL_CASES, Case, count_processor_time, our_config, run_ours
from peers import sb3


def run_hybridppo(
    case: Case,
    placement: str,
    learning_device: str,
    num_workers: int | None = None,
    vectorization: Any = "auto",
    **changes: Any,
) -> dict[str, Any]:
    """A turn of this library; `changes` apply to the configuration."""
    import hybridppo
    from hybridppo.auto.auto import PlacementOptions
    from hybridppo.placements.placement import TAKE_DEVICES

    try:
        chosen = PlacementOptions(
            placement, learning_device=learning_device if placement in TAKE_DEVICES else None
        ).resolve()
    except hybridppo.HybridPPOError as error:
        return {"left_out": str(error)}
    config = replace(our_config(case), **changes)
    return run_ours(case, case.env_id, config, placement=chosen, num_workers=num_workers, vectorization=vectorization)


def main() -> None:
    """Run one turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contestant", choices=("hybridppo", "stable-baselines3", "skrl"))
    parser.add_argument("case", choices=ALL_CASES)
    parser.add_argument("--placement", default="cpu", help="of hybridppo")
    parser.add_argument("--learning-device", default="cuda", help="of placements with two devices")
    parser.add_argument("--precision", default="fp32", help="of hybridppo")
    parser.add_argument("--compiled-updates", action="store_true", help="of hybridppo")
    parser.add_argument("--torch-threads", type=int, default=1, help="of hybridppo")
    parser.add_argument("--num-workers", type=int, help="of hybridppo")
    parser.add_argument("--vectorization", default="auto", help="of hybridppo")
    parser.add_argument("--device", default="cpu", help="of stable-baselines3 and skrl")
    parser.add_argument("--vector", choices=("dummy", "subproc"), default="dummy", help="of stable-baselines3")
    parser.add_argument("--num-envs", type=int, help="the same work with this many environments")
    parser.add_argument("--iterations", type=int, help="counted iterations instead of the case's own")
    parser.add_argument("--processor-time", action="store_true", help="count seconds on the processor, of all threads")
    arguments = parser.parse_args()
    if arguments.processor_time:
        count_processor_time()
    case = replace(ALL_CASES[arguments.case], device=arguments.device)
    if arguments.num_envs is not None:
        case = case.with_envs(arguments.num_envs)
    if arguments.iterations is not None:
        case = replace(case, iterations=arguments.iterations)
    if arguments.contestant == "hybridppo":
        changes = {name: getattr(arguments, name) for name in ("precision", "compiled_updates", "torch_threads")}
        settings = arguments.placement, arguments.learning_device, arguments.num_workers, arguments.vectorization
        result = run_hybridppo(case, *settings, **changes)
    elif arguments.contestant == "stable-baselines3":
        result = sb3.run(case, vector=arguments.vector)
    else:
        result = peers.run("skrl", case)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
