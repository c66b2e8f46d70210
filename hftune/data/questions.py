"""Questions and their answers: tsv files of ``question<TAB>answer``, or parquet, with a corpus in the same folder.

A test file may hold questions alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hftune.data.locate import QUESTIONS, as_path, locate, missing_path_error, missing_split_error, refuse_unused_sizes
from hftune.data.readers import read_table
from hftune.data.settings import QuestionData
from hftune.data.splits import NamedSplits, make_splits, subset
from hftune.data.tables import Table
from hftune.data.text_files import read_text
from hftune.errors import HftuneError, listing, quote

ENDINGS = (".tsv", ".parquet")
HEADERS = (("question", "answer"), ("question",))
CORPUS = "wiki.txt"
LAYOUT = "question<TAB>answer"


@dataclass(frozen=True)
class Questions:
    """The rows of one file, in its order."""

    where: str
    """The file's name."""
    questions: tuple[str, ...]
    answers: tuple[str, ...] | None
    """One per question; None for a file of questions alone."""
    lines: tuple[int, ...]
    """Line of each row in the file."""

    def __len__(self) -> int:
        """How many rows."""
        return len(self.questions)

    def take(self, indices: Sequence[int]) -> Questions:
        """Some of the rows, in the order given."""
        answers = None if self.answers is None else tuple(self.answers[index] for index in indices)
        chosen = tuple(self.questions[index] for index in indices)
        return Questions(self.where, chosen, answers, tuple(self.lines[index] for index in indices))

    @property
    def required_answers(self) -> tuple[str, ...]:
        """The answers of train or validation, which are never without them."""
        assert self.answers is not None, f"{self.where} was read as a split with answers"
        return self.answers

    def fingerprint(self) -> str:
        """A hash of the rows in their order, the same on every machine."""
        content = json.dumps([self.questions, self.answers], ensure_ascii=False)
        return hashlib.sha256(content.encode()).hexdigest()


@dataclass(frozen=True)
class QuestionSplits(NamedSplits[Questions]):
    """The splits of a dataset of questions."""

    corpus: Path | None
    """The text in the folder of the questions, if any."""

    @property
    def fingerprints(self) -> dict[str, str]:
        """A hash of each split's rows."""
        return {name: rows.fingerprint() for name, rows in self.named.items()}


def load_questions(section: QuestionData) -> QuestionSplits:
    """Read and check every split; a missing validation split is split from train."""
    source = locate(section, QUESTIONS, ENDINGS)
    rows = {split: _read_split(paths, split) for split, paths in source.files.items()}
    notes = source.notes
    limited = section.max_train_samples is not None or section.max_eval_samples is not None
    refuse_unused_sizes(section, rows, draws=limited or "validation" not in rows)
    if "validation" not in rows:
        train = rows["train"]
        made, new_notes = make_splits(
            {"validation": section.validation_size},
            train.questions,
            [""] * len(train),
            section.split_seed,
            where=train.where,
            nouns=("question", "question"),
            hint="or more questions",
        )
        rows |= {split: train.take(chosen) for split, chosen in made.items()}
        notes += new_notes
    for split, size in (("train", section.max_train_samples), ("validation", section.max_eval_samples)):
        if size is not None and size < len(rows[split]):
            notes.append(f"{split} is {size:,} of {len(rows[split]):,} questions, seed {section.split_seed}")
            rows[split] = rows[split].take(subset([""] * len(rows[split]), size, section.split_seed))
    test = rows.get("test")
    if test is not None and test.answers is None:
        notes.append("test has no answers: it gets predictions and no scores")
    trained = set(rows["train"].questions)
    for split in ("validation", "test"):
        again = sum(question in trained for question in rows[split].questions) if split in rows else 0
        if again:
            verb = "is" if again == 1 else "are"
            notes.append(f"{again:,} of the {len(rows[split]):,} {split} questions {verb} asked in train as well")
    return QuestionSplits(
        rows["train"],
        rows["validation"],
        test,
        source=section.dataset_name,
        notes=tuple(notes),
        corpus=corpus_file(section),
    )


def load_question_split(section: QuestionData, split: str | None) -> tuple[str, Questions]:
    """One whole split, to predict or score.

    Args:
        section: Where the rows come from.
        split: train, validation or test; all for a single file; by default all, test if it has answers, or validation.
    """
    files = locate(section, QUESTIONS, ENDINGS).files
    single = len(files) == 1
    if single and split in (None, "all"):
        return "all", read_questions(next(iter(files.values()))[0])
    if split is None:
        test = _read_split(files["test"], "test") if "test" in files else None
        if test is not None and (test.answers is not None or "validation" not in files):
            return "test", test
        split = "validation"
    if split not in files:
        raise missing_split_error(section.dataset_name, split, files)
    return split, _read_split(files[split], split)


def read_questions(path: Path, *, answers: bool | None = None) -> Questions:
    """One file. ``answers`` is whether each row must have one; by default the first line shows it."""
    table = read_table(path) if path.suffix.lower() == ".parquet" else _read_lines(path, answers)
    return from_columns(table, answers=answers)


