"""``hftune recipes``: list, show, copy and check recipes.

hftune recipes ls
hftune recipes cp classify/reviews mine.yaml
hftune recipes cp slurm/train.sbatch
hftune recipes validate mine.yaml
hftune recipes schema --section train
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from hftune.cli import terminal
from hftune.cli.options import Json, command_group
from hftune.config.document import RecipeError
from hftune.config.section import schema, setting_rows
from hftune.config.shipped import STUDIES, find_launch_file, find_recipe, find_study, shipped_recipes, shipped_studies
from hftune.errors import HftuneError
from hftune.files import write_text
from hftune.recipe import Recipe, load_recipe, recipe_yaml

ALL = "all"

app = command_group("List, show, copy and check recipes.")

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="A shipped recipe, a YAML file, or a run directory.", show_default=False),
]


@app.command("ls")
def list_recipes(as_json: Json = False) -> None:
    """List the shipped recipes and studies with expected score and cost; when piped, each with its command alone."""
    entries = [*shipped_recipes(), *(replace(entry, name=f"{STUDIES}/{entry.name}") for entry in shipped_studies())]
    if as_json:
        terminal.show_json([{**asdict(entry), "path": str(entry.path)} for entry in entries])
        return
    shown = ("name", "expected", "cost") if terminal.out().is_terminal else ("name", "command")
    table = terminal.table("recipe", *shown[1:])
    table.columns[0].no_wrap = True
    for fields in map(asdict, entries):
        table.add_row(*(terminal.visible(fields[name]) for name in shown))
    terminal.out().print(table)


@app.command("show")
def show_recipe(
    name: Name,
    resolved: Annotated[bool, typer.Option("--resolved", help="Fill in every default.")] = False,
    as_json: Json = False,
) -> None:
    """Print a recipe as it is written, or with every default filled in."""
    study = _study_path(name)
    if study is not None:
        _show_study(study, resolved, as_json)
        return
    if as_json:
        terminal.show_json(load_recipe(name).model_dump(mode="json"))
        return
    path = find_recipe(name)
    terminal.say((recipe_yaml(load_recipe(name)) if resolved else _text(path)).rstrip("\n"))


@app.command("cp")
def copy_recipe(
    name: Name,
    destination: Annotated[
        Path | None,
        typer.Argument(metavar="DEST", help="A file or a folder; the current folder by default."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Copy a recipe to edit it, or a file for Slurm or accelerate (slurm/train.sbatch, accelerate/fsdp.yaml)."""
    other = find_launch_file(name)
    study = None if other else _study_path(name)
    source = other or study or find_recipe(name)
    target = destination or Path()
    if target.is_dir():
        target = target / source.name
    if target.exists() and not force:
        raise HftuneError(f"{target} exists already", hint="Name another file, or pass --force to replace it.")
    try:
        write_text(target, _text(source))
    except OSError as error:
        raise HftuneError(f"can't write {target}: {error.strerror}", hint="Name another place.") from error
    if other is not None:
        terminal.say(f"Copied to {target}. Its first lines show how it is used.")
        return
    command = "sweep" if study else f"{load_recipe(target).task.command} --recipe"
    terminal.say(f"Copied to {target}. Run it with: `hftune {command} {shlex.quote(str(target))}`")


@app.command("validate")
def validate_recipes(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME…|all]", help="Recipes, files or folders; all shipped recipes by default."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check recipes as a run would, and list all errors."""
    results = [_checked(name) for name in _expanded(names or [ALL])]
    if as_json:
        terminal.show_json(results)
    else:
        for result in results:
            if result["ok"]:
                terminal.say(f"ok      {result['recipe']}")
            else:
                terminal.say(f"wrong   {result['recipe']}", style="red")
                for problem in result["problems"]:
                    terminal.say(f"        {problem['text']}")
    if not all(result["ok"] for result in results):
        raise typer.Exit(HftuneError.exit_code)


@app.command("schema")
def show_schema(
    section: Annotated[
        str | None, typer.Option("--section", metavar="NAME", help="Only this section: task, data, model …")
    ] = None,
    as_json: Json = False,
) -> None:
    """List every setting with its meaning; as JSON schema for editors when piped or with --json."""
    if as_json or not sys.stdout.isatty():
        terminal.show_json(schema(Recipe, section))
        return
    table = terminal.table("setting", "kind", "takes", "default", "meaning")
    table.columns[0].no_wrap = True
    for row in setting_rows(Recipe, section):
        table.add_row(row.path, row.kind, row.expects, row.default, row.meaning)
    terminal.out().print(table)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise HftuneError(f"can't read {path}: {error}", hint="Name a readable UTF-8 file.") from error


def _expanded(names: list[str]) -> list[str]:
    """Names and files; ``all`` and folders become the recipes in them."""
    expanded: list[str] = []
    for name in names:
        folder = Path(name)
        if name == ALL:
            found = [entry.name for entry in shipped_recipes()]
            found += [f"{STUDIES}/{entry.name}" for entry in shipped_studies()]
        elif folder.is_dir() and not (folder / "recipe.yaml").is_file():
            found = [str(entry.path) for entry in shipped_recipes(folder)]
        else:
            found = [name]
        if not found:
            raise HftuneError(f"expected recipes in {name}, found none", hint="Name a folder with YAML recipes.")
        expanded.extend(found)
    return expanded


def _checked(name: str) -> dict[str, Any]:
    try:
        study = _study_path(name)
        if study is not None:
            from hftune.studies.plan import check
            from hftune.studies.request import read_plan

            check(read_plan(study))
        else:
            load_recipe(name)
    except RecipeError as error:
        problems = [{**asdict(problem), "text": str(problem)} for problem in error.problems]
        return {"recipe": name, "ok": False, "problems": problems}
    except HftuneError as error:
        problem = {"path": "", "message": error.message, "hint": error.hint, "source": "", "text": str(error)}
        return {"recipe": name, "ok": False, "problems": [problem]}
    return {"recipe": name, "ok": True, "problems": []}


def _study_path(name: str) -> Path | None:
    """The file of a study, shipped or not; None for a recipe. A study has a ``grid``."""
    if Path(name).is_file() and Path(name).suffix in (".yaml", ".yml"):
        from hftune.studies.request import read_values

        try:
            return Path(name) if "grid" in read_values(Path(name))[0] else None
        except RecipeError:
            return None  # the check of the recipe reports what is wrong with the file
    return find_study(name) if name.startswith(f"{STUDIES}/") else None


def _show_study(path: Path, resolved: bool, as_json: bool) -> None:
    from hftune.studies.request import plan_yaml, read_plan

    if as_json:
        terminal.show_json(read_plan(path).model_dump(mode="json"))
    else:
        terminal.say((plan_yaml(read_plan(path)) if resolved else _text(path)).rstrip("\n"))
