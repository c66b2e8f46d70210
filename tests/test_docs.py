"""What the documents claim about tree, commands, settings and tables, compared with the code."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import generated_docs
import pytest
import yaml
from typer.core import TyperOption

from hftune.cli import commands as cli
from hftune.cli.commands import ALIASES, COMMANDS
from hftune.cli.options import GIVEN, NOT_SETTINGS, SettingsCommand, resolve_settings
from hftune.config.shipped import shipped_recipes
from hftune.config.training_arguments import argument_fields
from hftune.methods.peft import config_fields, trainable_types
from hftune.pipeline.names import is_switch, known_names
from hftune.recipe import Recipe, load_recipe
from hftune.studies.plan import check
from hftune.studies.request import read_plan
from hftune.training.settings import REFUSED, REMOVED, TrainSection

ROOT = Path(__file__).parent.parent
PATTERNS = ("*.md", "docs/*.md", "data/*/README.md", "benchmarks/*.md", "recipes/**/*.yaml", "recipes/**/*.sbatch")
PAGES = sorted(page for pattern in PATTERNS for page in ROOT.glob(pattern) if page.name != "CHANGELOG.md")
"""Documents of today; the CHANGELOG has the names of its time."""
TRAINS = ("train", "classify", "joint", "pretrain", "finetune", "distill", "boolq")
OTHER_TOOLS = {
    *("--cpu", "--multi_gpu", "--num_processes", "--num_machines", "--config_file", "--machine_rank"),
    *("--main_process_ip", "--nproc_per_node", "--kill-on-bad-exit", "--requeue", "--signal", "--nodes"),
    *("--gpus-per-node", "--folder", "--version", "--debug", "--help", "--help-all"),
}
"""Flags of accelerate, torchrun, Slurm and our scripts, and those of every command."""


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    return listed.stdout.split() if listed.returncode == 0 else []


def test_the_readme_is_one_screen() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 90


def test_the_files_in_architecture_are_the_files_on_disk() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    block = re.search(r"## Files\n+```\n(.*?)```", page, re.DOTALL)
    assert block is not None
    listed = []
    for line in block[1].splitlines():
        name = line.split()[0]
        listed.append(f"hftune/{name}" if line.startswith("  ") else name)
    assert len(listed) > 15
    for name in listed:
        assert (ROOT / name).exists(), f"ARCHITECTURE.md lists {name}, which is not there"
    folders = {f"{path.name}/" for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}
    folders &= {f"{name.split('/')[0]}/" for name in tracked()} or folders
    packages = {f"hftune/{path.parent.name}/" for path in (ROOT / "hftune").glob("*/__init__.py")}
    assert folders | packages <= set(listed), (folders | packages) - set(listed)


def test_the_table_of_commands_has_every_command() -> None:
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `hftune (\w+)", page, re.MULTILINE)) == set(COMMANDS)


def test_pre_commit_runs_what_make_check_runs() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    target = re.search(r"^check:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert target is not None
    commands = [line.removeprefix("\t$(BIN)/") for line in target[1].splitlines()]
    assert [hook["entry"] for repo in config["repos"] for hook in repo["hooks"]] == commands


@pytest.mark.parametrize("entry", shipped_recipes(), ids=lambda entry: entry.name)
def test_a_recipe_opens_with_the_command_that_runs_it(entry: object) -> None:
    words = entry.command.split()
    assert words[0] == "hftune" and words[1] in COMMANDS
    assert entry.name in words, f"{entry.name} says: {entry.command}"
    assert entry.expected and entry.cost


def test_every_setting_of_a_method_is_in_its_document() -> None:
    text = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    settings = {name for section in Recipe.section_kinds("method").values() for name in section.model_fields} - {"kind"}
    assert len(settings) >= 10
    assert {name for name in settings if f"`{name}`" not in text} == set()


def test_the_tables_of_methods_are_those_that_are_generated() -> None:
    page = generated_docs.PAGE.read_text(encoding="utf-8")
    assert page == generated_docs.filled(page), "run python tests/generated_docs.py"


def test_there_are_recipes() -> None:
    assert len(shipped_recipes()) >= 4


def test_tables_and_config_kinds_are_the_same() -> None:
    from hftune.methods import METHODS
    from hftune.tasks import TASKS

    assert set(TASKS) == set(Recipe.section_kinds("task"))
    assert set(METHODS) == set(Recipe.section_kinds("method"))


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


def code_of(page: Path) -> Iterator[str]:
    """The lines of a page that can be commands: of its code blocks, or of its comments."""
    text = page.read_text(encoding="utf-8")
    if page.suffix != ".md":
        text = "\n".join(line.lstrip("# ") for line in text.splitlines() if line.startswith("#"))
        yield from text.replace("\\\n", " ").splitlines()
        return
    for block in re.findall(r"^ *```\w*\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL):
        yield from block.replace("\\\n", " ").splitlines()
    yield from re.findall(r"^    (?=\S)(.*hftune .*)$", text, re.MULTILINE)


def commands_of(page: Path) -> Iterator[list[str]]:
    """What is typed after ``hftune``, also behind a launcher."""
    for line in code_of(page):
        try:
            words = shlex.split(line.strip().removeprefix("$ "), comments=True)
        except ValueError:
            continue  # a line of Python or of output
        while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
            del words[0]
        starts = [place for place, word in enumerate(words) if word in ("hftune", "recipes/slurm/train.sbatch")]
        if not starts or (starts[0] and words[0] not in ("accelerate", "torchrun", "sbatch", "python")):
            continue
        if page.suffix != ".md" and words[starts[0] + 1] not in COMMANDS:
            continue  # a sentence of a comment
        ends = [place for place, word in enumerate(words) if word in ("|", ">", "&&")]
        yield [word for word in words[starts[0] + 1 : min(ends, default=None)] if word != "…"]


def python_of(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


ALL_COMMANDS = sorted({(page.relative_to(ROOT).as_posix(), *words) for page in PAGES for words in commands_of(page)})


@pytest.fixture
def no_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that commands of the documents name; commands that train stop at the recipe."""
    from hftune.cli import boolq, sweep, train

    (tmp_path / "runs" / "a" / "checkpoints" / "checkpoint-500").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "recipe.yaml").write_text("train: {seed: 1}\n", encoding="utf-8")
    (tmp_path / "my.yaml").write_text("train: {seed: 1}\n", encoding="utf-8")
    page = (ROOT / "docs" / "studies.md").read_text(encoding="utf-8")
    (study,) = re.findall(r"## A study file\n```yaml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "mine.yaml").write_text(study, encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    def resolve(typed: Any, *, recipe: str | None, default: str | None, suits_all: bool = False) -> None:
        train._recipe(typed, recipe, default, suits_all=suits_all)

    for module in (train, boolq):
        monkeypatch.setattr(module, "run_training", resolve)
    for name in ("_train", "_estimate"):  # the plan is made and checked
        monkeypatch.setattr(sweep, name, lambda *given: None)
    return tmp_path


@pytest.mark.parametrize("line", ALL_COMMANDS, ids=" ".join)
def test_every_command_in_the_documents_can_be_typed(line: tuple[str, ...], no_work: Path) -> None:
    """It names a command, its flags are known, and their values and the recipe are in order."""
    _, name, *typed = line
    if name.startswith("-"):
        return
    for place, word in enumerate(typed):
        if word in ("--data_dir", "--data-dir"):
            (no_work / typed[place + 1]).mkdir(parents=True, exist_ok=True)
    command: Any = cli.load_command(ALIASES.get(name, name))
    arguments = typed if name in cli.WITH_LAUNCHER_ARGUMENTS else [cli.dashed(word) for word in typed]
    while hasattr(command, "commands"):
        if not arguments:
            return
        command = command.commands[arguments.pop(0)]
    with command.make_context(name, arguments) as context:
        if name in (*TRAINS, "sweep"):
            command.invoke(context)
        elif isinstance(command, SettingsCommand):
            resolve_settings(context.meta[GIVEN], None)


def every_flag() -> set[str]:
    def of(command: Any) -> Iterator[str]:
        for option in command.params:
            yield from (*option.opts, *option.secondary_opts) if isinstance(option, TyperOption) else ()
        for child in getattr(command, "commands", {}).values():
            yield from of(child)

    switches = {f"no_{name}" for name in known_names(None) if is_switch(name, None)}
    settings = {f"--{name.replace('_', '-')}" for name in {*known_names(None), *NOT_SETTINGS, *switches}}
    return settings | {flag for name in COMMANDS for flag in of(cli.load_command(name))}


def test_every_flag_in_the_documents_exists() -> None:
    known = every_flag()
    unknown = {
        f"{page.name}: {flag}"
        for page in PAGES
        for code in re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8"))
        for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", code)
        if flag not in OTHER_TOOLS and cli.dashed(flag) not in known
    }
    assert unknown == set()


def test_every_setting_in_the_documents_exists() -> None:
    known = {*Recipe.all_settings(), *(f"train.{name}" for name in argument_fields())}
    known |= {f"method.{name}" for kind in trainable_types() for name in config_fields(kind)}
    key = re.compile(rf"(?<![\w./-])(?:{'|'.join(Recipe.section_names())})\.[a-z_0-9]+(?!\.?[\w/(-])")
    files = re.compile(r".*\.(?:txt|csv|tsv|jsonl?|py|md|yaml|onnx|safetensors|parquet|sbatch|gz)")
    pages = [*PAGES, ROOT / "accelerate_config.yaml"]
    named = {(page.name, found) for page in pages for found in key.findall(page.read_text(encoding="utf-8"))}
    assert len(named) > 100
    code = {"task.build_model", "task.load_data", "task.load_tokenizer", "task.prepare", "task.evaluate", "task.save"}
    unknown = {(page, found) for page, found in named if found not in known | code and not files.fullmatch(found)}
    assert unknown == set()


def test_yaml_in_the_documents_is_in_order(no_work: Path) -> None:
    for page in sorted((ROOT / "docs").glob("*.md")):
        for block in re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            snippet = no_work / "snippet.yaml"
            snippet.write_text(block, encoding="utf-8")
            if yaml.safe_load(block).keys() <= set(Recipe.section_names()):
                load_recipe(snippet)
            else:
                check(read_plan(snippet))


def test_python_in_the_documents_names_what_there_is() -> None:
    """Imports work, and keywords of ``hftune.train`` are settings."""
    own = {"task", "data", "recipe", "seeds", "output_dir", "overwrite", "resume", "dry_run", "progress"}
    for page in PAGES:
        if page.name == "python.md":
            continue  # its blocks are run
        for block in python_of(page) if page.suffix == ".md" else ():
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom) and node.module == "hftune":
                    assert all(hasattr(importlib.import_module("hftune"), name.name) for name in node.names), page
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "hftune.train":
                    names = {keyword.arg for keyword in node.keywords if keyword.arg}
                    assert names <= {*known_names(None), *own}, page


def test_refused_and_removed_fields_are_in_the_document() -> None:
    text = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert [name for name in REMOVED if f"`--{name}" not in text] == []
    assert [name for name in REFUSED if f"`{name}`" not in text] == []
    assert f"{len(TrainSection.model_fields.keys() & argument_fields().keys())} fields" in text
