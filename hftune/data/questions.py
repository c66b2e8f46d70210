"""Questions and their answers: tsv files of ``question<TAB>answer``, or parquet, with the corpus that lies beside them.

Called by the task that answers questions, ``hftune.answering`` and ``hftune predict``. A test file may hold questions
alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from hftune.assets import embedded_data_dir
from hftune.config.data import QuestionData
from hftune.data.decode import decode, read_bytes
from hftune.data.locate import Files, as_path, files_of, folder_files, refuse_missing
from hftune.data.sources import read_file
from hftune.data.subsets import subset
from hftune.data.table import Table
from hftune.data.wording import count, listing, quote
from hftune.errors import HftuneError

EMBEDDED = ("births",)
"""Embedded datasets of questions."""
ENDINGS = (".tsv", ".parquet")
HEADERS = (("question", "answer"), ("question",))
CORPUS = "wiki.txt"
SHAPE = "question<TAB>answer"


@dataclass(frozen=True)
class Questions:
    """The rows of one file, in its order."""

    where: str
    """The file's name."""
    questions: tuple[str, ...]
    answers: tuple[str, ...] | None
    """One a question; None for a file of questions alone."""
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
    def known(self) -> tuple[str, ...]:
        """The answers of a split that must have them."""
        assert self.answers is not None, f"{self.where} was read as a split with answers"
        return self.answers

    def fingerprint(self) -> str:
        """A hash of the rows in their order, the same on every machine."""
        content = json.dumps([self.questions, self.answers], ensure_ascii=False)
        return hashlib.sha256(content.encode()).hexdigest()


@dataclass(frozen=True)
class QuestionSplits:
    """The splits of a dataset of questions."""

    train: Questions
    validation: Questions
    test: Questions | None
    corpus: Path | None
    """The text that lies beside the questions; None where there is none."""
    source: str
    """The dataset as the recipe names it."""
    notes: tuple[str, ...]
    """What was decided on the way and a reader of the results should know."""

    @property
    def named(self) -> dict[str, Questions]:
        """The splits there are, by name."""
        every = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: rows for name, rows in every.items() if rows is not None}


def load_questions(section: QuestionData) -> QuestionSplits:
    """Read and check every split; a validation split that is not there is cut from train.

    Raises:
        HftuneError: The files can't be found, or a line is not what it should be.
    """
    files = _files(section)
    rows = {split: _read_split(paths, split) for split, paths in files.items()}
    notes = []
    if section.dataset_name in EMBEDDED and as_path(section.dataset_name) is not None:
        notes.append(
            f"{section.dataset_name} is the embedded dataset; the one in this folder would be ./{section.dataset_name}"
        )
    if "validation" not in rows:
        notes.append(_make_dev(rows, section))
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
            notes.append(f"{again:,} of the {len(rows[split]):,} {split} questions are asked in train as well")
    corpus = corpus_file(section)
    return QuestionSplits(rows["train"], rows["validation"], test, corpus, section.dataset_name, tuple(notes))


def load_question_split(section: QuestionData, split: str | None) -> tuple[str, Questions]:
    """One split as it lies there, for asking a model. Nothing is cut or made.

    Args:
        section: Where the rows come from.
        split: train, validation or test; all for a single file; where None, all for a file, test where it has answers,
        else
            validation.
    """
    files = _files(section)
    single = len(files) == 1
    if single and split in (None, "all"):
        return "all", read_questions(next(iter(files.values()))[0])
    if split is None:
        test = _read_split(files["test"], "test") if "test" in files else None
        if test is not None and (test.answers is not None or "validation" not in files):
            return "test", test
        split = "validation"
    if split not in files:
        choices = "all" if single else ", ".join(files)
        raise HftuneError(
            f"{quote(section.dataset_name)} has no {split} split", hint=f"choose one with --split: {choices}"
        )
    return split, _read_split(files[split], split)


def read_questions(path: Path, *, answers: bool | None = None) -> Questions:
    """One file; answers says whether they must be there, None takes what the first line shows."""
    if path.suffix.lower() == ".parquet":
        return from_columns(read_file(path), answers=answers)
    lines = read_text(path).rstrip("\r\n").split("\n")  # nothing else ends a line, as editors count them
    if lines and tuple(cell.strip().lower() for cell in lines[0].split("\t")) in HEADERS:
        first, lines = 2, lines[1:]
    else:
        first = 1
    if not any(line.strip() for line in lines):
        raise HftuneError(f"{quote(path.name)} holds no questions", hint=f"write one {SHAPE} a line")
    wanted = answers if answers is not None else "\t" in lines[0]
    rows = [_row(line, path.name, number, wanted) for number, line in enumerate(lines, start=first)]
    return Questions(
        where=path.name,
        questions=tuple(question for question, _ in rows),
        answers=tuple(answer for _, answer in rows) if wanted else None,
        lines=tuple(range(first, first + len(rows))),
    )