def _read_lines(path: Path, answers: bool | None) -> Table:
    lines = read_text(path).rstrip("\r\n").split("\n")  # only \n ends a line, so that line numbers are those of editors
    has_header = tuple(cell.strip().lower() for cell in lines[0].split("\t")) in HEADERS
    first = 2 if has_header else 1
    lines = lines[first - 1 :]
    if not any(line.strip() for line in lines):
        raise HftuneError(f"{quote(path.name)} has no questions", hint=f"write one {LAYOUT} per line")
    wanted = answers if answers is not None else "\t" in lines[0]
    rows = [_cells(line, f"{quote(path.name)}, line {number}", wanted) for number, line in enumerate(lines, first)]
    columns = {
        name: list(values) for name, values in zip(("question", "answer"), zip(*rows, strict=True), strict=False)
    }
    return Table(path.name, columns, lines=range(first, first + len(rows)))


def from_columns(table: Table, *, answers: bool | None = None) -> Questions:
    """The columns ``question`` and ``answer`` of a table; ``answers`` is as in ``read_questions``."""
    has_answers = "answer" in table.columns and any(value is not None for value in table.columns["answer"])
    wanted = has_answers if answers is None else answers
    needed = ("question", "answer") if wanted else ("question",)
    lacking = [name for name in needed if name not in table.columns]
    if lacking:
        raise HftuneError(
            f"{quote(table.where)} has no column {quote(lacking[0])}; its columns are {listing(table.columns)}",
            hint="name the columns question and answer",
        )
    texts = [tuple(_cell(value, table, row, name) for row, value in enumerate(table.columns[name])) for name in needed]
    return Questions(
        where=table.where,
        questions=texts[0],
        answers=texts[1] if wanted else None,
        lines=tuple(table.lines or range(1, len(table) + 1)),
    )


def _cell(value: object, table: Table, row: int, column: str) -> str:
    """A question or an answer of a table: one line of text, as in a tsv file."""
    at = table.at(row)
    text = value.strip() if isinstance(value, str) else ""
    if not text:
        what = "is empty" if value is None or isinstance(value, str) else f"is not text: {quote(value)}"
        raise HftuneError(f"{at}: the {column} {what}", hint=f"write {LAYOUT}, or leave the row out")
    if any(sign in text for sign in "\t\r\n"):
        raise HftuneError(
            f"{at}: the {column} holds a tab or a line break: {quote(text)}", hint="replace it with a space"
        )
    return text


def corpus_file(section: QuestionData) -> Path | None:
    """The text on which the tokenizer of a model from scratch is trained too: named, or next to the questions."""
    if section.corpus is not None:
        found = as_path(section.corpus)
        if found is None or not found.is_file():
            raise missing_path_error(section.corpus, list(QUESTIONS))
        return found
    if section.dataset_name in QUESTIONS:
        folder: Path | None = QUESTIONS[section.dataset_name].folder
    else:
        path = as_path(section.dataset_name)
        folder = path if path is None or path.is_dir() else path.parent
    return folder / CORPUS if folder is not None and (folder / CORPUS).is_file() else None


def _read_split(paths: Sequence[Path], split: str) -> Questions:
    """All files of a split, joined; only test may lack answers."""
    parts = [read_questions(path, answers=None if split == "test" else True) for path in paths]
    if len({part.answers is None for part in parts}) > 1:
        raise HftuneError(f"some files of {split} have answers and some have none", hint="give answers in all or none")
    return Questions(
        where=parts[0].where if len(parts) == 1 else f"{parts[0].where} …",
        questions=tuple(question for part in parts for question in part.questions),
        answers=None
        if parts[0].answers is None
        else tuple(answer for part in parts for answer in part.required_answers),
        lines=tuple(line for part in parts for line in part.lines),
    )


def _cells(line: str, at: str, wanted: bool) -> list[str]:
    """Question and answer of a line, or the question alone if there is no answer."""
    cells = line.split("\t")
    if not line.strip():
        raise HftuneError(f"{at} is blank", hint=f"leave blank lines out: one {LAYOUT} per line")
    if wanted and len(cells) == 1:
        raise HftuneError(
            f"{at}: expected {LAYOUT}, got a line without a tab: {quote(line)}",
            hint=f"it looks like {_looks_like(line)}; put one tab between question and answer",
        )
    if not wanted and len(cells) > 1:
        raise HftuneError(
            f"{at}: has a tab, but the lines before it are questions without answers: {quote(line)}",
            hint="give an answer to every question of the file, or to none",
        )
    if len(cells) > 2:
        raise HftuneError(
            f"{at}: expected one tab, got {len(cells) - 1}: {quote(line)}",
            hint=f"write {LAYOUT}, with no tab inside either",
        )
    return cells


def _looks_like(line: str) -> str:
    """The probable mistake in a line without a tab."""
    text = line.strip()
    if r"\t" in text:
        return r"a tab written as the two characters \t"
    if "  " in text:
        return "spaces in place of the tab"
    if text.endswith("?"):
        return "a question without its answer"
    after = text.partition("?")[2]
    for sign, name in ((",", "comma"), (";", "semicolon"), ("|", "bar"), (":", "colon")):
        if after.lstrip().startswith(sign):
            return f"a {name} in place of the tab"
    return "an answer directly after its question" if after else "plain text"
