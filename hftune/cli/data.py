"""``hftune data``: which datasets there are, what is in one, what is wrong with it, and how the embedded ones are made.

hftune data ls
hftune data peek reviews --split validation --rows 3
hftune data peek births --set task.num_spans=2
hftune data peek wiki.txt --recipe pretrain/births-real
hftune data check reviews --max-length 64
hftune data make reviews --output my_reviews --seed 7
"""

from __future__ import annotations

import shlex
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hftune.cli import options, terminal
from hftune.cli.findings import show_check
from hftune.cli.flags import Given, command_class, resolve_settings, settings_command
from hftune.cli.options import Json
from hftune.cli.pretrain import OBJECTIVES
from hftune.cli.texts import check_documents, cut, peek_documents, peek_questions, split_of
from hftune.errors import HftuneError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hftune.config import Recipe
    from hftune.config.data import LabeledData
    from hftune.data.checks import Lengths
    from hftune.data.corpus import EmbeddedCorpus
    from hftune.data.embedded import Embedded
    from hftune.data.splits import Splits

app = typer.Typer(add_completion=False, no_args_is_help=True, help="List, look at, check and make datasets.")

PEEKS = {"span": peek_documents, "answer": peek_questions}
"""How data of a task that has no labels is shown."""

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME|PATH",
        help="An embedded name, a Hub id, a folder of split files, or one file.",
        show_default=False,
    ),
]
TaskKind = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="classify|span|answer",
        help="What the rows are for; the recipe's, or span for an embedded text and classify for all else, where "
        "not given.",
        show_default=False,
    ),
]


@app.command("ls")
def list_datasets(as_json: Json = False) -> None:
    """List the embedded datasets, which need no network."""
    from rich.table import Table

    from hftune.data import DATASETS
    from hftune.data.corpus import CORPORA

    known: list[Embedded | EmbeddedCorpus] = [*DATASETS.values(), *CORPORA.values()]
    entries = [
        {"name": entry.name, "about": entry.about, "rows": entry.row_counts(), "folder": str(entry.folder)}
        for entry in known
    ]
    if as_json:
        terminal.show_json(entries)
        return
    table = Table("dataset", "rows", "what", box=None, pad_edge=False, header_style="bold")
    for entry in known:
        rows = ", ".join(f"{split} {count:,}" for split, count in entry.row_counts().items())
        table.add_row(entry.name, rows, entry.about)
    terminal.out().print(table)


Split = Annotated[str | None, typer.Option("--split", metavar="SPLIT", help="train (the default), validation or test.")]
RowCount = Annotated[
    int | None, typer.Option("--rows", metavar="N", help="How many rows, from the first on; 5 by default.", min=1)
]


@settings_command(
    {
        "name": Name,
        "split": Split,
        "rows": RowCount,
        "task": TaskKind,
        "recipe": options.RecipeName,
        "sets": options.Set,
        "as_json": Json,
    },
    takes_arguments=True,
    sections=("data",),
)
def peek(values: dict[str, Any], given: Given) -> None:
    """Print rows of a dataset as a run sees them: texts, label names, what was decided on the way.

    Documents are shown as pretraining cuts them, with « » around the span that is taken out.
    """
    name, recipe, as_json = values["name"], values["recipe"], values["as_json"]
    split, rows = values["split"] or "train", values["rows"] or 5
    kind = _task_of(name, values["task"], recipe)
    resolved = options.resolve(
        recipe,
        values["sets"],
        {**resolve_settings(given, kind), "data.dataset_name": name},
        task=kind,
        default=OBJECTIVES["span"].for_text(name) if kind == "span" else None,
    )
    if kind in PEEKS:
        PEEKS[kind](resolved, split, rows, as_json)
        return
    splits = _load(resolved)
    chosen = split_of(splits.named, split, name)
    shown = [_named_label(row, splits.labels) for row in chosen.select(range(min(rows, len(chosen))))]
    sizes = {part: len(dataset) for part, dataset in splits.named.items()}
    if as_json:
        terminal.show_json(
            {"source": splits.source, "split": split, "labels": splits.labels, "sizes": sizes}
            | {"fingerprints": splits.fingerprints, "notes": splits.notes, "rows": shown}
        )
        return
    terminal.say(f"{splits.source}: " + ", ".join(f"{part} {size:,}" for part, size in sizes.items()), style="bold")
    terminal.say("labels: " + cut(", ".join(splits.labels)))
    for text in splits.notes:
        terminal.say(text, style="dim")
    for number, row in enumerate(shown, start=1):
        label = "(no label)" if row["label"] is None else row["label"]
        terminal.say(f"\n{split} {number}: {cut(label)}", style="bold")
        terminal.say(cut(row["text"]))
        if "text_pair" in row:
            terminal.say("───", style="dim")
            terminal.say(cut(row["text_pair"]))


app.command("peek", cls=command_class(peek))(peek)


