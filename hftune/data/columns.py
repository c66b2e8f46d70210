"""Which column is the text, the second text and the label: as the recipe says, or by the names people use.

Called by ``hftune.data.load`` on the training split, and by ``hftune predict`` on rows that have no label yet;
``delimited`` asks it whether a first line is a header.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hftune.config.data import LabeledData
from hftune.data.table import Table
from hftune.data.wording import closest, listing, quote
from hftune.errors import HftuneError

PAIRS = (
    ("text", "text_pair"),
    ("question", "passage"),
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("sentence_1", "sentence_2"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("question", "context"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("query", "document"),
    ("query", "passage"),
    ("claim", "evidence"),
)
TEXTS = (
    "text",
    "sentence",
    "review",
    "review_text",
    "review_body",
    "content",
    "comment",
    "comment_text",
    "body",
    "tweet",
    "message",
    "utterance",
    "document",
    "headline",
    "question",
    "query",
    "title",
)
LABELS = (
    "label",
    "labels",
    "gold_label",
    "stars",
    "star",
    "star_rating",
    "rating",
    "answer",
    "sentiment",
    "class",
    "category",
    "target",
    "intent",
    "emotion",
    "topic",
    "gold",
)
NO_PAIR = "none"
NAME_ENDINGS = ("_text", "_name")
"""What follows the name of the label column in the name of a column with the label names."""
_KNOWN = {*TEXTS, *LABELS, *(name for pair in PAIRS for name in pair)}


@dataclass(frozen=True)
class Roles:
    """The names of the columns that are used."""

    text: str
    pair: str | None
    label: str


def is_known_name(cell: str) -> bool:
    """Whether a cell of a first line is a name that columns usually have."""
    return cell.strip().lower() in _KNOWN


def find_roles(table: Table, section: LabeledData) -> Roles:
    """The columns of a split that has labels.

    Args:
        table: the training split.
        section: names the columns that shall not be guessed.
    """
    label = find_label(table, section.label_column_name)
    if label is None:
        raise HftuneError(
            f"{quote(table.where)} has no column that looks like a label; its columns are {listing(table.columns)}",
            hint="name it with data.label_column_name (--label-column); a file without a header needs one",
        )
    text, pair = _find_texts(table, section, label)
    if text is None:
        raise HftuneError(
            f"{quote(table.where)} has no column that looks like a text; its columns are {listing(table.columns)}",
            hint="name it with data.text_column_name (--text-column); a file without a header needs one",
        )
    used = [name for name in (text, pair, label) if name is not None]
    if len(set(used)) != len(used):
        raise HftuneError(
            f"one column of {quote(table.where)} would be used twice: text {quote(text)}, "
            f"pair {quote(pair)}, label {quote(label)}",
            hint="name three different columns with data.text_column_name, data.text_pair_column_name and "
            "data.label_column_name",
        )
    return Roles(text=text, pair=pair, label=label)


def unused_texts(table: Table, roles: Roles, section: LabeledData) -> list[str]:
    """A note about text columns of a Hub dataset that are not used, if the columns were found by their names."""
    if not table.from_hub or (section.text_column_name is not None and section.text_pair_column_name is not None):
        return []
    used = {roles.text, roles.pair, roles.label, *(f"{roles.label}{ending}" for ending in NAME_ENDINGS)}
    unused = [
        name
        for name, values in table.columns.items()
        if name not in used and isinstance(next((value for value in values if value is not None), None), str)
    ]
    if not unused:
        return []
    texts = quote(roles.text) if roles.pair is None else f"{quote(roles.text)} and {quote(roles.pair)}"
    return [f"the text is {texts} (--text-column, --pair-column); columns that are not used: {listing(unused)}"]


def find_unlabeled(names: Sequence[str], section: LabeledData) -> tuple[str | None, str | None]:
    """The columns of the text and of the second text in rows that shall be labeled; None where no name fits.

    Args:
        names: The columns that are there.
        section: How the data was read that the model was trained on. What it names goes first, where it is there;
            then text and text_pair; then the names that people use.
    """
    table = Table("", {name: [] for name in names})
    columns = section.model_dump(include={"text_column_name", "text_pair_column_name", "label_column_name"})
    here = {key: name for key, name in columns.items() if name in (*names, NO_PAIR)}
    if "text" in names and "text_column_name" not in here and here.get("text_pair_column_name", NO_PAIR) == NO_PAIR:
        here["text_column_name"] = "text"
        here.setdefault("text_pair_column_name", "text_pair" if "text_pair" in names else NO_PAIR)
    label = here.get("label_column_name") or _first_of(table, LABELS, without=frozenset(here.values()))
    return _find_texts(table, LabeledData(**here), label)


def find_label(table: Table, named: str | None) -> str | None:
    """The label column, or None where no name fits."""
    if named is not None:
        return required(table, named, "label_column_name")
    return _first_of(table, LABELS)


def required(table: Table, name: str, option: str) -> str:
    """A column that must be there."""
    if name in table.columns:
        return name
    raise HftuneError(
        f"{quote(table.where)} has no column {quote(name)}; its columns are {listing(table.columns)}",
        hint=closest(name, list(table.columns)) + f"set data.{option} to one of them",
    )


def _first_of(table: Table, names: tuple[str, ...], *, without: frozenset[str] = frozenset()) -> str | None:
    by_lower = {name.lower(): name for name in table.columns if name not in without}
    return next((by_lower[name] for name in names if name in by_lower), None)


def _find_texts(table: Table, section: LabeledData, label: str | None) -> tuple[str | None, str | None]:
    """The text column, or None where no name fits, and for pairs the second."""
    text = (
        required(table, section.text_column_name, "text_column_name") if section.text_column_name is not None else None
    )
    if section.text_pair_column_name is None:
        for first, second in _pairs_in(table, label):
            if text in (None, first):
                return first, second
        pair = None
    elif section.text_pair_column_name == NO_PAIR:
        pair = None
    else:
        pair = required(table, section.text_pair_column_name, "text_pair_column_name")
        if text is None:
            text = next((first for first, second in _pairs_in(table, label) if second == pair), None)
    if text is None:
        text = _single_text(table, frozenset(name for name in (label, pair) if name is not None))
    return text, pair


def _pairs_in(table: Table, label: str | None) -> list[tuple[str, str]]:
    """The known pairs that the table has, in the table's spelling."""
    by_lower = {name.lower(): name for name in table.columns if name != label}
    return [(by_lower[one], by_lower[two]) for one, two in PAIRS if one in by_lower and two in by_lower]


def _single_text(table: Table, taken: frozenset[str]) -> str | None:
    found = _first_of(table, TEXTS, without=taken)
    rest = [name for name in table.columns if name not in taken]
    return rest[0] if found is None and len(rest) == 1 else found
