"""The built wheel in an environment of its own, run from an empty folder: recipes and data come along.

The run is the one of the suite that starts as a user starts it, every process anew: its paths have an umlaut, and its
locale has no UTF-8.
"""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from tiny import QUICK

ROOT = Path(__file__).parent.parent
WITHOUT_UTF8 = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    # -P and no PYTHONPATH: nothing of the checkout may be found by accident.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    result = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, encoding="utf-8", check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that has the wheel, and takes only the dependencies from this one."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    (wheel,) = folder.glob("hftune-*.whl")
    home = folder / "environment"
    venv.create(home, with_pip=False, symlinks=sys.platform != "win32")
    packages = site_packages(home)
    # A path file adds the folder of the dependencies but none of the path files in it: an editable hftune stays away.
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n", encoding="utf-8")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    return home / "Scripts" / "python.exe" if sys.platform == "win32" else home / "bin" / "python"


def site_packages(home: Path) -> Path:
    (found,) = [home / "Lib" / "site-packages"] if sys.platform == "win32" else home.glob("lib/python*/site-packages")
    return found


def test_the_wheel_works_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    where = run(installed, "-P", "-c", "import hftune; print(hftune.__file__)", cwd=tmp_path).strip()
    assert Path(where).is_relative_to(installed.parent.parent)
    listed = json.loads(run(installed, "-P", "-m", "hftune", "recipes", "ls", "--json", cwd=tmp_path))
    assert "classify/reviews" in {entry["name"] for entry in listed}
    here = tmp_path / "dätä"
    here.mkdir()
    command = ("--recipe", "classify/reviews", "--max-train-samples", "50", "--output", here / "läuf", *QUICK, "--json")
    metrics = json.loads(run(installed, "-P", "-m", "hftune", "classify", *command, cwd=here, **WITHOUT_UTF8))
    assert metrics["verified"] is True
    assert metrics["data"]["rows"] == {"train": 50, "validation": 500, "test": 500}
    assert (here / "läuf" / "report.html").stat().st_size > 10_000
    assert (here / "läuf" / "model" / "model.safetensors").is_file()


def test_the_wheel_carries_what_the_checkout_has(installed: Path) -> None:
    packages = site_packages(installed.parent.parent)
    assets = packages / "hftune" / "_assets"
    for folder in ("recipes", "data"):
        here = {path.relative_to(ROOT / folder) for path in (ROOT / folder).rglob("*") if path.is_file()}
        there = {path.relative_to(assets / folder) for path in (assets / folder).rglob("*") if path.is_file()}
        assert here == there
    assert (assets / "accelerate_config.yaml").read_bytes() == (ROOT / "accelerate_config.yaml").read_bytes()


def test_type_checkers_find_the_annotations(installed: Path, tmp_path: Path) -> None:
    """PEP 561: without py.typed, a type checker takes every name of an installed package for Any."""
    assert (site_packages(installed.parent.parent) / "hftune" / "py.typed").is_file()
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", tmp_path, ROOT, cwd=tmp_path)
    (path,) = tmp_path.glob("hftune-*.tar.gz")
    with tarfile.open(path) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"hftune/py.typed", "Makefile", "constraints.txt", "tests/lower_bounds.py"} <= inside
