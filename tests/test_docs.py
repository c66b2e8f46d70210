"""What the documents claim about tree, commands and tables, held against them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import generated_docs
import pytest

from hftune.cli import COMMANDS
from hftune.config import catalogue
from hftune.config.kinds import section_kinds

ROOT = Path(__file__).parent.parent


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    return listed.stdout.split() if listed.returncode == 0 else []


def readme() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_tree_in_the_readme_is_the_tree_on_disk() -> None:
    block = re.search(r"## What is where\n+```\n(.*?)```", readme(), re.DOTALL)
    assert block is not None
    listed = []
    for line in block[1].splitlines():
        name = line.split()[0]
        listed.append(f"hftune/{name}" if line.startswith("  ") else name)
    assert len(listed) > 15
    for name in listed:
        assert (ROOT / name).exists(), f"the README lists {name}, which is not there"
    folders = {f"{path.name}/" for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}
    folders &= {f"{name.split('/')[0]}/" for name in tracked()} or folders
    packages = {f"hftune/{path.parent.name}/" for path in (ROOT / "hftune").glob("*/__init__.py")}
    assert folders | packages <= set(listed), (folders | packages) - set(listed)


def test_every_command_is_in_the_readme_and_the_other_way_round() -> None:
    named = set(re.findall(r"^\| `hftune (\w+)", readme(), re.MULTILINE))
    assert named == set(COMMANDS)


@pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: entry.name)
def test_a_recipe_opens_with_the_command_that_runs_it(entry: object) -> None:
    words = entry.command.split()
    assert words[0] == "hftune" and words[1] in COMMANDS
    assert entry.name in words, f"{entry.name} says: {entry.command}"
    assert entry.expected and entry.cost


def test_every_setting_of_a_method_is_in_its_document() -> None:
    text = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    settings = {name for section in section_kinds("method").values() for name in section.model_fields} - {"kind"}
    assert len(settings) >= 10
    assert {name for name in settings if f"`{name}`" not in text} == set()


def test_the_tables_of_methods_are_those_that_are_generated() -> None:
    page = generated_docs.PAGE.read_text(encoding="utf-8")
    assert page == generated_docs.filled(page), "run python tests/generated_docs.py"


def test_there_are_recipes() -> None:
    assert len(catalogue()) >= 4


def test_tables_and_config_kinds_are_the_same() -> None:
    from hftune.methods import METHODS
    from hftune.tasks import TASKS

    assert set(TASKS) == set(section_kinds("task"))
    assert set(METHODS) == set(section_kinds("method"))


def test_links_in_documents_lead_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    assert len(pages) > 5
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+?)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_picture_is_shown_on_a_page() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    shown = "".join(page.read_text(encoding="utf-8") for page in pages)
    pictures = [path.name for path in (ROOT / "docs").glob("*.png")]
    assert pictures and [name for name in pictures if f"{name})" not in shown] == []


def test_no_path_of_one_machine_is_in_the_tree() -> None:
    for name in tracked():
        path = ROOT / name
        if path.suffix in (".py", ".md", ".yaml", ".toml", ".txt", ".j2", ".css") and path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            assert not re.search(r"/(root|work)/", text), name
