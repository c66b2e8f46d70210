"""A dataset of the Hub → one table a split. Called by ``hftune.data.load`` for names that are no path.

Only data files are read (the datasets library no longer runs dataset scripts).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hftune.config.data import CorpusData, LabelledData
from hftune.data.locate import UNLABELLED, WORDS
from hftune.data.sources import from_arrow
from hftune.data.table import Table
from hftune.data.wording import closest, listing, quote
from hftune.errors import HftuneError

PATIENCE = 10.0
"""Seconds that the Hub has for its first answer."""
NO_ANSWER = {"TransportError", "TimeoutException", "LocalEntryNotFoundError", "OfflineModeIsEnabled"}


def hub_tables(section: LabelledData | CorpusData, embedded: list[str]) -> dict[str, Table]:
    """The splits of a Hub dataset.

    Args:
        section: its name, subset and revision; train, dev and test name splits where their names do not tell.
        embedded: the names that need no network, for the error.
    """
    tables = {}
    for split, (name, rows) in hub_splits(section, embedded).items():
        tables[split] = from_arrow(rows.data.table, name)
        # The features of the dataset are the truth about its labels, also where the files carry none.
        tables[split].classes.update(_class_names(rows.features))
    return tables


def hub_splits(section: LabelledData | CorpusData, embedded: list[str]) -> dict[str, tuple[str, Any]]:
    """The splits of a Hub dataset as the datasets library has them, on disk, each with what messages call it."""
    loaded = _download(section, embedded)
    named = {"train": section.train, "dev": section.dev, "test": section.test}
    chosen = {split: choose_split(list(loaded), split, named[split], section.name) for split in WORDS}
    return {split: (f"{section.name} ({name})", loaded[name]) for split, name in chosen.items() if name is not None}


def choose_split(available: list[str], split: str, named: str | None, source: str) -> str | None:
    """The name on the Hub of one of our splits; None where it has none."""
    if named is not None:
        if named not in available:
            raise HftuneError(
                f"{quote(source)} has no split {quote(named)}; its splits are {listing(available)}",
                hint=closest(named, available) + f"set data.{split} to one of them",
            )
        return named
    exact = [name for name in available if name.lower() in WORDS[split]]
    worded = [
        name
        for name in available
        if set(WORDS[split]) & set(name.lower().split("_")) and not UNLABELLED & set(name.lower().split("_"))
    ]
    found = exact or worded
    if len(found) > 1:
        raise HftuneError(
            f"{quote(source)} has several splits that could be {split}: {listing(found)}",
            hint=f"name one with --set data.{split}=SPLIT",
        )
    if not found and split == "train":
        raise HftuneError(
            f"{quote(source)} has no training split; its splits are {listing(available)}",
            hint="name one with --set data.train=SPLIT",
        )
    return found[0] if found else None


def _class_names(features: Any) -> dict[str, tuple[str, ...]]:
    from datasets import ClassLabel

    return {name: tuple(kind.names) for name, kind in features.items() if isinstance(kind, ClassLabel)}


def _download(section: LabelledData | CorpusData, embedded: list[str]) -> Any:
    """Every split, from the Hub or from its cache on this machine."""
    from datasets.exceptions import DatasetNotFoundError

    name = quote(section.name)
    offline = f"no network is needed for {', '.join(embedded)}, nor for files and folders"
    try:
        with _offline_where_unreachable(section):
            return _load(section)
    except DatasetNotFoundError as error:
        raise HftuneError(
            f"{name} is no file or folder here, and no dataset on the Hub that you can read: {_first_line(error)}",
            hint=closest(section.name, embedded)
            + f"check the spelling (owner/name), log in with `hf auth login` if it is private; {offline}",
        ) from error
    except ValueError as error:
        raise HftuneError(
            f"the dataset {name} can't be opened like this: {_first_line(error)}",
            hint="name one of its configurations with --set data.subset=NAME",
        ) from error
    except Exception as error:  # whatever a stranger's files make the loader raise
        if _is_network(error):
            raise HftuneError(
                f"the Hub can't be reached for the dataset {name}, and it is not in the cache: {_first_line(error)}",
                hint=closest(section.name, embedded) + offline,
            ) from error
        raise HftuneError(
            f"the dataset {name} can't be opened: {_first_line(error)}",
            hint="use a repository of parquet, csv or json files, such as google/boolq",
        ) from error


def _load(section: LabelledData | CorpusData) -> Any:
    from datasets import load_dataset, load_dataset_builder
    from datasets.packaged_modules.csv.csv import Csv

    request = {"path": section.name, "name": section.subset, "revision": section.revision}
    # Without this the texts "NA" and "null" of a csv repository would become missing values.
    reading = {"keep_default_na": False} if isinstance(load_dataset_builder(**request), Csv) else {}
    return load_dataset(**request, **reading)


@contextmanager
def _offline_where_unreachable(section: LabelledData | CorpusData) -> Iterator[None]:
    """Ask the Hub once; where no answer comes, look into the cache alone: the loaders would try for long."""
    import datasets
    from huggingface_hub import HfApi

    before = datasets.config.HF_HUB_OFFLINE
    try:
        if not before:
            HfApi().dataset_info(section.name, revision=section.revision, timeout=PATIENCE)
    except Exception as error:  # an answer of any kind is for the loader to read again and to word
        datasets.config.HF_HUB_OFFLINE = _is_network(error)
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before


def _is_network(error: BaseException) -> bool:
    """Whether no answer came. By name: the HTTP library differs between versions of huggingface_hub."""
    if isinstance(error, ConnectionError):
        return True
    return bool(NO_ANSWER & {kind.__name__ for kind in type(error).__mro__})


def _first_line(error: Exception) -> str:
    return quote((str(error).splitlines() or [type(error).__name__])[0], limit=240)
