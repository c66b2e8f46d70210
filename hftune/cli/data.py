"""``hftune data``: list datasets, show examples, check for problems, and generate the embedded ones.

hftune data ls
hftune data peek reviews --split validation --rows 3
hftune data peek births --set task.num_spans=2
hftune data peek wiki.txt --recipe pretrain/births-real
hftune data check reviews --max-length 64
hftune data make reviews --output my_reviews --seed 7
"""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hftune.cli import terminal
from hftune.cli.options import (
    RUN,
    Given,
    Json,
    RecipeName,
    Set,
    command_group,
    option,
    settings_command,
)
from hftune.cli.train import OBJECTIVES
from hftune.errors import HftuneError, did_you_mean, listing
from hftune.files import new_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hftune.data.checks import Check, Lengths
    from hftune.data.locate import Embedded
    from hftune.data.settings import LabeledData
    from hftune.data.splits import Splits
    from hftune.recipe import Recipe

LABELED = re.compile("(label|target)[-_]column|task[-_]name")
"""Settings that only make sense for labeled rows, so that they decide what the data is."""

app = command_group("List, show, check and make datasets.")

_NAME = "An embedded name, a Hub id, a folder of split files, or one file."
_TASK = "Read the data as labeled rows (classify), plain text (span) or questions (answer); recognized by default."
Name = Annotated[str, typer.Argument(metavar="NAME|PATH", help=_NAME, show_default=False)]
TaskKind = Annotated[str | None, option(RUN, "classify|span|answer", _TASK, "--task")]
Split = Annotated[str | None, option(RUN, "SPLIT", "train (the default), validation or test.", "--split")]
RowCount = Annotated[int | None, option(RUN, "N", "Number of rows, from the first; 5 by default.", "--rows", min=1)]


@app.command("ls")
def list_datasets(as_json: Json = False) -> None:
    """List the embedded datasets, which need no network."""
    from hftune.data.locate import CORPORA, DATASETS

    known: list[Embedded] = [*DATASETS.values(), *CORPORA.values()]
    entries = [
        {"name": entry.name, "about": entry.about, "rows": entry.row_counts(), "folder": str(entry.folder)}
        for entry in known
    ]
    if as_json:
        terminal.show_json(entries)
        return
    table = terminal.table("dataset", "rows", "what")
    for entry in known:
        rows = ", ".join(f"{split} {count:,}" for split, count in entry.row_counts().items())
        table.add_row(entry.name, rows, entry.about)
    terminal.out().print(table)


def _task(values: Mapping[str, Any], given: Given) -> str:
    return _task_of(values["name"], values.get("task"), values.get("recipe"), _stated(given, values.get("sets")))


def _stated(settings: Mapping[str, Any], sets: Sequence[str] | None) -> dict[str, Any]:
    """The settings that were given as flags or with ``--set``, by their paths."""
    assigned = (one.partition("=") for one in sets or ())
    return {**settings, **{name.strip(): value for name, _, value in assigned}}


@settings_command(task=_task, takes=("data", "task", "model", "train.seed"))
def peek(
    settings: dict[str, Any],
    name: Name,
    split: Split = None,
    rows: RowCount = None,
    task: TaskKind = None,
    recipe: RecipeName = None,
    sets: Set = None,
    as_json: Json = False,
) -> None:
    """Print examples of a dataset as a run reads them, with label names and notes.

    Documents are shown as pretraining truncates them, with « » around the masked span.
    """
    from hftune.pipeline.request import resolve_recipe

    kind = _task_of(name, task, recipe, _stated(settings, sets))
    default = OBJECTIVES["span"].for_text(name) if kind == "span" else None
    settings["data.dataset_name"] = name
    resolved = resolve_recipe(recipe or default, settings, sets or (), task=kind)
    show = PEEKS.get(kind, peek_labeled)
    show(resolved, split or "train", rows or 5, as_json)


app.command("peek", cls=vars(peek)["command_class"])(peek)