@settings_command({"name": Name, "sets": options.Set, "as_json": Json}, takes_arguments=True, sections=("data",))
def check_dataset(values: dict[str, Any], given: Given) -> None:
    """Count labels and lengths; find duplicates, leakage between splits, and texts with two labels.

    --model counts that model's tokens; words are counted by default.
    """
    from dataclasses import asdict

    name, as_json = values["name"], values["as_json"]
    kind = _task_of(name, None)
    settings = resolve_settings(given, kind)
    model = settings.get("model.model_name_or_path")
    if kind == "span" and model is not None:
        raise HftuneError(
            f"--model counts the tokens of labeled rows; {name} is plain text, whose characters are counted",
            hint="leave --model out",
        )
    recipe = options.resolve(None, values["sets"], {**settings, "data.dataset_name": name}, task=kind)
    if kind == "span":
        check_documents(recipe, as_json)
        return
    with terminal.err().status("Reading and comparing texts …"):
        from hftune.data.checks import check

        splits = _load(recipe)
        found = check(
            splits, _section(recipe).max_seq_length, _token_counter(recipe, splits) if model is not None else None
        )
    if as_json:
        terminal.show_json(asdict(found))
    else:
        show_check(found)


app.command("check", cls=command_class(check_dataset))(check_dataset)


@app.command("make")
def make_dataset(
    name: Annotated[str, typer.Argument(metavar="NAME", help="An embedded dataset.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Where the files go; a folder NAME here where not given."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", metavar="N", help="Another seed makes other rows; the embedded one where not given."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Generate an embedded dataset: the shipped files again, or others like them with another seed."""
    from hftune.data.generators import DEFAULT_SEED, GENERATORS
    from hftune.data.wording import closest, listing

    if name not in GENERATORS:
        raise HftuneError(
            f"there is no generator {name!r}; generators are {listing(GENERATORS)}",
            hint=closest(name, list(GENERATORS)) + "Name one of them.",
        )
    folder = output or Path(name)
    drawn = DEFAULT_SEED if seed is None else seed
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise HftuneError(f"{folder} is already there", hint="Name another folder with --output.")
        with terminal.err().status(f"Making {name} …"):
            _generate(GENERATORS[name], folder, drawn)
    except OSError as error:
        raise HftuneError(
            f"can't write {folder}: {error.strerror}", hint="Name another folder with --output."
        ) from error
    files = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    if as_json:
        terminal.show_json({"name": name, "seed": drawn, "folder": str(folder), "files": files})
        return
    for file, size in files.items():
        terminal.say(f"{size:>12,} bytes  {file}")
    # A bare folder name could be taken for an embedded dataset's.
    path = folder if folder.is_absolute() else f"./{folder}"
    terminal.say(f"Made {name} with seed {drawn}. Look at it with: hftune data peek {shlex.quote(str(path))}")


def _task_of(name: str, asked: str | None, recipe: str | None = None) -> str:
    """What the rows are for: as asked, as the recipe says, else pretraining for an embedded text or labels."""
    from hftune.config import load_recipe
    from hftune.data.corpus import CORPORA

    if asked is None and recipe is not None:
        asked = load_recipe(recipe).task.kind
    if asked is not None and asked not in ("classify", *PEEKS):
        raise HftuneError(
            f"expected a task of kind classify, {', '.join(PEEKS)}; got {asked!r}",
            hint="write --task span for plain text, --task answer for questions",
        )
    return asked or ("span" if name in CORPORA else "classify")


def _load(recipe: Recipe) -> Splits:
    from hftune.data import load
    from hftune.quiet import quiet_libraries

    quiet_libraries()
    return load(_section(recipe))


def _section(recipe: Recipe) -> LabeledData:
    from hftune.config.data import LabeledData
    from hftune.config.section import expect

    return expect(recipe.data, LabeledData)


def _named_label(row: dict[str, Any], labels: Sequence[str]) -> dict[str, Any]:
    return {**row, "label": None if row["label"] < 0 else labels[row["label"]]}


def _token_counter(recipe: Recipe, splits: Splits) -> Lengths:
    """Counts tokens as the model's own tokenizer makes them, special tokens among them."""
    from hftune.models.load import load_tokenizer

    texts = [*splits.train["text"], *(splits.train["text_pair"] if splits.is_pair else [])]
    tokenizer = load_tokenizer(recipe.model, texts)

    def count(firsts: Sequence[str], seconds: Sequence[str] | None) -> list[int]:
        pairs = None if seconds is None else list(seconds)
        return [len(ids) for ids in tokenizer(list(firsts), pairs, verbose=False)["input_ids"]]

    return count


def _generate(generator: Any, folder: Path, seed: int) -> None:
    """Make the files beside their place and move them there when all are written."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        inner = staged / folder.name
        generator(inner, seed)
        if folder.exists():
            folder.rmdir()
        inner.rename(folder)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
