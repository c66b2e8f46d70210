"""A dataset of the Hub → one table a split. Called by ``hftune.data.load`` for names that are no path.

Only data files are read: the datasets library no longer runs dataset scripts.
"""

from __future__ import annotations

from typing import Any

from hftune.config.data import CorpusData, LabeledData
from hftune.data import hub_access
from hftune.data.hub_access import CONVERTED, first_line
from hftune.data.locate import UNLABELED, WORDS
from hftune.data.sources import from_arrow
from hftune.data.table import Table
from hftune.data.wording import closest, listing, quote
from hftune.errors import HftuneError

Section = LabeledData | CorpusData
MATCHED = "matched"
"""MNLI has two validation and two test splits; results are reported on the matched ones unless stated otherwise."""


def hub_tables(
    section: Section, embedded: list[str], *, needs_train: bool = True
) -> tuple[dict[str, Table], list[str]]:
    """The splits of a Hub dataset, and what was decided in choosing them.

    Args:
        section: Its name, subset and revision; train, validation and test name splits if their names do not tell.
        embedded: The names that need no network, for the error.
        needs_train: Whether a dataset without a training split is refused.
    """
    splits, notes = hub_splits(section, embedded, needs_train=needs_train)
    tables = {}
    for split, (name, rows) in splits.items():
        tables[split] = from_arrow(rows.data.table, name, from_hub=True)
        # The features of the dataset are the truth about its labels, also if the files have none.
        tables[split].classes.update(_class_names(rows.features))
    return tables, notes


def hub_splits(
    section: Section, embedded: list[str], *, needs_train: bool = True
) -> tuple[dict[str, tuple[str, Any]], list[str]]:
    """The splits of a Hub dataset as the datasets library has them, on disk, each with its name in messages."""
    loaded, notes = _download(section, embedded)
    available = list(loaded)
    named = section.split_names
    chosen = {split: choose_split(available, split, named[split], section.dataset_name) for split in WORDS}
    if needs_train and chosen["train"] is None:
        raise _refuse_trainless(section, available)
    for split, name in chosen.items():
        other = _mismatched(name) if name is not None else None
        if named[split] is None and other in available:
            notes.append(
                f"{split} is the split {quote(name)}; --set data.{split}_split_name={other} takes the other one"
            )
    unused = [name for name in available if name not in chosen.values() and not name.endswith(f"_mis{MATCHED}")]
    if unused:
        notes.append(f"splits that are not used: {listing(unused)}")
    return {
        split: (f"{section.dataset_name} ({name})", loaded[name]) for split, name in chosen.items() if name is not None
    }, notes


def choose_split(available: list[str], split: str, named: str | None, source: str) -> str | None:
    """The name on the Hub of train, validation or test; None if the dataset has no such split."""
    if named is not None:
        if named not in available:
            raise HftuneError(
                f"{quote(source)} has no split {quote(named)}; its splits are {listing(available)}",
                hint=closest(named, available) + f"set data.{split}_split_name to one of them",
            )
        return named
    exact = [name for name in available if name.lower() in WORDS[split]]
    worded = [
        name
        for name in available
        if set(WORDS[split]) & set(name.lower().split("_")) and not UNLABELED & set(name.lower().split("_"))
    ]
    found = exact or worded
    if len(found) == 2 and _mismatched(found[0]) == found[1]:
        found = found[:1]
    if len(found) > 1:
        raise HftuneError(
            f"{quote(source)} has several splits that could be {split}: {listing(found)}",
            hint=f"name one with --set data.{split}_split_name=SPLIT, for example --set "
            f"data.{split}_split_name={found[0]}",
        )
    return found[0] if found else None


def _mismatched(name: str) -> str | None:
    """The counterpart of a matched split of MNLI."""
    head, _, tail = name.rpartition("_")
    return f"{head}_mis{MATCHED}" if head and tail == MATCHED else None


