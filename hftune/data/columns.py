"""Find the columns of texts and label, and the names of the labels.

Columns are named in the recipe or recognized by their names. Labels become names in one order, which is
the same in the model's config, in metrics and in predictions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import NoneType
from typing import Any

from hftune.data.settings import LabeledData
from hftune.data.tables import LABELS, PAIRS, TEXTS, WHOLE_NUMBER, Table, check_characters, plain_name
from hftune.errors import HftuneError, count, did_you_mean, listing, quote

NO_PAIR = "none"
"""Value of data.text_pair_column_name for single texts."""
COLUMN_SETTINGS = ("text_column_name", "text_pair_column_name", "label_column_name")
NAME_ENDINGS = ("_text", "_name")
"""Suffixes of the label column's name that make the name of a column with the label names."""
DECIMAL = re.compile(r"-?\d{1,18}(\.\d{1,18})?")
LABEL_TYPES = {str, bool, int, float}
UNLABELED = "-1"
"""The class number of unpublished labels in published test splits."""


@dataclass(frozen=True)
class ColumnMapping:
    """The names of the columns that are used."""

    text: str
    pair: str | None
    label: str


# ---- columns ----


def find_columns(table: Table, section: LabeledData) -> ColumnMapping:
    """The columns of the training split: named in the section, or recognized."""
    label = section.label_column_name
    label = _first_of(LABELS, table.columns, table.where) if label is None else _required_label(table, label)
    if label is None:
        raise _not_recognized(table.columns, table.where, "a label", "label_column_name")
    text, pair = _find_texts(table.columns, section, label, table.where)
    if text is None:
        raise _not_recognized(table.columns, table.where, "a text", "text_column_name")
    used = [name for name in (text, pair, label) if name is not None]
    if len(set(used)) != len(used):
        raise HftuneError(
            f"one column of {quote(table.where)} would be used twice: text {quote(text)}, "
            f"pair {quote(pair)}, label {quote(label)}",
            hint="name three different columns with data.text_column_name, data.text_pair_column_name and "
            "data.label_column_name",
        )
    return ColumnMapping(text=text, pair=pair, label=label)


def text_column(names: Collection[str], where: str, named: str | None) -> str:
    """The one text column of a corpus: the named one, one with a usual name, or the only one."""
    if named is not None:
        return required(names, named, "text_column_name", where)
    found = _single_text(names, where)
    if found is None:
        raise _not_recognized(names, where, "text", "text_column_name")
    return found


def _not_recognized(names: Collection[str], where: str, what: str, option: str) -> HftuneError:
    header = "; a csv file without a header needs one" if re.search(r"\.[ct]sv(\.gz)?$", where) else ""
    return HftuneError(
        f"{quote(where)} has no column that looks like {what}; its columns are {listing(names)}",
        hint=f"name it with --set data.{option}=NAME{header}",
    )


def unused_texts(table: Table, mapping: ColumnMapping, section: LabeledData) -> list[str]:
    """A note about text columns of a Hub dataset that are not used, if the columns were found by their names."""
    if not table.from_hub or (section.text_column_name is not None and section.text_pair_column_name is not None):
        return []
    used = {mapping.text, mapping.pair, mapping.label, *(f"{mapping.label}{ending}" for ending in NAME_ENDINGS)}
    unused = [
        name
        for name, values in table.columns.items()
        if name not in used and isinstance(next((value for value in values if value is not None), None), str)
    ]
    if not unused:
        return []
    texts = quote(mapping.text) if mapping.pair is None else f"{quote(mapping.text)} and {quote(mapping.pair)}"
    return [f"the text is {texts} (--text-column, --pair-column); columns that are not used: {listing(unused)}"]


def find_unlabeled(names: Sequence[str], section: LabeledData) -> tuple[str | None, str | None]:
    """The columns of the text and of the second text in rows without labels; None if no name fits.

    Args:
        names: The existing columns.
        section: The ``data`` section of the training run. Columns that it names are taken first, if they exist; then
            text and text_pair; then the usual names.
    """
    here = existing_columns(section, names)
    if "text" in names and "text_column_name" not in here and here.get("text_pair_column_name", NO_PAIR) == NO_PAIR:
        here["text_column_name"] = "text"
        here.setdefault("text_pair_column_name", "text_pair" if "text_pair" in names else NO_PAIR)
    label = here.get("label_column_name") or _first_of(LABELS, [name for name in names if name not in here.values()])
    return _find_texts(names, LabeledData(**here), label)