@settings_command(task=_task, takes=("data", "model"))
def check_dataset(
    settings: dict[str, Any], name: Name, task: TaskKind = None, sets: Set = None, as_json: Json = False
) -> None:
    """Count labels and lengths; find duplicates, leakage between splits, and texts with two labels.

    --model counts that model's tokens; words are counted by default.
    """
    from dataclasses import asdict

    from hftune.pipeline.request import resolve_recipe

    kind = _task_of(name, task, None, _stated(settings, sets))
    model = settings.get("model.model_name_or_path")
    if kind in CHECKS and model is not None:
        raise HftuneError(
            f"--model counts the tokens of labeled rows; {name} is read as plain text or questions (--task {kind})",
            hint="leave --model out",
        )
    recipe = resolve_recipe(None, {**settings, "data.dataset_name": name}, sets or (), task=kind)
    if kind in CHECKS:
        CHECKS[kind](recipe, as_json)
        return
    with terminal.err().status("Reading and comparing texts …"):
        from hftune.config.section import expect
        from hftune.data.checks import check
        from hftune.data.load import load
        from hftune.data.settings import LabeledData
        from hftune.progress import quiet_datasets, quiet_libraries

        (quiet_datasets if model is None else quiet_libraries)()
        section = expect(recipe.data, LabeledData)
        splits = load(section)
        found = check(splits, section.max_seq_length, _token_counter(recipe, splits) if model is not None else None)
    if as_json:
        terminal.show_json(asdict(found) | {"notes": splits.notes})
    else:
        for text in splits.notes:
            terminal.say(text, style="dim")
        show_check(found)


app.command("check", cls=vars(check_dataset)["command_class"])(check_dataset)


_FOLDER = "Output folder; ./NAME by default."
_SEED = "Random seed; that of the embedded dataset by default."


@app.command("make")
def make_dataset(
    name: Annotated[str, typer.Argument(metavar="NAME", help="An embedded dataset.", show_default=False)],
    output: Annotated[Path | None, option(RUN, "DIR", _FOLDER, "--output", "-o")] = None,
    seed: Annotated[int | None, option(RUN, "N", _SEED, "--seed")] = None,
    as_json: Json = False,
) -> None:
    """Generate an embedded dataset: the shipped files, or similar ones with another seed."""
    from hftune.data.generators import DEFAULT_SEED, GENERATORS, generate

    if name not in GENERATORS:
        raise HftuneError(
            f"there is no generator {name!r}; generators are {listing(GENERATORS)}",
            hint=did_you_mean(name, GENERATORS, "Name one of them."),
        )
    folder = output or Path(name)
    drawn = DEFAULT_SEED if seed is None else seed
    with terminal.err().status(f"Making {name} …"), new_folder(folder) as staged:
        generate(name, staged, drawn)
    files = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    if as_json:
        terminal.show_json({"name": name, "seed": drawn, "folder": str(folder), "files": files})
        return
    for file, size in files.items():
        terminal.say(f"{size:>12,} bytes  {file}")
    # A bare folder name could be the name of an embedded dataset.
    path = folder if folder.is_absolute() else f"./{folder}"
    terminal.say(f"Made {name} with seed {drawn}. Show it with: `hftune data peek {shlex.quote(str(path))}`")


def _task_of(name: str, asked: str | None, recipe: str | None, stated: Mapping[str, Any]) -> str:
    """The task of the rows: --task, else the recipe's task, else what the file or folder is recognized as."""
    from hftune.data.locate import CORPORA
    from hftune.data.recognize import recognize
    from hftune.recipe import load_recipe

    if asked is None and recipe is not None:
        asked = load_recipe(recipe).task.kind
    if asked is not None and asked not in ("classify", *PEEKS):
        raise HftuneError(
            f"expected a task of kind classify, {', '.join(PEEKS)}; got {asked!r}",
            hint="write --task span for plain text, --task answer for questions",
        )
    if asked is not None:
        return asked
    kind = recognize(name, stated.get("data.delimiter"), stated.get("data.sheet_name"))
    if kind != "questions" and name not in CORPORA and any(LABELED.search(setting) for setting in stated):
        kind = "labeled"
    if kind is None:
        raise HftuneError(
            f"{name} is not recognized as labeled rows, plain text or questions: no column has a usual name",
            hint="add --label-column NAME and --text-column NAME for labeled rows, --task span for plain text, "
            "--task answer for questions",
        )
    return {"labeled": "classify", "corpus": "span", "questions": "answer"}[kind]


