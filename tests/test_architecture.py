"""The rules of ARCHITECTURE.md that a machine can check: who imports whom, file and function size, lazy imports."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "hftune"

# Lowest first, as in ARCHITECTURE.md: a module imports its own row and those above it here, no exceptions.
ORDER: list[set[str]] = [
    {
        *("errors", "files", "sanitize", "cache", "progress"),
        *("pickles", "portability", "child_process", "machine"),
    },
    {"config"},
    {"data"},
    {"models"},
    {"methods"},
    {"evaluation"},
    {"training"},
    {"runs"},
    {"tasks"},
    {"recipe"},
    {"pipeline", "hub", "studies"},
    {"lab"},
    {"cli", "api"},
]
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}
HEAVY = {"torch", "transformers", "datasets", "sklearn", "scipy", "matplotlib", "peft", "evaluate", "accelerate"}
LIGHT = {"cli", "config", "recipe", *ORDER[0], "__init__", "__main__"}
"""Parts whose modules, and all that they import, must come without what is heavy."""
BANNED_NAMES = {"utils.py", "helpers.py", "common.py"}
LONGEST_FILE, LONGEST_FUNCTION = 500, 80


def modules() -> list[Path]:
    found = sorted(PACKAGE.rglob("*.py"))
    assert len(found) > 60, "the package was not found"
    return found


def part(path: Path) -> str:
    """errors.py → errors, data/load.py → data."""
    inside = path.relative_to(PACKAGE)
    return inside.parts[0].removesuffix(".py")


def imports(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """Imported names, and whether the import runs when the module is imported."""
    inside = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module]
            if node.module == "hftune":
                names = [f"hftune.{alias.name}" for alias in node.names]
        for name in names:
            yield name, id(node) not in inside


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down(path: Path) -> None:
    mine = part(path)
    if mine in ("__init__", "__main__"):
        return
    assert mine in LEVEL, f"{mine} has no place in the order: add it to ORDER and to ARCHITECTURE.md"
    for name, _ in imports(parsed(path)):
        package, _, rest = name.partition(".")
        theirs = rest.partition(".")[0]
        if package == "hftune" and theirs in LEVEL:  # else a public name of hftune/__init__.py
            assert LEVEL[theirs] <= LEVEL[mine], f"{path.relative_to(PACKAGE)} may not import {name}"


def test_published_models_stand_alone() -> None:
    folders = [folder for folder in (PACKAGE / "models").iterdir() if folder.is_dir() and folder.name != "__pycache__"]
    assert folders
    for path in (path for folder in folders for path in folder.glob("*.py")):
        for name, _ in imports(parsed(path)):
            top = name.split(".")[0]
            assert top != "hftune", f"{path} is copied into Hub repos and may not import {name}"


def files_of(name: str) -> Iterator[Path]:
    """The files that run when ``hftune.a.b`` is imported, which may also be the name b in the module a."""
    folder = PACKAGE
    for part_of_name in name.split(".")[1:]:
        if (folder / f"{part_of_name}.py").is_file():
            yield folder / f"{part_of_name}.py"
            return
        folder = folder / part_of_name
        if not (folder / "__init__.py").is_file():
            return
        yield folder / "__init__.py"


def loaded_with(path: Path) -> set[Path]:
    """A module and every module of hftune that is imported with it."""
    seen, todo = set[Path](), [path]
    while todo:
        one = todo.pop()
        if one not in seen:
            seen.add(one)
            wanted = [name for name, at_import in imports(parsed(one)) if at_import and name.startswith("hftune.")]
            todo += [found for name in wanted for found in files_of(name)]
    return seen


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_light_modules_import_nothing_heavy(path: Path) -> None:
    """Nor does anything that is imported with them: recipes read the settings of methods, whose peft is heavy."""
    if part(path) not in LIGHT:
        return
    for one in loaded_with(path):
        for name, at_import in imports(parsed(one)):
            assert not (at_import and name.split(".")[0] in HEAVY), f"{path.name}: {one} imports {name} at module level"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_house_style(path: Path) -> None:
    assert path.name not in BANNED_NAMES
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LONGEST_FILE, f"{path} holds more than one thing"
    tree = parsed(path)
    assert ast.get_docstring(tree), f"{path} does not say what it is for"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < LONGEST_FUNCTION, f"{path.name}: {node.name} is too long"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            assert part(path) == "cli" or path.stem == "verify", f"{path.name} prints; only cli/ writes to the terminal"


def test_pipeline_names_no_axis_entry() -> None:
    text = (PACKAGE / "pipeline" / "train.py").read_text(encoding="utf-8")
    words = {"classif", "bert", "mingpt", "reviews", "boolq", "births", "lora", "prefix", "joint"}
    assert not [word for word in words if word in text.lower()]