def existing_columns(section: LabeledData, names: Collection[str]) -> dict[str, str]:
    """The settings of a ``data`` section that name columns, where such a column exists."""
    columns = section.model_dump(include=set(COLUMN_SETTINGS), exclude_none=True)
    found = {key: name if name == NO_PAIR else _same_name(names, name) for key, name in columns.items()}
    return {key: name for key, name in found.items() if name is not None}


def with_columns_of(trained: LabeledData, section: LabeledData, names: Collection[str]) -> LabeledData:
    """The section, with the columns of a training run where they exist and the section names no other."""
    stated = section.model_dump(include=set(COLUMN_SETTINGS), exclude_none=True)
    known = existing_columns(trained, [name for name in names if name not in stated.values()])
    return section.model_copy(update=known | stated)


def other_label(table: Table) -> str | None:
    """A column that has the usual name of a label, if any."""
    return _first_of(LABELS, table.columns)


def recognized_text(names: Collection[str]) -> str | None:
    """The most likely text column, if any."""
    return _single_text(names)


def renamed(table: Table, mapping: ColumnMapping) -> Table:
    """The table with the names that its columns have in train, where they differ by case or punctuation."""
    wanted = [name for name in (mapping.text, mapping.pair, mapping.label) if name is not None]
    here = {_same_name(table.columns, name): name for name in wanted if name not in table.columns}
    columns = {here.get(name, name): values for name, values in table.columns.items()}
    return replace(table, columns=columns, classes={here.get(name, name): one for name, one in table.classes.items()})


def required(names: Collection[str], name: str, option: str, where: str) -> str:
    """A column that must exist, with the spelling that it has here."""
    found = _same_name(names, name)
    if found is not None:
        return found
    raise HftuneError(
        f"{quote(where)} has no column {quote(name)}; its columns are {listing(names)}",
        hint=did_you_mean(name, names, f"set data.{option} to one of them"),
    )


def _required_label(table: Table, name: str) -> str:
    return required(table.columns, name, "label_column_name", table.where)


def _same_name(names: Collection[str], name: str) -> str | None:
    """The column of that name, or the only one with this name apart from case, spaces and punctuation."""
    same = [one for one in names if plain_name(one) == plain_name(name)]
    return name if name in names else same[0] if len(same) == 1 else None


def _first_of(usual: Sequence[Sequence[str]], names: Collection[str], where: str | None = None) -> str | None:
    """The column with the most likely of the usual names: groups of them, the most likely group first.

    With ``where``, the source of the columns for a message, two columns that are equally likely are refused.
    """
    for group in usual:
        likely = dict.fromkeys(map(plain_name, group))
        found = [name for one in likely for name in names if plain_name(name) == one]
        if len(found) > 1 and where is not None:
            what = "label" if usual is LABELS else "text"
            raise HftuneError(
                f"{quote(where)} has several columns that look like the {what}: {listing(found)}",
                hint=f"name one of them: --{what}-column {found[0]!r}",
            )
        if found:
            return found[0]
    return None


def _find_texts(
    names: Collection[str], section: LabeledData, label: str | None, where: str | None = None
) -> tuple[str | None, str | None]:
    """The text column, or None if no name fits, and for pairs the second.

    With ``where``, the source of the columns for a message, columns that are equally likely are refused.
    """
    text, pair = section.text_column_name, section.text_pair_column_name
    by_plain = {plain_name(name): name for name in reversed([*names]) if name != label}
    pairs = [
        (by_plain[plain_name(one)], by_plain[plain_name(two)])
        for one, two in PAIRS
        if plain_name(one) in by_plain and plain_name(two) in by_plain
    ]
    if text is not None:
        text = required(names, text, "text_column_name", where or "")
    if pair is None:
        # Pairs before single texts: "question" is a usual name on its own, but not next to a "passage".
        text, pair = next(((one, two) for one, two in pairs if text in (None, one)), (text, None))
    elif pair == NO_PAIR:
        pair = None
    else:
        pair = required(names, pair, "text_pair_column_name", where or "")
        if text is None:
            text = next((one for one, two in pairs if two == pair), None)
    if text is None:
        text = _single_text([name for name in names if name not in (label, pair)], where)
    return text, pair


