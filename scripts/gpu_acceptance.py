"""Everything that a machine with a GPU can say of this checkout: cases, tests, measurements, in one report.

    python scripts/gpu_acceptance.py                     # hours, with the measurements; go on by running it again
    python scripts/gpu_acceptance.py --without-measurements

The cases are the library's own (`python -m hybridppo.tools.diagnosis.acceptance`), and need no checkout.
"""

import argparse
import sys
from pathlib import Path

from hybridppo.errors import HybridPPOError
from hybridppo.tools.diagnosis.acceptance import report as reports
from hybridppo.tools.diagnosis.acceptance.running import Stage, cases_at_once, run

ROOT = Path(__file__).resolve().parents[1]
PYTEST = (sys.executable, "-m", "pytest", "-q")

MEASUREMENTS = {
    "benchmarks/placements.py": ("every placement, by width of network, eager and recorded",),
    "benchmarks/crossing.py": ("publishes, rollouts' way, and overlap against the longer of sampling and learning",),
    "benchmarks/auto.py": ("what auto chooses, against every candidate",),
    "benchmarks/compiled_gpu.py": ("compiled environments on the device",),
    "benchmarks/tensors.py": (
        "environments of tensors", "--device", "cuda", "--num-envs", "256,4096,65536",
    ),
    "scripts/compare_placements.py": ("the article's table, and DDPG's",),
    "benchmarks/pictures.py": ("the pictures of the results",),
    "benchmarks/tables.py": ("the tables of the results",),
}  # fmt: skip
"""What `make bench-gpu` measures: what each script is for, and its options."""


def stages(measurements: bool) -> list[Stage]:
    """What a checkout adds to the cases."""
    found = [
        Stage("tests/gpu", "the tests that need a GPU", (*PYTEST, "-m", "gpu"), ROOT),
        Stage("tests/default", "the ordinary tests", PYTEST, ROOT, needs_gpu=False),
    ]
    if measurements:  # each by itself, so that a run goes on after the last that is done
        found += [
            Stage(f"measured/{Path(script).stem}", what, (sys.executable, script, *options), ROOT)
            for script, (what, *options) in MEASUREMENTS.items()
        ]
    return found


def main(arguments: list[str] | None = None) -> int:
    """0 where nothing failed, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "acceptance", help="folder (%(default)s)")
    parser.add_argument("--device", default="cuda", help="to learn on (%(default)s)")
    parser.add_argument("--only", default="", help="cases and stages whose names contain this")
    parser.add_argument("--jobs", type=int, default=cases_at_once(), help="cases at once (%(default)s)")
    parser.add_argument("--without-measurements", action="store_true", help="the cases and the tests alone")
    options = parser.parse_args(arguments)
    try:
        report = run(
            options.output,
            device=options.device,
            only=options.only,
            jobs=options.jobs,
            stages=stages(not options.without_measurements),
        )
    except HybridPPOError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(reports.in_a_line(report))
    print(f"report: {options.output / reports.MARKDOWN_NAME}")
    return int(reports.counts(report)["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
