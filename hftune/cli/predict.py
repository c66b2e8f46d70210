"""``hftune predict``: labels of texts or answers to questions, from arguments, a file or standard input.

hftune predict runs/a "the food was great but we will never come back"
hftune predict runs/a --file texts.txt --output labels.jsonl
hftune predict runs/boolq "is the sky green" --pair "The sky is blue."
hftune predict runs/boolq --file dev.jsonl
hftune predict runs/a --file reviews.csv
hftune predict runs/births "Where was Ada Berging born?" --min-confidence 0.5
"""

from __future__ import annotations

import csv
import json as jsonlib
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from hftune.cli.options import (
    RUN,
    USED,
    BatchSize,
    Json,
    OutputFile,
    Run,
    option,
    settings_command,
    used_model,
)
from hftune.cli.terminal import note, out, visible
from hftune.errors import HftuneError
from hftune.sanitize import json_text, spreadsheet_cell

if TYPE_CHECKING:
    from hftune.data.tables import Reading
    from hftune.tasks.task import Prediction


TABLES = (".csv", ".tsv", ".parquet", ".xlsx", ".gz")
"""Suffixes of files that are read as tables. The reader refuses .gz after an unknown suffix."""
TABLE_SETTINGS = ("data.delimiter", "data.sheet_name")

DELIMITERS = {".csv": ",", ".tsv": "\t"}
NOT_WRITTEN = (".xlsx", ".parquet", ".gz")

Texts = Annotated[list[str] | None, typer.Argument(metavar="[TEXT…]", help="Texts to label.", show_default=False)]
Pairs = Annotated[list[str] | None, option(RUN, "TEXT", "Second text of a pair, once per text.", "--pair")]
InputFile = Annotated[
    Path | None,
    option(
        RUN,
        "FILE",
        "One text per line, jsonl, csv, tsv (each also as .gz), xlsx or parquet; - for stdin. A row has text (and "
        "text_pair), or the columns that the model was trained on, such as question and passage; for a model that "
        "answers questions a tsv has a question per line, and may have a tab and the answer after it.",
        "--file",
        "-f",
    ),
]
MinConfidence = Annotated[
    float, option(RUN, "P", "Give no answer below this probability.", "--min-confidence", min=0.0, max=1.0)
]
OBJECTS = 'write one object per line, such as {"text": "…"} or {"text": "…", "text_pair": "…"}'
COLUMNS = "a row has text (and text_pair for pairs), or the columns that the model was trained on"
SHOWN_TEXT = 600
"""Characters of a text that are shown on a terminal; pipes and files get the whole text."""
ANSWER = "answer"
"""The task whose models generate text; models of other tasks choose among labels."""


@settings_command(takes=(*USED, *TABLE_SETTINGS), help_task="classify")
def predict(
    settings: dict[str, Any],
    run: Run,
    texts: Texts = None,
    pairs: Pairs = None,
    file: InputFile = None,
    output: OutputFile = None,
    min_confidence: MinConfidence = 0.0,
    batch_size: BatchSize = 64,
    as_json: Json = False,
) -> None:
    """Label texts, or answer questions, with the probability of each answer. One jsonl line per text when piped."""
    if texts and file is not None:
        raise HftuneError("both texts and --file were given", hint="leave one of them out")
    if pairs and len(pairs) != len(texts or []):
        raise HftuneError(
            f"{len(texts or [])} texts but {len(pairs)} --pair",
            hint="give one --pair for each text, in their order",
        )
    if not texts and file is None and sys.stdin.isatty():
        raise HftuneError("there is nothing to label", hint="add texts in quotes, --file FILE, or pipe text in")
    if file is not None and str(file) != "-" and not file.is_file():
        raise HftuneError(f"there is no file {file}", hint="check the path; - reads standard input")

    if output is not None and output.suffix.lower() in NOT_WRITTEN:
        raise HftuneError(
            f"predictions are written as jsonl, csv or tsv, not as {output.suffix.lower()}",
            hint=f"name --output {output.with_suffix('.csv')}",
        )

    model = used_model(run, settings)

    from hftune.pipeline.inference import predictor
    from hftune.progress import quiet_libraries

    quiet_libraries()
    kind, ask = predictor(run, model)
    rows = _rows(run, kind, texts, pairs, file, _reading(settings, file))
    answers = (as_row(answer, kind, min_confidence) for answer in ask(rows, batch_size))
    if output is not None:
        note(f"{_write(output, answers)} predictions in {output}")
        return
    lines = as_json or not out().is_terminal
    answer = None
    for answer in answers:
        if lines:
            sys.stdout.write(jsonlib.dumps(answer, ensure_ascii=True) + "\n")
        else:
            _show(answer)
    if answer is None:
        raise HftuneError("there is nothing to label: the input is empty", hint="give one text per line")


