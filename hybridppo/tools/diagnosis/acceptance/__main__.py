"""Run the acceptance: `python -m hybridppo.tools.diagnosis.acceptance --output acceptance`."""

import argparse
import sys
from pathlib import Path

from hybridppo.errors import HybridPPOError
from hybridppo.run_directory.lines import as_json
from hybridppo.tools.diagnosis.acceptance import report as reports
from hybridppo.tools.diagnosis.acceptance.catalogue import catalogue
from hybridppo.tools.diagnosis.acceptance.running import cases_at_once, in_this_process, run


def main(arguments: list[str] | None = None) -> int:
    """0 where nothing failed, else 1."""
    parser = argparse.ArgumentParser(prog="python -m hybridppo.tools.diagnosis.acceptance", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("acceptance"), help="folder of the report (%(default)s)")
    parser.add_argument("--device", default="cuda", help="to learn on; cpu stands in for one (%(default)s)")
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument(
        "--jobs", type=int, default=cases_at_once(), help="cases at once, of which each has a process (%(default)s)"
    )
    parser.add_argument(
        "--list", action="store_true", help="say which cases there are (with --only, of those), and run none"
    )
    parser.add_argument("--case", help=argparse.SUPPRESS)  # what each case's own process is started with
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.list:
        found = [case for case in catalogue().values() if options.only in case.name]
        print(*(f"{case.name}: {case.what}" for case in found), sep="\n")
        return 0
    if options.case is not None:
        outcome = in_this_process(catalogue()[options.case], options.device)
        options.answer.write_text(as_json(outcome.to_json()))
        return 0
    try:
        report = run(options.output, device=options.device, only=options.only, jobs=options.jobs)
    except HybridPPOError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(reports.in_a_line(report))
    print(f"report: {options.output / reports.MARKDOWN_NAME}")
    return int(reports.counts(report)["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
