"""How ``hftune data`` shows documents as pretraining sees them, and questions. Called by ``hftune.cli.data``."""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

from hftune.cli import terminal
from hftune.errors import HftuneError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hftune.config import Recipe

SHOWN_TEXT = 600
OPEN, CLOSE = "«", "»"
"""Stand around a span."""


def cut(text: str) -> str:
    """The start of a long text, and how long it is: a terminal is no place for the rest."""
    return text if len(text) <= SHOWN_TEXT else f"{text[:SHOWN_TEXT]} … ({len(text):,} characters)"


def peek_documents(recipe: Recipe, split: str, rows: int, as_json: bool) -> None:
    """Print documents as training cuts them in its first epoch, with the span marked, and what the model sees."""
    from hftune.quiet import quiet_libraries
    from hftune.tasks.corruption import corrupted
    from hftune.tasks.sequences import Tokens
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
        piece = tokens[row][drawn.starts[row] : drawn.starts[row] + drawn.lengths[row]]
        spans = list(zip(drawn.spans[row].tolist(), drawn.widths[row].tolist(), strict=True))
        marked = _marked(piece, spans, lambda part: span_text(tokenizer, part))
        shown.append({"text": texts[row], "cut": marked, "sequence": tokenizer.decode(sequence)})
    facts = task.describe(data)
    facts = replace(facts, notes=(*facts.notes, *task.notes_on_cutting(Tokens(data.train, tokenizer), tokenizer)))
    if as_json:
        terminal.show_json({**facts.as_dict(), "split": split, "examples": shown})
        return
    _heading(data.source, facts.rows, facts.notes)
    for number, example in enumerate(shown, start=1):
        terminal.say(f"\n{split} {number}", style="bold")
        terminal.say(example["cut"])
        terminal.say(example["sequence"], style="dim")


def peek_questions(recipe: Recipe, split: str, rows: int, as_json: bool) -> None:
    """Print questions and their answers."""
    from hftune.config.data import QuestionData
    from hftune.config.section import expect
    from hftune.data.questions import load_questions

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


def check_documents(recipe: Recipe, as_json: bool) -> None:
    """Count documents and characters; find documents that stand twice, and those of validation and test that are in
    train.
    """
    from hftune.config.data import CorpusData
    from hftune.config.section import expect
    from hftune.data import load_texts

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
            f"{name}: {part['characters']:,} characters, {part['different']:,} different ones; documents have "
            f"{part['median']:g} (median) to {part['longest']:,}"
        )
    findings = [
        f"{part['repeated']:,} documents of {name} stand in it before"
        for name, part in facts.items()
        if part["repeated"]
    ]
    findings += [f"{seen:,} documents of {name} are in train as well" for name, seen in leaks.items() if seen]
    if not findings:
        terminal.say("No duplicates, no leakage.", style="bold green")
    for finding in findings:
        terminal.say(f"  • {finding}")


def _marked(tokens: Any, spans: Sequence[tuple[int, int]], decode: Callable[[Any], str]) -> str:
    """The part of a document that is seen, with « » around what is taken out."""
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
        "different": len(set().union(*texts)),
        "median": median(lengths),
        "longest": max(lengths),
        "repeated": len(texts) - len(set(texts)),
    }


def split_of(named: Mapping[str, Any], split: str, source: str) -> Any:
    """The split that was asked for, or what there is."""
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