def _write(output: Path, answers: Iterator[dict[str, Any]]) -> int:
    """Write line by line, so that memory does not grow; the file is renamed into place when it is complete.

    A file named .csv or .tsv is a table with a column for each probability; any other has an object per line.
    """
    delimiter = DELIMITERS.get(output.suffix.lower())
    staged = output.with_name(f".{output.name}.part")
    staged.unlink(missing_ok=True)  # left by a killed process; it could also be a link to another file
    count = 0
    try:
        with staged.open("x", encoding="utf-8", newline="\n") as file:
            for answer in answers:
                if delimiter is None:
                    file.write(json_text(answer) + "\n")
                else:
                    cells = _cells(answer)
                    table = csv.writer(file, delimiter=delimiter, lineterminator="\n")
                    table.writerows([list(cells)] * (count == 0) + [list(cells.values())])
                count += 1
        staged.replace(output)
    finally:
        staged.unlink(missing_ok=True)
    return count


def _cells(row: Mapping[str, Any]) -> dict[str, Any]:
    """A prediction as one row of a table. Texts of other people must not become formulas of a spreadsheet."""
    flat = {name: value for name, value in row.items() if name != "probabilities"}
    flat |= {f"probability of {label}": value for label, value in row.get("probabilities", {}).items()}
    return {
        spreadsheet_cell(name): spreadsheet_cell(value) if isinstance(value, str) else value
        for name, value in flat.items()
    }


def as_row(answer: Prediction, kind: str = "", min_confidence: float = 0.0) -> dict[str, Any]:
    """A prediction as one jsonl line; the label is null if the confidence is too low."""
    row: dict[str, Any] = {"text": answer.text}
    if answer.text_pair is not None:
        row["text_pair"] = answer.text_pair
    row["label"] = answer.label if answer.confidence >= min_confidence else None
    written = {"confidence": answer.confidence, "ended": answer.ended, **answer.seen}
    row |= written if kind == ANSWER else {"probabilities": answer.probabilities}
    return row if min_confidence == 0.0 else {**row, "abstained": row["label"] is None}


def _show(row: dict[str, Any]) -> None:
    ranked = sorted(row.get("probabilities", {}).items(), key=lambda item: -item[1])
    # A colon: labels such as 4 could not be distinguished from their probabilities.
    shown = "  ".join(f"{label}: {value:.3f}" for label, value in ranked[:5]) or f"{row['confidence']:.3f}"
    if (seen := row.get("seen_in_pretraining", "no answer")) != "no answer":
        shown += f"  name in pretraining: {'not known' if seen is None else 'seen' if seen else 'not seen'}"
    cut_off = "" if row.get("ended", True) else " …"
    shown_label = ("(no answer)", "dim") if row["label"] is None else (f"{visible(row['label'])}{cut_off}", "bold")
    text = row["text"] if len(row["text"]) <= SHOWN_TEXT else f"{row['text'][:SHOWN_TEXT]} …"
    out().print(Text.assemble(shown_label, (f"  {visible(shown)}  ", "dim"), visible(text)), soft_wrap=True)


def _reading(settings: Mapping[str, Any], file: Path | None) -> Reading:
    """Delimiter and sheet name, refused for files that have neither and for texts on the command line."""
    from hftune.data.readers import refuse_unused
    from hftune.data.settings import LabeledData
    from hftune.data.tables import NO_SETTINGS, Reading

    stated = {name: value for name, value in settings.items() if name in TABLE_SETTINGS}
    if not stated:
        return NO_SETTINGS
    from hftune.config.section import expect
    from hftune.pipeline.request import resolve_recipe

    section = expect(resolve_recipe(None, stated, (), task="classify").data, LabeledData)
    reading = Reading((), section.delimiter, section.sheet_name)
    refuse_unused(file or Path("standard input"), reading)
    return reading


