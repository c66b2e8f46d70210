"""A current folder full of a stranger's files: none of them is run, whatever its name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PLANTED = "open({marker!r}, 'a').write(__name__ + chr(10))\nraise SystemExit('planted')\n"
THIRD_PARTY = ("typer", "click", "rich", "yaml", "pydantic", "torch", "numpy", "transformers", "hftune_extra")


def started(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Python in that folder; hftune is found as it is by the tests, through no entry for the folder."""
    variables = {"PYTHONPATH": str(ROOT), "HFTUNE_CACHE": str(folder / ".cache"), **environment}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**{name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


# ---- modules ----


@pytest.fixture(scope="module")
def imported_by_python(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """What ``python -m`` imports before the package that it is given."""
    folder = tmp_path_factory.mktemp("empty")
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").write_text("import sys\nprint(*sys.modules)")
    (folder / "package" / "__main__.py").touch()
    return {name.partition(".")[0] for name in started(folder, "-m", "package").stdout.split()}


def plant(folder: Path, names: set[str]) -> Path:
    marker = folder / "imported.txt"
    for name in names:
        (folder / f"{name}.py").write_text(PLANTED.format(marker=str(marker)))
    return marker


@pytest.mark.parametrize("command", [("--version",), ("recipes", "ls"), ("--help",)], ids=" ".join)
def test_python_m_hftune_imports_nothing_of_the_current_folder(
    tmp_path: Path, imported_by_python: set[str], command: tuple[str, ...]
) -> None:
    names = set(sys.stdlib_module_names) - imported_by_python | set(THIRD_PARTY)
    assert {"typing", "__future__", "json", "re", "pathlib"} <= names and len(names) > 200
    marker = plant(tmp_path, names)
    done = started(tmp_path, "-m", "hftune", *command)
    assert not marker.exists(), marker.read_text()
    assert done.returncode == 0 and "hftune" in done.stdout + done.stderr, done.stderr


@pytest.mark.parametrize("how", ["flag", "variable"])
def test_under_a_safe_path_python_imports_nothing_of_the_current_folder(tmp_path: Path, how: str) -> None:
    marker = plant(tmp_path, set(sys.stdlib_module_names) | {"hftune"})
    flag, variables = (("-P",), {}) if how == "flag" else ((), {"PYTHONSAFEPATH": "1"})
    done = started(tmp_path, *flag, "-m", "hftune", "--version", **variables)
    assert not marker.exists() and done.returncode == 0, done.stderr


def test_importing_hftune_imports_nothing_else(tmp_path: Path) -> None:
    script = "import sys; before = set(sys.modules); import hftune; print(*sorted(set(sys.modules) - before))"
    assert started(tmp_path, "-c", script).stdout.split() == ["hftune"]


def test_a_folder_that_is_not_on_the_path_takes_no_other_entry_with_it(tmp_path: Path) -> None:
    """Of a current folder that was deleted Python puts nothing on the path."""
    gone = tmp_path / "gone"
    gone.mkdir()
    script = (
        "import os, subprocess, sys; os.rmdir(os.getcwd());"
        "sys.exit(subprocess.run([sys.executable, '-m', 'hftune', '--version']).returncode)"
    )
    done = started(gone, "-c", script, HFTUNE_CACHE=str(tmp_path))
    assert done.returncode == 0, done.stderr


# ---- git ----

PROGRAMS = """[core]
	repositoryformatversion = 0
	bare = false
	worktree = {tree}
	fsmonitor = {run}
	pager = {run}
	editor = {run}
	sshCommand = {run}
	hooksPath = {hooks}
[filter "evil"]
	clean = {run}
	smudge = {run}
	process = {run}
	required = true
[diff "evil"]
	textconv = {run}
	command = {run}
[credential]
	helper = "!{run}"
"""


def hostile_repository(folder: Path, where: str) -> Path:
    """A repository in which everything that git may run is a program that leaves a mark."""
    marker, script, repository = folder / "ran.txt", folder / "evil.sh", folder / where
    script.write_text(f"#!/bin/sh\ntouch {marker}\n")
    script.chmod(0o755)
    hooks = folder / "hooks"
    hooks.mkdir()
    for name in ("post-index-change", "fsmonitor-watchman", "reference-transaction"):
        (hooks / name).write_text(script.read_text())
        (hooks / name).chmod(0o755)
    (folder / ".gitattributes").write_text("*.txt filter=evil diff=evil\n")
    (folder / "rows.txt").write_text("1")
    tracked = folder / "tracked.md"
    tracked.write_text("1")
    name = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "core.hooksPath=/dev/null"]
    base = ["git", *name, f"--git-dir={repository}", f"--work-tree={folder}"]
    steps = (["init", "-q"], ["add", "-f", "tracked.md", "rows.txt"], ["commit", "-q", "-m", "one"])
    for step in steps:
        subprocess.run([*base, *step], cwd=folder, check=True, capture_output=True)
    (repository / "config").write_text(PROGRAMS.format(tree=folder, run=script, hooks=hooks))
    (folder / "rows.txt").write_text("2")  # git would have to look at it, through the filter
    return marker


@pytest.mark.parametrize("where", [".git", "."])
def test_describing_a_run_runs_nothing_from_a_git_configuration(here: Path, where: str) -> None:
    from hftune.runs.environment import describe

    marker = hostile_repository(here, where)
    found = describe(["hftune"])["git"]
    assert not marker.exists()
    # Plain HEAD, config, objects and refs make no checkout: a dataset can hold files of those names.
    assert found is None if where == "." else found["changed"] is True and len(found["commit"]) == 40
    # The repository is as dangerous as it is meant to be: git itself runs the program.
    variables = {"GIT_CEILING_DIRECTORIES": str(here.parent), "GIT_CONFIG_COUNT": "1"}
    variables |= {"GIT_CONFIG_KEY_0": "safe.bareRepository", "GIT_CONFIG_VALUE_0": "all"}
    subprocess.run(["git", "status"], env={**os.environ, **variables}, capture_output=True, check=False)
    assert marker.exists()


def _pipe(git: Path) -> None:
    os.mkfifo(git / "HEAD")


def _secret(git: Path) -> None:
    (git.parent / "secret").write_text("not for others")
    (git / "HEAD").write_text("ref: refs/../../secret\n")


def _endless(git: Path) -> None:
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "refs" / "heads" / "main").write_text("ref: refs/heads/main\n")


