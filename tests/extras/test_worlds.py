"""Environments of other packages, as `make worlds` tries them, and the table that it writes."""

import sys
from pathlib import Path
from typing import Any

import pytest

from scripts import worlds

ALL: dict[str, Any] = {name: {"is_good": True, "words": "yes"} for name in worlds.COLUMNS}


def row(package: str, found: dict[str, Any], **values: Any) -> dict[str, Any]:
    versions = {package: "1.2", "numpy": "2.3"}
    return {
        "package": package,
        "env": "a:B-v0",
        "older": False,
        "date": "2030-01-02",
        "versions": versions,
        "found": found,
    } | values


@pytest.mark.extras
@pytest.mark.parametrize("package", ["lbforaging", "mo-gymnasium", "econgym"])
def test_an_environment_of_another_package_passes_every_step(package: str, tmp_path: Path) -> None:
    pytest.importorskip(package.replace("-", "_"))
    (world,) = (each for each in worlds.WORLDS if each.package == package)
    found = worlds.try_all(world, tmp_path, sys.executable, 300)
    assert {step: each["words"] for step, each in found.items() if not each["is_good"]} == {}
    assert [*found] == [*worlds.COLUMNS]
    assert found["plain loop"]["words"] == "same returns"


@pytest.mark.extras
def test_a_process_that_takes_too_long_or_dies_costs_one_row(tmp_path: Path) -> None:
    found = worlds.try_all(worlds.WORLDS[0], tmp_path, sys.executable, 0.1)
    assert found["check"]["words"].startswith("it took more than 0 s")
    found = worlds.try_all(
        worlds.World("none", "none"), tmp_path, sys.executable, 60
    )  # which the process does not know
    assert found["check"]["words"].startswith("its process ended with exit code 1")


def test_a_step_that_fails_ends_a_trial_with_the_reason(tmp_path: Path) -> None:
    world = worlds.World("none", "Nowhere-v0")
    begun, (step, found) = worlds.step_through(world, tmp_path, ["check", "train"])
    assert begun == ("check", {"begun": True})
    assert step == "check"
    assert not found["is_good"]
    assert "Nowhere" in found["words"]


def test_the_table_counts_packages_and_names_what_failed() -> None:
    bad = ALL | {"resume": {"is_good": False, "words": "it differs\nTraceback"}}
    rows = [row("a", ALL), row("b", bad, older=True), row("b", ALL), row("c", {}, problem="cannot be installed")]
    text = worlds.in_page(f"before\n{worlds.START}\nold\n{worlds.END}\nafter\n", rows)
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old\n" not in text
    assert "| a 1.2 | `a:B-v0` | yes | yes | yes | yes | yes | yes | yes |" in text
    assert "| b 1.2 * | `a:B-v0` | yes | yes | yes | yes | yes | yes | **no** |" in text
    assert "3 packages, of which 1 pass every column." in text
    assert "Older versions (`*`): numpy 2.3." in text
    assert "- b 1.2 *, resume: it differs\n- c 1.2: cannot be installed" in text


def test_returns_may_differ_by_the_rounding_of_rewards() -> None:
    assert worlds.are_close([[-249.4718223810196]], [[-249.47182148022546]])
    assert not worlds.are_close([[1.0, 2.0]], [[1.0]])
    assert not worlds.are_close([[1.0]], [[1.001]])
