"""Every promise of docs/security.md names a test that exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NAMED = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


def promises(text: str) -> dict[str, list[tuple[str, str]]]:
    """The tests of each promise; headings of the table are no promises."""
    section = text.partition("## The promises\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.*?) ?\|$", section, re.MULTILINE)
    assert len(rows) == len(re.findall(r"^\s*\|", section, re.MULTILINE)), "a row of the table is not well formed"
    found = {promise: NAMED.findall(tests) for promise, tests in rows if not promise.startswith("**")}
    for heading in ("promise", "---"):
        del found[heading]
    return found


@cache
def names_in(file: str) -> set[str]:
    path = ROOT / "tests" / file
    if not path.is_file():
        return set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def faults(text: str) -> list[str]:
    return [
        f"{promise}: {'no test' if not tests else 'no such test'}"
        for promise, tests in promises(text).items()
        if not tests or any(test not in names_in(file) for file, test in tests)
    ]


def security() -> str:
    return (ROOT / "docs" / "security.md").read_text(encoding="utf-8")


def test_every_promise_has_a_test_that_exists() -> None:
    assert len(promises(security())) > 35
    assert faults(security()) == []


@pytest.mark.parametrize(
    "row",
    [
        "| A promise that nobody tests | |",
        "| A promise with prose for a test | it was tried |",
        "| A promise with a test that is gone | `test_hostile_text.py::test_that_is_gone` |",
        "| A promise with a file that is gone | `test_gone.py::test_that_is_gone` |",
        "| One test is there and one is not | `test_docs.py::test_there_are_recipes`, `test_a.py::test_b` |",
    ],
)
def test_a_promise_without_one_is_found_out(row: str) -> None:
    with_it = security().replace("| **Nothing runs** | |", f"| **Nothing runs** | |\n{row}")
    assert len(faults(with_it)) == 1 and faults(with_it)[0].startswith(row[2:20])


@pytest.mark.parametrize("row", ["|A promise without spaces| |", "| A promise in one cell |"])
def test_a_row_that_is_not_well_formed_is_found_out(row: str) -> None:
    with pytest.raises(AssertionError, match="well formed"):
        faults(security().replace("| **Nothing runs** | |", f"| **Nothing runs** | |\n{row}"))


def test_every_file_of_attacks_has_a_promise() -> None:
    """A file of hostile tests that no promise names would be forgotten when it is deleted."""
    named = {test for tests in promises(security()).values() for test in tests}
    for file in sorted(path.name for path in (ROOT / "tests").glob("test_hostile_*.py")):
        assert any(file == one for one, _ in named), f"no promise names a test of {file}"


def test_how_to_report_is_written_down() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert "Report a vulnerability" in text and "docs/security.md" in text and not re.search(r"\w@\w", text)
