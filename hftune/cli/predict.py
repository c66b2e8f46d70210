"""``hftune predict``: labels of texts or answers to questions, from arguments, a file or standard input.

hftune predict runs/a "the food was great but we will never come back"
hftune predict runs/a --file texts.txt --output labels.jsonl
hftune predict runs/boolq "is the sky green" --pair "The sky is blue."
hftune predict runs/boolq --file dev.jsonl
hftune predict runs/a --file reviews.csv
hftune predict runs/births "Where was Ada Berging born?" --min-confidence 0.5
"""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from hftune.cli import options
from hftune.cli.terminal import note, out, visible
from hftune.errors import HftuneError
from hftune.escapes import json_text

if TYPE_CHECKING:
    from hftune.outcomes import Prediction


TABLES = (".csv", ".tsv", ".parquet", ".xlsx", ".gz")
"""Endings of files that are read whole; a spreadsheet, and .gz after no known ending, are refused by that reader."""

Texts = Annotated[list[str] | None, typer.Argument(metavar="[TEXT…]", help="Texts to label.")]
Pairs = Annotated[
    list[str] | None,
    typer.Option("--pair", metavar="TEXT", help="Second text, once for each text, for pairs."),
]
InputFile = Annotated[
    Path | None,
    typer.Option(
        "--file",
        "-f",
        metavar="FILE",
        help="One text a line, jsonl, csv, tsv (each also as .gz) or parquet; - for stdin. A row has text (and "
        "text_pair), or the columns that the model was trained on, such as question and passage; for a model that "
        "answers questions a tsv has a question a line, and may have a tab and the answer after it.",
    ),
]
OutputFile = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write jsonl here, not to the terminal.")
]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="Rows in one forward pass.")]
MinConfidence = Annotated[
    float,
    typer.Option("--min-confidence", metavar="P", min=0.0, max=1.0, help="Give no answer below this probability."),
]
OBJECTS = 'write one object a line, such as {"text": "…"} or {"text": "…", "text_pair": "…"}'
HOLDS = "a row has text (and text_pair for pairs), or the columns that the model was trained on"
SHOWN_TEXT = 600
"""Characters of a text that a terminal shows; what is piped or written to a file is whole."""
WRITTEN = "answer"
"""The kind of model that writes its answers; others choose among labels."""


def predict(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run, a model folder, or a Hub id.")],
    texts: Texts = None,
    pairs: Pairs = None,
    file: InputFile = None,
    output: OutputFile = None,
    min_confidence: MinConfidence = 0.0,
    batch_size: BatchSize = 64,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = None,
    trust_base_code: options.TrustBaseCode = None,
    as_json: options.Json = False,
) -> None:
    """Label texts, or answer questions, with the probability of each answer. One jsonl line a text when piped."""
    if texts and file is not None:
        raise HftuneError("both texts and --file were given", hint="leave one of them out")
    if pairs and len(pairs) != len(texts or []):
        raise HftuneError(
            f"{len(texts or [])} texts but {len(pairs)} --pair",
            hint="give one --pair for each text, in their order",
        )
    if not texts and file is None and sys.stdin.isatty():
        raise HftuneError("there is nothing to label", hint="add texts in quotes, --file FILE, or pipe text in")
    if output is not None and output.exists():
        raise HftuneError(f"{output} exists already", hint="name another file; nothing is overwritten")
    if file is not None and str(file) != "-" and not file.is_file():
        raise HftuneError(f"there is no file {file}", hint="check the path; - reads standard input")

    from hftune.config.consent import used_model
    from hftune.inference import predictor
    from hftune.quiet import quiet_libraries

    quiet_libraries()
    section = used_model(run, revision, trust_remote_code, trust_base_code)
    kind, ask = predictor(run, section)
    rows = _rows(run, kind, texts, pairs, file)
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
        raise HftuneError("there is nothing to label: the input is empty", hint="give one text a line")


def _write(output: Path, answers: Iterator[dict[str, Any]]) -> int:
    """Write line by line, so that memory does not grow; the file appears when it is whole."""
    staged = output.with_name(f".{output.name}.part")
    staged.unlink(missing_ok=True)  # what a killed process left; as a link it would lead elsewhere
    count = 0
    try:
        with staged.open("x", encoding="utf-8", newline="\n") as file:
            for answer in answers:
                file.write(json_text(answer) + "\n")
                count += 1
        staged.replace(output)
    finally:
        staged.unlink(missing_ok=True)
    return count