def _token_counter(recipe: Recipe, splits: Splits) -> Lengths:
    """A function that counts the tokens of texts with the model's tokenizer, special tokens included."""
    from hftune.models.load import load_tokenizer

    texts = [*splits.train["text"], *(splits.train["text_pair"] if splits.is_pair else [])]
    tokenizer = load_tokenizer(recipe.model, texts)

    def count(firsts: Sequence[str], seconds: Sequence[str] | None) -> list[int]:
        pairs = None if seconds is None else list(seconds)
        return [len(ids) for ids in tokenizer(list(firsts), pairs, verbose=False)["input_ids"]]

    return count


# ---- what peek and check print: labeled rows, documents with their spans, questions ----

SHOWN_TEXT, SHOWN_LABELS, BAR = 600, 20, 30
INCOMPLETE = "only the rows that have a text and a label; a run refuses the others, see the error below"
OPEN, CLOSE = "«", "»"
"""Marks around a span."""


def cut(text: str) -> str:
    """The start of a long text, and its length."""
    return text if len(text) <= SHOWN_TEXT else f"{text[:SHOWN_TEXT]} … ({len(text):,} characters)"


def peek_labeled(recipe: Recipe, split: str, rows: int, as_json: bool) -> None:
    """Print labeled texts or pairs."""
    from hftune.config.section import expect
    from hftune.data.load import load
    from hftune.data.settings import LabeledData
    from hftune.progress import quiet_datasets

    quiet_datasets()
    section, problem = expect(recipe.data, LabeledData), None
    try:
        splits = load(section)
    except HftuneError as error:
        splits, problem = _complete_rows(section, error), error
    chosen = split_of(splits.named, split, splits.source)
    shown = [
        {**row, "label": None if row["label"] < 0 else splits.labels[row["label"]]}
        for row in chosen.select(range(min(rows, len(chosen))))
    ]
    sizes = {part: len(dataset) for part, dataset in splits.named.items()}
    if as_json:
        facts = {"source": splits.source, "split": split, "labels": splits.labels, "sizes": sizes}
        terminal.show_json({**facts, "fingerprints": splits.fingerprints, "notes": splits.notes, "rows": shown})
    else:
        _show_labeled(splits, sizes, split, shown)
    if problem is not None:
        raise problem


def _complete_rows(section: LabeledData, problem: HftuneError) -> Splits:
    """The rows that have a text and a label, for a file in which some do not; the problem again if it is another."""
    from hftune.data.load import load

    try:
        return replace(load(section.model_copy(update={"drop_missing": True})), notes=(INCOMPLETE,))
    except HftuneError:
        raise problem from None


def _show_labeled(splits: Splits, sizes: Mapping[str, int], split: str, shown: Sequence[Mapping[str, Any]]) -> None:
    _heading(splits.source, sizes, ("labels: " + cut(", ".join(splits.labels)), *splits.notes))
    for number, row in enumerate(shown, start=1):
        label = "(no label)" if row["label"] is None else row["label"]
        terminal.say(f"\n{split} {number}: {cut(label)}", style="bold")
        terminal.say(cut(row["text"]))
        if "text_pair" in row:
            terminal.say("───", style="dim")
            terminal.say(cut(row["text_pair"]))


