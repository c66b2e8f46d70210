"""``hftune recipes``: what is shipped, what a recipe holds, and whether it is in order.

hftune recipes ls
hftune recipes cp classify/reviews mine.yaml
hftune recipes validate mine.yaml
hftune recipes schema --section train
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from hftune.cli import terminal
from hftune.cli.options import Json
from hftune.config import (
    RecipeError,
    catalogue,
    load_recipe,
    recipe_path,
    recipe_yaml,
    schema,
    setting_rows,
)
from hftune.errors import HftuneError
from hftune.files import write_text

ALL = "all"

app = typer.Typer(add_completion=False, no_args_is_help=True, help="List, show, copy and check recipes.")

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="A shipped recipe, a YAML file, or a run directory.", show_default=False),
]


@app.command("ls")
def list_recipes(as_json: Json = False) -> None:
    """List the shipped recipes with their expected score and cost."""
    from rich.table import Table

    entries = catalogue()
    if as_json:
        terminal.show_json([{**asdict(entry), "path": str(entry.path)} for entry in entries])
        return
    table = Table("recipe", "expected", "cost", box=None, pad_edge=False, header_style="bold")
    table.columns[0].no_wrap = True
    for entry in entries:
        table.add_row(*(terminal.visible(text) for text in (entry.name, entry.expected, entry.cost)))
    terminal.out().print(table)


@app.command("show")
def show_recipe(
    name: Name,
    resolved: Annotated[bool, typer.Option("--resolved", help="With every default filled in.")] = False,
    as_json: Json = False,
) -> None:
    """Print a recipe as it is written, or as it is understood."""
    if as_json:
        terminal.show_json(load_recipe(name).model_dump(mode="json"))
        return
    path = recipe_path(name)
    terminal.say((recipe_yaml(load_recipe(name)) if resolved else _text(path)).rstrip("\n"))


@app.command("cp")
def copy_recipe(
    name: Name,
    destination: Annotated[
        Path | None,
        typer.Argument(metavar="DEST", help="A file or a folder; the current folder where not given."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is already there.")] = False,
) -> None:
    """Copy a recipe to edit it."""
    source = recipe_path(name)
    target = destination or Path()
    if target.is_dir():
        target = target / source.name
    if target.exists() and not force:
        raise HftuneError(f"{target} is already there", hint="Name another file, or pass --force to replace it.")
    try:
        write_text(target, _text(source))
    except OSError as error:
        raise HftuneError(f"can't write {target}: {error.strerror}", hint="Name another place.") from error
    kind = load_recipe(target).task.kind
    terminal.say(f"Copied to {target}. Run it with: hftune {kind} --recipe {shlex.quote(str(target))}")


@app.command("validate")
def validate_recipes(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME…|all]", help="Recipes, files or folders; all shipped recipes where not given."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check recipes as a run would, and list everything that is wrong."""
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
    from rich.table import Table

    if as_json or not sys.stdout.isatty():
        terminal.show_json(schema(section))
        return
    table = Table("setting", "kind", "takes", "default", "meaning", box=None, pad_edge=False, header_style="bold")
    table.columns[0].no_wrap = True
    for row in setting_rows(section):
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
            found = [entry.name for entry in catalogue()]
        elif folder.is_dir() and not (folder / "recipe.yaml").is_file():
            found = [str(entry.path) for entry in catalogue(folder)]
        else:
            found = [name]
        if not found:
            raise HftuneError(f"expected recipes in {name}, found none", hint="Name a folder with YAML recipes.")
        expanded.extend(found)
    return expanded


def _checked(name: str) -> dict[str, Any]:
    try:
        load_recipe(name)
    except RecipeError as error:
        problems = [{**asdict(problem), "text": str(problem)} for problem in error.problems]
        return {"recipe": name, "ok": False, "problems": problems}
    return {"recipe": name, "ok": True, "problems": []}