def _refuse_trainless(section: Section, available: list[str]) -> HftuneError:
    subset = (
        f" --set data.dataset_config_name={section.dataset_config_name}"
        if section.dataset_config_name is not None
        else ""
    )
    config = f", configuration {quote(section.dataset_config_name)}," if section.dataset_config_name is not None else ""
    validation = " --split validation" if any(name.lower() in WORDS["validation"] for name in available) else ""
    return HftuneError(
        f"{quote(section.dataset_name)}{config} has no training split; its splits are {listing(available)}",
        hint="score a trained model on it with `hftune evaluate RUN --data "
        f"{section.dataset_name}{subset}{validation}`; to train, "
        "choose another configuration with data.dataset_config_name, or name a split with --set "
        "data.train_split_name=SPLIT",
    )


def _class_names(features: Any) -> dict[str, tuple[str, ...]]:
    from datasets import ClassLabel

    return {name: tuple(kind.names) for name, kind in features.items() if isinstance(kind, ClassLabel)}


def _download(section: Section, embedded: list[str]) -> tuple[Any, list[str]]:
    """Every split, from the Hub or from its cache on this machine."""
    from datasets.exceptions import DatasetNotFoundError
    from huggingface_hub.errors import HfHubHTTPError

    with hub_access.hub_or_cache(section) as info:
        if info is not None:
            hub_access.refuse_script(section, info)
        try:
            return _load(section, info)
        except HftuneError:
            raise
        except DatasetNotFoundError as error:
            raise hub_access.refuse_not_found(section, info, embedded) from error
        except ValueError as error:
            if hub_access.is_offline():
                raise hub_access.refuse_offline(section, error, embedded) from error
            names = _config_names(section)
            missing = section.dataset_config_name is None and len(names) > 1 and "Config name is missing" in str(error)
            if missing or section.dataset_config_name not in (None, *names):
                raise hub_access.refuse_config(section, names or ["default"], info) from error
            raise _refuse_files(section, error) from error
        except Exception as error:  # whatever the files of a repository make the loader raise
            if hub_access.is_network(error):
                raise hub_access.refuse_offline(section, error, embedded) from error
            if isinstance(error, HfHubHTTPError):
                raise hub_access.refuse_http(section, error) from error
            raise _refuse_files(section, error) from error


def _refuse_files(section: Section, error: Exception) -> HftuneError:
    return HftuneError(
        f"the dataset {quote(section.dataset_name)} can't be opened: {first_line(error)}",
        hint=f"use a repository of parquet, csv or json files, such as google/boolq, or the Hub's own conversion with "
        f"--set data.dataset_revision={CONVERTED}",
    )


def _load(section: Section, info: Any | None) -> tuple[Any, list[str]]:
    """The splits, and which configuration was chosen without being named."""
    from datasets import load_dataset_builder
    from datasets.packaged_modules.csv.csv import Csv

    request: dict[str, Any] = {
        "path": section.dataset_name,
        "name": section.dataset_config_name,
        "revision": section.dataset_revision,
    }
    notes = []
    is_converted = hub_access.converted(info) if info is not None else hub_access.is_offline()
    if section.dataset_revision == CONVERTED and is_converted:
        conversion = hub_access.download_conversion(section, info)
        request = {"path": "parquet", "data_files": conversion.files}
        notes = [f"the Hub converted only the first part of {name}" for name in sorted(conversion.partial)]
    builder = load_dataset_builder(**request)
    if isinstance(builder, Csv):
        # Otherwise the texts "NA" and "null" of a csv repository would become missing values.
        builder = load_dataset_builder(**request, keep_default_na=False)
    others = [name for name in builder.builder_configs if name != builder.config.name]
    if section.dataset_config_name is None and others:
        notes.append(
            f"configuration {quote(builder.config.name)} is the default; --set data.dataset_config_name=NAME takes "
            "another one: "
            f"{listing(others)}"
        )
    builder.download_and_prepare()
    return builder.as_dataset(), notes


def _config_names(section: Section) -> list[str]:
    from datasets import get_dataset_config_names

    try:
        return list(get_dataset_config_names(section.dataset_name, revision=section.dataset_revision))
    except Exception:  # the first error is the one to report
        return []