def _rows(
    run: str, kind: str, texts: list[str] | None, pairs: list[str] | None, file: Path | None, reading: Reading
) -> Iterator[dict[str, str]]:
    if texts:
        for index, text in enumerate(texts):
            yield {"text": text, "text_pair": pairs[index]} if pairs else {"text": text}
        return
    if file is None or str(file) == "-":
        yield from _lines(run, sys.stdin.buffer, "standard input", jsonl=None)
        return
    from hftune.data.text_files import ending_of, open_binary

    ending = ending_of(file)
    if kind == ANSWER and ending == ".tsv":
        yield from _questions(file)
        return
    if ending in TABLES:
        yield from _table(run, file, reading)
        return
    try:
        with open_binary(file) as source:
            yield from _lines(run, source, str(file), jsonl=ending in (".jsonl", ".ndjson", ".json"))
    except OSError as error:
        raise HftuneError(f"can't read {file}: {error.strerror}", hint="check the path") from error


def _lines(run: str, source: Any, where: str, jsonl: bool | None) -> Iterator[dict[str, str]]:
    """One row per line. On standard input all lines are JSON if the first one is a JSON object."""
    for number, raw in enumerate(source, start=1):
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise HftuneError(
                f"{where}, line {number}: not UTF-8 ({error.reason} at byte {error.start})",
                hint="convert it to UTF-8 first",
            ) from error
        if "\0" in line:
            raise HftuneError(
                f"{where}, line {number}: contains a zero byte, so it is not text", hint="give a text file"
            )
        if jsonl is None:
            jsonl = line.lstrip().startswith("{")
        if not line.strip():
            if jsonl:
                continue
            raise HftuneError(f"{where}, line {number}: empty", hint="leave blank lines out: one text per line")
        yield _from_json(run, line, f"{where}, line {number}") if jsonl else {"text": line}


def _questions(file: Path) -> Iterator[dict[str, str]]:
    """Questions of a tsv file without a header, the format that such a model is trained on."""
    from hftune.data.questions import read_questions

    for question in read_questions(file).questions:
        yield {"text": question}


def _table(run: str, file: Path, reading: Reading) -> Iterator[dict[str, str]]:
    from hftune.data.readers import read_table

    table = read_table(file, reading)
    for place in range(len(table)):
        row = {name: values[place] for name, values in table.columns.items()}
        yield _row(run, row, f"{file}, {table.place(place)}")


def _from_json(run: str, line: str, where: str) -> dict[str, str]:
    try:
        row = jsonlib.loads(line)
    except ValueError as error:
        raise HftuneError(f"{where}: not JSON ({error})", hint=OBJECTS) from error
    if not isinstance(row, dict):
        raise HftuneError(f"{where}: expected an object, got {type(row).__name__}", hint=OBJECTS)
    return _row(run, row, where)


def _row(run: str, row: dict[str, Any], where: str) -> dict[str, str]:
    """The text columns of a row."""
    text, pair = _columns(run, tuple(row))
    if text is None:
        keys = ", ".join(row)[:SHOWN_TEXT] or "none"
        raise HftuneError(f"{where}: nothing that looks like a text; its columns are {keys}", hint=COLUMNS)
    for name in (text, pair):
        if name is not None and not isinstance(row[name], str):
            raise HftuneError(f"{where}: {name!r} is not a string", hint=COLUMNS)
        if name is not None and not row[name].strip():
            raise HftuneError(f"{where}: {name!r} is empty", hint="leave rows without a text out")
    return {"text": row[text]} if pair is None else {"text": row[text], "text_pair": row[pair]}


@cache
def _columns(run: str, names: tuple[str, ...]) -> tuple[str | None, str | None]:
    """The columns of the text and of the second text, recognized as in training."""
    from hftune.data.columns import find_unlabeled
    from hftune.pipeline.inference import own_columns

    return find_unlabeled(names, own_columns(run))