def _no_commit(git: Path) -> None:
    (git / "HEAD").write_text("<script>\n")


@pytest.mark.parametrize("make", [_pipe, _secret, _endless, _no_commit], ids=lambda make: make.__name__)
def test_a_broken_git_repository_is_ignored(tmp_path: Path, make: Callable[[Path], None]) -> None:
    from hftune.runs.environment import git_state

    (tmp_path / ".git").mkdir()
    make(tmp_path / ".git")
    assert git_state(tmp_path) is None


@pytest.mark.posix("needs symbolic links")
def test_no_file_of_a_repository_is_read_through_a_link(tmp_path: Path) -> None:
    from hftune.runs.environment import git_state

    (tmp_path / "private").write_text("0123456789" * 4)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").symlink_to(tmp_path / "private")
    assert git_state(tmp_path) is None


def test_folders_that_are_nested_deeply_take_no_memory() -> None:
    from hftune.runs.git import IndexEntry, Unknown, _tree

    deep = [b"%d/" % number + b"a/" * 2000 + b"x" for number in range(20)]
    with pytest.raises(Unknown, match="nested"):
        _tree([IndexEntry(name, 0, 0, 0o100644, 0, b"\0" * 20, False, True) for name in deep])


def test_an_index_of_hostile_names_is_not_followed(tmp_path: Path) -> None:
    from hftune.runs.git import Unknown, _read_index

    for name in (b"../outside", b"/etc/passwd", b"a/./b", b"a//b"):
        entry = (
            b"\0" * 24 + (0o100644).to_bytes(4, "big") + b"\0" * 12 + b"\0" * 20 + len(name).to_bytes(2, "big") + name
        )
        padded = entry + b"\0" * (8 - len(entry) % 8)
        with pytest.raises(Unknown):
            _read_index(b"DIRC" + (2).to_bytes(4, "big") + (1).to_bytes(4, "big") + padded + b"\0" * 20)