def as_row(answer: Prediction, kind: str = "", min_confidence: float = 0.0) -> dict[str, Any]:
    """A prediction as one jsonl line; the label is null where the model is not sure enough to give one."""
    row: dict[str, Any] = {"text": answer.text}
    if answer.text_pair is not None:
        row["text_pair"] = answer.text_pair
    row["label"] = answer.label if answer.confidence >= min_confidence else None
    written = {"confidence": answer.confidence, "ended": answer.ended}
    row |= written if kind == WRITTEN else {"probabilities": answer.probabilities}
    return row if min_confidence == 0.0 else {**row, "abstained": row["label"] is None}


def _show(row: dict[str, Any]) -> None:
    ranked = sorted(row.get("probabilities", {}).items(), key=lambda item: -item[1])
    shown = "  ".join(f"{label} {value:.3f}" for label, value in ranked[:5]) or f"{row['confidence']:.3f}"
    cut_off = "" if row.get("ended", True) else " …"
    said = ("(no answer)", "dim") if row["label"] is None else (f"{visible(row['label'])}{cut_off}", "bold")
    text = row["text"] if len(row["text"]) <= SHOWN_TEXT else f"{row['text'][:SHOWN_TEXT]} …"
    out().print(Text.assemble(said, (f"  {visible(shown)}  ", "dim"), visible(text)), soft_wrap=True)


def _rows(
    run: str, kind: str, texts: list[str] | None, pairs: list[str] | None, file: Path | None
) -> Iterator[dict[str, str]]:
    if texts:
        for index, text in enumerate(texts):
            yield {"text": text, "text_pair": pairs[index]} if pairs else {"text": text}
        return
    if file is None or str(file) == "-":
        yield from _lines(run, sys.stdin.buffer, "standard input", jsonl=None)
        return
    from hftune.data.compressed import ending_of, open_binary

    ending = ending_of(file)
    if kind == WRITTEN and ending == ".tsv":
        yield from _questions(file)
        return
    if ending in TABLES:
        yield from _table(run, file)
        return
    try:
        with open_binary(file) as source:
            yield from _lines(run, source, str(file), jsonl=ending in (".jsonl", ".ndjson", ".json"))
    except OSError as error:
        raise HftuneError(f"can't read {file}: {error.strerror}", hint="check the path") from error


def _lines(run: str, source: Any, where: str, jsonl: bool | None) -> Iterator[dict[str, str]]:
    """One row a line. On standard input a first line that is a JSON object says that all lines are."""
    for number, raw in enumerate(source, start=1):
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise HftuneError(
                f"{where}, line {number}: not UTF-8 ({error.reason} at byte {error.start})",
                hint="convert it to UTF-8 first",
            ) from error
        if "\0" in line:
            raise HftuneError(f"{where}, line {number}: holds a zero byte, so it is no text", hint="give a text file")
        if jsonl is None:
            jsonl = line.lstrip().startswith("{")
        if not line.strip():
            if jsonl:
                continue
            raise HftuneError(f"{where}, line {number}: empty", hint="leave blank lines out: one text a line")
        yield _from_json(run, line, f"{where}, line {number}") if jsonl else {"text": line}


def _questions(file: Path) -> Iterator[dict[str, str]]:
    """The format that such a model was trained on has no header: its first line is a question too."""
    from hftune.data.questions import read_questions

    for question in read_questions(file).questions:
        yield {"text": question}


def _table(run: str, file: Path) -> Iterator[dict[str, str]]:
    from hftune.data.sources import read_file

    table = read_file(file)
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
    """What of a row the model reads."""
    text, pair = _columns(run, tuple(row))
    if text is None:
        keys = ", ".join(row)[:SHOWN_TEXT] or "none"
        raise HftuneError(f"{where}: nothing that looks like a text; its columns are {keys}", hint=HOLDS)
    for name in (text, pair):
        if name is not None and not isinstance(row[name], str):
            raise HftuneError(f"{where}: {name!r} is not a string", hint=HOLDS)
        if name is not None and not row[name].strip():
            raise HftuneError(f"{where}: {name!r} is empty", hint="leave rows without a text out")
    return {"text": row[text]} if pair is None else {"text": row[text], "text_pair": row[pair]}


@cache
def _columns(run: str, names: tuple[str, ...]) -> tuple[str | None, str | None]:
    """Which keys of a row are its text and its second text: as training would have taken them."""
    from hftune.data.columns import find_unlabeled
    from hftune.inference import own_columns

    return find_unlabeled(names, own_columns(run))