def peek_documents(recipe: Recipe, split: str, rows: int, as_json: bool) -> None:
    """Print documents as the first epoch truncates them, with the span marked, and the sequence that the model gets."""
    from hftune.progress import quiet_libraries
    from hftune.tasks.corruption import corrupted, tokenize_documents
    from hftune.tasks.span_corruption import SpanCorruption, span_text

    quiet_libraries()
    task = SpanCorruption(recipe)
    data = task.load_data()
    texts = split_of(data.named, split, data.source)
    tokenizer = task.load_tokenizer(data)
    tokens, drawn = task.drawn(texts[:rows], tokenizer, trained=split == "train")
    shown: list[dict[str, Any]] = []
    for row in range(len(tokens)):
        sequence = corrupted(tokens[row], drawn, row, int(tokenizer.mask_token_id))
        kept = tokens[row][drawn.starts[row] : drawn.starts[row] + drawn.lengths[row]]
        spans = list(zip(drawn.spans[row].tolist(), drawn.widths[row].tolist(), strict=True))
        marked = _marked(kept, spans, lambda part: span_text(tokenizer, part))
        shown.append({"text": texts[row], "truncated": marked, "sequence": tokenizer.decode(sequence)})
    facts = task.describe(data)
    facts = replace(
        facts, notes=(*facts.notes, *task.notes_on_truncation(tokenize_documents(data.train, tokenizer), tokenizer))
    )
    if as_json:
        terminal.show_json({**facts.as_dict(), "split": split, "examples": shown})
        return
    _heading(data.source, facts.rows, facts.notes)
    for number, example in enumerate(shown, start=1):
        terminal.say(f"\n{split} {number}", style="bold")
        terminal.say(example["truncated"])
        terminal.say(example["sequence"], style="dim")


def peek_questions(recipe: Recipe, split: str, rows: int, as_json: bool) -> None:
    """Print questions and their answers."""
    from hftune.config.section import expect
    from hftune.data.questions import load_questions
    from hftune.data.settings import QuestionData

    data = load_questions(expect(recipe.data, QuestionData))
    chosen = split_of(data.named, split, data.source)
    shown = [
        {"question": chosen.questions[row], "answer": None if chosen.answers is None else chosen.answers[row]}
        for row in range(min(rows, len(chosen)))
    ]
    sizes = {name: len(part) for name, part in data.named.items()}
    if as_json:
        terminal.show_json(
            {"source": data.source, "rows": sizes, "notes": data.notes, "split": split, "examples": shown}
        )
        return
    _heading(data.source, sizes, data.notes)
    for number, example in enumerate(shown, start=1):
        terminal.say(f"\n{split} {number}", style="bold")
        terminal.say(cut(str(example["question"])))
        terminal.say("(no answer)" if example["answer"] is None else cut(str(example["answer"])), style="dim")


PEEKS = {"span": peek_documents, "answer": peek_questions}
"""How data without labels is shown, by task."""


def check_documents(recipe: Recipe, as_json: bool) -> None:
    """Count documents and characters; find duplicates, and documents of validation and test that are in train."""
    from hftune.config.section import expect
    from hftune.data.corpus import load_texts
    from hftune.data.settings import CorpusData

    data = load_texts(expect(recipe.data, CorpusData))
    facts = {name: _counts(texts) for name, texts in data.named.items()}
    trained = set(data.train)
    leaks = {} if data.validation_is_train else {"validation": sum(text in trained for text in data.validation)}
    if data.test is not None:
        leaks["test"] = sum(text in trained for text in data.test)
    if as_json:
        terminal.show_json({"source": data.source, "splits": facts, "also_in_train": leaks, "notes": data.notes})
        return
    _heading(data.source, {name: part["documents"] for name, part in facts.items()}, data.notes)
    for name, part in facts.items():
        terminal.say(
            f"{name}: {part['characters']:,} characters, {part['distinct_characters']:,} of them distinct; "
            f"documents have a median length of {part['median']:g} and a maximum of {part['longest']:,}"
        )
    findings = [
        f"{part['repeated']:,} documents of {name} are duplicates" for name, part in facts.items() if part["repeated"]
    ]
    findings += [f"{seen:,} documents of {name} are in train as well" for name, seen in leaks.items() if seen]
    if not findings:
        terminal.say("No duplicates, no leakage.", style="bold green")
    for finding in findings:
        terminal.say(f"  • {finding}")