def _single_text(names: Collection[str], where: str | None = None) -> str | None:
    """The column with a usual name of a text, or the only one."""
    return _first_of(TEXTS, names, where) or (next(iter(names)) if len(names) == 1 else None)


# ---- labels ----


def label_names(table: Table, column: str) -> list[str | None]:
    """The name of each row's label; None if it has none.

    Whole numbers keep their digits, booleans become ``false`` and ``true`` as in JSON, class numbers get the names of
    their source, strings lose the whitespace around them.
    """
    values = table.columns[column]
    if column in table.classes:
        return _class_names(table, column, table.classes[column])
    strange = set(map(type, values)) - LABEL_TYPES - {NoneType}
    if strange:
        row, value = next((row, value) for row, value in enumerate(values) if type(value) in strange)
        raise HftuneError(
            f"{table.at(row)}: expected one label, got {quote(value)}",
            hint="several labels for one text (multi-label classification) are not supported yet"
            if isinstance(value, list)
            else f"a label is a string, a whole number or a boolean; is it {quote(column)}?",
        )
    # Each different label once, in the order of the rows, and with its type: True == 1 in Python, but a column of
    # booleans and numbers is a mistake.
    different = dict.fromkeys(zip(map(type, values), values, strict=True))
    labels = [value for _, value in different if not is_missing(value)]
    kinds = {type(value) for value in labels}
    if float in kinds and kinds <= {int, float}:
        _refuse_scores(table, column, {label: label for label in labels})
    elif kinds == {str} and (numbers := _as_numbers(labels)) is not None:  # a csv file has no other type
        _refuse_scores(table, column, numbers)
    if len(kinds) > 1 and kinds != {int, float}:
        raise HftuneError(
            f"labels of {quote(table.where)} (column {quote(column)}) are of several kinds: "
            f"{', '.join(sorted(kind.__name__ for kind in kinds))}",
            hint="write all labels in one way: all strings, all whole numbers, or all true and false",
        )
    names = {label: _name(label, table, values.index(label)) for label in labels}
    return [names.get(value) for value in values]


def label_order(names: Iterable[str], classes: tuple[str, ...] | None) -> tuple[str, ...]:
    """All labels in order: that of the source, else numbers by value, else strings by code point."""
    if classes is not None:
        return classes
    known = set(names)
    # By value, so that 10 comes after 9: some metrics (quadratic kappa, mean absolute error) read the order as a scale.
    if all(WHOLE_NUMBER.fullmatch(name) for name in known):
        return tuple(sorted(known, key=lambda name: (int(name), name)))
    if all(DECIMAL.fullmatch(name) for name in known):
        return tuple(sorted(known, key=lambda name: (float(name), name)))
    return tuple(sorted(known))


def check_seen(names: Sequence[str], trained: set[str], where: str) -> None:
    """Refuse labels of validation or test that no training row has."""
    unseen = sorted(set(names) - trained)
    if not unseen:
        return
    rows = sum(name not in trained for name in names)
    raise HftuneError(
        f"{quote(where)} has labels that no training row has: {listing(unseen)} ({count(rows, 'row')}); "
        f"train has {listing(sorted(trained))}",
        hint=did_you_mean(unseen[0], sorted(trained), "fix the labels, or give training rows for them"),
    )


def check_classes(names: Iterable[str], where: str) -> None:
    """Refuse training rows that all have one label."""
    known = set(names)
    if len(known) < 2:
        raise HftuneError(
            f"all training rows of {quote(where)} have one label: {listing(known)}",
            hint="a classifier needs at least two; check that data.label_column_name is the right column",
        )


def is_missing(value: Any) -> bool:
    """Whether a cell has no label: it is empty, whitespace or NaN."""
    if isinstance(value, str):
        return not value or value.isspace()
    return value is None or (isinstance(value, float) and math.isnan(value))


def _class_names(table: Table, column: str, classes: tuple[str, ...]) -> list[str | None]:
    """Names of class numbers; -1 is how the Hub writes that a row has no label."""
    names: list[str | None] = []
    for row, value in enumerate(table.columns[column]):
        if is_missing(value) or value == -1:
            names.append(None)
        elif isinstance(value, int) and 0 <= value < len(classes):
            names.append(classes[value])
        else:
            raise HftuneError(
                f"{table.at(row)}: {quote(value)} is not a class number of column "
                f"{quote(column)}, which has {len(classes)} classes",
                hint="the file's own list of label names and its rows do not agree; write it again",
            )
    return names


