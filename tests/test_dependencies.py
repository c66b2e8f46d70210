"""The bounds of pyproject.toml: every dependency has one, and the tested versions of constraints.txt are within."""

from __future__ import annotations

import tomllib
from pathlib import Path

import lower_bounds
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    parts = [line.partition("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, _, version in parts}


def test_the_tested_versions_are_within_the_bounds() -> None:
    versions = pinned()
    extras = PROJECT["optional-dependencies"].values()
    requirements = [
        Requirement(text) for text in [*PROJECT["dependencies"], *(one for extra in extras for one in extra)]
    ]
    requirements = [one for one in requirements if one.name != PROJECT["name"]]
    assert len(requirements) > 30
    for one in requirements:
        assert one.specifier.contains(versions[canonicalize_name(one.name)]), one


def test_the_lower_bounds_are_those_of_the_dependencies_and_the_extras(tmp_path: Path) -> None:
    bounds = lower_bounds.lower_bounds()
    assert {"torch", "transformers", "optuna", "onnx", "pytest", "mypy"} <= bounds.keys()
    assert PROJECT["name"] not in bounds
    written = tmp_path / "pyproject.toml"
    text = '[project]\nname = "x"\ndependencies = [{}]\n[project.optional-dependencies]\nmore = ["x[y]", "b>=2.1,<3"]'
    written.write_text(text.format('"a>=1.0"'), encoding="utf-8")
    assert lower_bounds.lower_bounds(written) == {"a": "1.0", "b": "2.1"}
    for wrong, output in (('"a"', "'a'"), ('"a<2"', "'a<2'"), ('"b>=2.0"', "two lower bounds")):
        written.write_text(text.format(wrong), encoding="utf-8")
        with pytest.raises(SystemExit, match=output):
            lower_bounds.lower_bounds(written)


def test_the_supported_versions_of_python_agree() -> None:
    named = {text.rpartition(" ")[2] for text in PROJECT["classifiers"] if "Python :: 3." in text}
    assert named == {"3.11", "3.12", "3.13"} and PROJECT["requires-python"] == ">=3.11"
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    assert all(f'"{version}"' in workflow for version in named)