def from_columns(table: Table, *, answers: bool | None = None) -> Questions:
    """The columns ``question`` and ``answer`` of a table; answers is as in ``read_questions``."""
    has_answers = "answer" in table.columns and any(value is not None for value in table.columns["answer"])
    wanted = has_answers if answers is None else answers
    needed = ("question", "answer") if wanted else ("question",)
    lacking = [name for name in needed if name not in table.columns]
    if lacking:
        raise HftuneError(
            f"{quote(table.where)} has no column {quote(lacking[0])}; its columns are {listing(table.columns)}",
            hint="name the columns question and answer",
        )
    texts = {name: [_cell(value, table, row, name) for row, value in enumerate(table.columns[name])] for name in needed}
    return Questions(
        where=table.where,
        questions=tuple(texts["question"]),
        answers=tuple(texts["answer"]) if wanted else None,
        lines=tuple(range(1, len(table) + 1)),
    )


def _cell(value: object, table: Table, row: int, column: str) -> str:
    """A question or an answer of a table: one line of text, as in a tsv file."""
    at = f"{quote(table.where)}, {table.place(row)}"
    text = value.strip() if isinstance(value, str) else ""
    if not text:
        what = "is empty" if value is None or isinstance(value, str) else f"is no text: {quote(value)}"
        raise HftuneError(f"{at}: the {column} {what}", hint="give every row a question and an answer, as text")
    if any(sign in text for sign in "\t\r\n"):
        raise HftuneError(
            f"{at}: the {column} holds a tab or a line break: {quote(text)}", hint="replace it by a blank"
        )
    return text


def corpus_file(section: QuestionData) -> Path | None:
    """The text that a fresh model's vocabulary is made of too: named, or beside the questions."""
    if section.corpus is not None:
        found = as_path(section.corpus)
        if found is None or not found.is_file():
            raise refuse_missing(section.corpus, list(EMBEDDED))
        return found
    folder = _folder(section)
    beside = folder / CORPUS if folder is not None else None
    return beside if beside is not None and beside.is_file() else None


def read_text(path: Path) -> str:
    """A text file, whole."""
    return decode(read_bytes(path), path)


def _folder(section: QuestionData) -> Path | None:
    if section.dataset_name in EMBEDDED:
        return embedded_data_dir() / section.dataset_name
    path = as_path(section.dataset_name)
    return path if path is None or path.is_dir() else path.parent


def _files(section: QuestionData) -> Files:
    named = section.split_files
    if section.dataset_name in EMBEDDED:
        folder = embedded_data_dir() / section.dataset_name
        if not folder.is_dir():
            raise HftuneError(
                f"the files of the embedded dataset {quote(section.dataset_name)} are not where hftune was installed",
                hint=f"install hftune again, or make them with `hftune data make {section.dataset_name}`",
            )
        return folder_files(folder, {split: name for split, name in named.items() if name}, ENDINGS)
    path = as_path(section.dataset_name)
    if path is None:
        raise refuse_missing(section.dataset_name, list(EMBEDDED))
    return files_of(path, section, ENDINGS)


def _read_split(paths: Sequence[Path], split: str) -> Questions:
    """All files of a split, joined; only test may lack answers."""
    parts = [read_questions(path, answers=None if split == "test" else True) for path in paths]
    if len({part.answers is None for part in parts}) > 1:
        raise HftuneError(f"some files of {split} have answers and some have none", hint="give answers in all or none")
    return Questions(
        where=parts[0].where if len(parts) == 1 else f"{parts[0].where} …",
        questions=tuple(question for part in parts for question in part.questions),
        answers=None if parts[0].answers is None else tuple(answer for part in parts for answer in part.known),
        lines=tuple(line for part in parts for line in part.lines),
    )


def _row(line: str, where: str, number: int, wanted: bool) -> tuple[str, str]:
    cells = [cell.strip() for cell in line.split("\t")]
    at = f"{quote(where)}, line {number}"
    if not line.strip():
        raise HftuneError(f"{at} is blank", hint=f"leave blank lines out: one {SHAPE} a line")
    if wanted and len(cells) == 1:
        raise HftuneError(
            f"{at}: expected {SHAPE}, got a line without a tab: {quote(line)}",
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
            hint=f"write {SHAPE}, with no tab inside either",
        )
    if not all(cells):
        lacking = "question" if not cells[0] else "answer"
        raise HftuneError(f"{at}: the {lacking} is empty: {quote(line)}", hint=f"write {SHAPE}, or leave the line out")
    return cells[0], cells[1] if wanted else ""


def _looks_like(line: str) -> str:
    """What whoever wrote a line without a tab may have meant."""
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
    return "an answer right behind its question" if after else "plain text"


def _make_dev(rows: dict[str, Questions], section: QuestionData) -> str:
    """Hold some of the training questions out; rows of one question stay together."""
    train = rows["train"]
    different = sorted(set(train.questions))
    size = round(len(different) * section.validation_size)
    if not 0 < size < len(different):
        raise HftuneError(
            f"{quote(train.where)} has too few different questions ({len(different)}) to make validation from",
            hint="give a validation split, more questions, or another data.validation_size",
        )
    held = set(Random(section.split_seed).sample(different, size))
    rows["validation"] = train.take([index for index, question in enumerate(train.questions) if question in held])
    rows["train"] = train.take([index for index, question in enumerate(train.questions) if question not in held])
    return f"validation was made from train: {count(len(rows['validation']), 'question')}, seed {section.split_seed}"