def _as_numbers(labels: Sequence[str]) -> dict[str, float] | None:
    """Labels that are all written as numbers; None if one is not."""
    try:
        return {label: value for label in labels if not math.isnan(value := float(label))}
    except ValueError:
        return None


def _refuse_scores(table: Table, column: str, labels: Mapping[Any, float]) -> None:
    """Refuse labels that are scores: a regression task. Classes that are written as 1.0 and 2.0 pass."""
    for label, value in labels.items():
        if isinstance(value, float) and not value.is_integer():  # infinity is a score too
            raise HftuneError(
                f"{table.at(table.columns[column].index(label))}: the label {value:g} is not a whole number; column "
                f"{quote(column)} holds scores from {min(labels.values()):g} to {max(labels.values()):g}, which is a "
                "regression task",
                hint="hftune trains classifiers, regression is not supported yet: name a column of classes with "
                "--label-column, or turn the scores into classes first",
            )


def _name(value: Any, table: Table, row: int) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(int(value))
    name = str(value).strip()
    check_characters(name, table.at(row), f"the label {quote(name)}")
    return name


def with_label_text(tables: dict[str, Table], label: str) -> tuple[dict[str, Table], list[str]]:
    """Replace integer labels by class numbers with names, if a second column has the names, as in SetFit's datasets.

    ``{"label": 4, "label_text": "very positive"}``: predictions read "very positive", labels keep the order of their
    integers. The names are used only if they correspond one to one with the integers over all splits; the note that is
    returned with the splits explains what was decided.
    """
    column = _names_column(tables.values(), label)
    if column is None:
        return tables, []
    names: dict[int, str] = {}
    for table in tables.values():
        values = table.columns.get(label, [])
        # A user's file with only some labels missing has a mistake; a published dataset may withhold some.
        missing = sum(is_missing(value) for value in values)
        if 0 < missing < len(values) and not table.from_hub:
            return tables, []  # refused later, as for any file
        if _is_hidden(values):
            continue
        for value, text in zip(values, table.columns[column], strict=True):
            if is_missing(value):
                continue
            number = _whole_number(value)
            if number is None:
                return tables, []  # the labels have names of their own
            if not isinstance(text, str) or not text.strip() or names.setdefault(number, text.strip()) != text.strip():
                return tables, [_unused(label, column)]
    if not names or len(set(names.values())) != len(names):
        return tables, [_unused(label, column)]
    made = {split: _numbered(table, label, column, names) for split, table in tables.items()}
    return made, [f"label names come from column {quote(column)}"]


def _names_column(tables: Iterable[Table], label: str) -> str | None:
    """The column with the label names, if no split has ClassLabel names already and every labeled split has it."""
    labeled = [table for table in tables if label in table.columns]
    if not labeled or any(label in table.classes for table in labeled):
        return None
    found = [label + ending for ending in NAME_ENDINGS]
    return next((name for name in found if all(name in table.columns for table in labeled)), None)


def _numbered(table: Table, label: str, column: str, names: dict[int, str]) -> Table:
    """A split with the places of its labels in the order of the integers, and None for no label."""
    if label not in table.columns:
        return table
    order = sorted(names)
    place = {number: index for index, number in enumerate(order)}
    values = table.columns[label]
    # Some datasets have a class -1. In a split of -1 alone the names show whether it is that class, or a label that is
    # not published.
    minus_one = names.get(int(UNLABELED))
    hidden = _is_hidden(values) and (minus_one is None or any(text != minus_one for text in table.columns[column]))
    numbers = [None if hidden or (number := _whole_number(value)) is None else place[number] for value in values]
    classes = {**table.classes, label: tuple(names[number] for number in order)}
    return replace(table, columns={**table.columns, label: numbers}, classes=classes)


def _is_hidden(values: Sequence[Any]) -> bool:
    """Whether all labels of a split are -1, as those of unpublished test labels are, or missing."""
    return all(is_missing(value) or _whole_number(value) == int(UNLABELED) for value in values)


def _whole_number(value: Any) -> int | None:
    """The integer that a cell holds: as a number, or as digits as in a csv file."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and WHOLE_NUMBER.fullmatch(value.strip()):
        return int(value)
    return value if isinstance(value, int) else None


def _unused(label: str, column: str) -> str:
    return f"label names are the values of {quote(label)}: {quote(column)} does not correspond to them one to one"