def check_questions(recipe: Recipe, as_json: bool) -> None:
    """Count questions and answers; find repeated questions, those with several answers, and those asked in train."""
    from hftune.config.section import expect
    from hftune.data.questions import load_questions
    from hftune.data.settings import QuestionData

    data = load_questions(expect(recipe.data, QuestionData))
    facts: dict[str, dict[str, int]] = {}
    for name, part in data.named.items():
        pairs = set(zip(part.questions, part.answers or part.questions, strict=True))
        different = len(set(part.questions))
        facts[name] = {
            "questions": len(part),
            "answers": len(set(part.answers or ())),
            "repeated": len(part) - different,
            "several_answers": len(pairs) - different,
        }
    if as_json:
        terminal.show_json({"source": data.source, "splits": facts, "notes": data.notes})
        return
    _heading(data.source, {name: one["questions"] for name, one in facts.items()}, data.notes)
    for name, counts in facts.items():
        terminal.say(
            f"{name}: {counts['answers']:,} different answers; {counts['repeated']:,} repeated questions, "
            f"{counts['several_answers']:,} of them with another answer"
        )


CHECKS = {"span": check_documents, "answer": check_questions}
"""How data without labels is checked, by task."""


def _marked(tokens: Any, spans: Sequence[tuple[int, int]], decode: Callable[[Any], str]) -> str:
    """The part of a document that is used, with « » around the masked spans."""
    parts, place = [], 0
    for start, width in spans:
        parts += [decode(tokens[place:start]), OPEN, decode(tokens[start : start + width]), CLOSE]
        place = start + width
    return "".join([*parts, decode(tokens[place:])])


def _counts(texts: Sequence[str]) -> dict[str, Any]:
    lengths = [len(text) for text in texts]
    return {
        "documents": len(texts),
        "characters": sum(lengths),
        "distinct_characters": len(set().union(*texts)),
        "median": median(lengths),
        "longest": max(lengths),
        "repeated": len(texts) - len(set(texts)),
    }


def split_of(named: Mapping[str, Any], split: str, source: str) -> Any:
    """The requested split.

    Raises:
        HftuneError: There is no such split; names those that exist.
    """
    if split not in named:
        raise HftuneError(
            f"{source} has no split {split!r}; its splits are {', '.join(named)}",
            hint="Choose one of them with --split.",
        )
    return named[split]


def _heading(source: str, sizes: Mapping[str, int], notes: Sequence[str]) -> None:
    terminal.say(f"{source}: " + ", ".join(f"{part} {size:,}" for part, size in sizes.items()), style="bold")
    for text in notes:
        terminal.say(text, style="dim")


def show_check(found: Check) -> None:
    """Print label counts and lengths, then the findings."""
    for name, part in found.splits.items():
        terminal.say(f"{name}: {part.rows:,} rows", style="bold")
        shown = dict(list(part.labels.items())[:SHOWN_LABELS])
        _bars(list(shown.items()), part.rows)
        if len(part.labels) > len(shown):
            terminal.say(f"  … and {len(part.labels) - len(shown)} more labels", style="dim")
        terminal.say(f"  {found.unit}: median {part.median_length:g}, longest {part.longest:,}", style="dim")
        _bars([(f"{bar.low}–{bar.high}", bar.rows) for bar in part.lengths], part.rows)
    if not found.findings:
        words = f"no row over {found.max_length} words (tokens are more: --model counts them)"
        short = words if found.unit == "words" else "nothing truncated"
        terminal.say(f"No duplicates, no leakage, no contradictions, {short}.", style="bold green")
        return
    terminal.say("Findings", style="bold")
    for finding in found.findings:
        terminal.say(f"  • {finding}")
    for example in found.conflict_examples:
        labels = ", ".join(f"{label} × {times}" for label, times in example.labels.items())
        terminal.say(f"    {labels}: {example.text[:100]!r}", style="dim")


def _bars(counts: Sequence[tuple[str, int]], total: int) -> None:
    width = max((len(terminal.visible(name[:BAR])) for name, _ in counts), default=0)
    largest = max((count for _, count in counts), default=0) or 1
    for name, count in counts:
        bar = "█" * round(BAR * count / largest)
        terminal.say(f"  {terminal.visible(name[:BAR]):<{width}}  {count:>9,}  {count / total:>6.1%}  {bar}")
