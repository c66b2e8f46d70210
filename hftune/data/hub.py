"""Load the splits of a Hub dataset, or explain why it can't be read and what to do.

Only data files are read: the datasets library no longer runs dataset scripts. One request shows whether the Hub can be
reached, which files the repository has, and whether access is restricted. What can be refused without downloading data
is refused then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hftune.data.locate import UNLABELED, WORDS
from hftune.data.readers import class_names, from_arrow
from hftune.data.settings import CorpusData, LabeledData
from hftune.data.tables import Table
from hftune.errors import HftuneError, did_you_mean, listing, quote

Section = LabeledData | CorpusData
MATCHED = "matched"
"""MNLI has two validation and two test splits; results are reported on the matched ones unless stated otherwise."""
TIMEOUT = 10.0
"""Seconds to wait for the first response of the Hub."""
NO_RESPONSE = {"TransportError", "TimeoutException", "LocalEntryNotFoundError", "OfflineModeIsEnabled"}
CONVERTED = "refs/convert/parquet"
"""The revision of the Hub's own parquet conversion of a dataset: CONFIG/SPLIT/0000.parquet."""
CONVERTED_FILE = re.compile(r"(?P<config>[^/]+)/(?P<partial>partial-)?(?P<split>\w+)/\d{4,}\.parquet")
CONFIG = "--set data.dataset_config_name"
REVISION = f"--set data.dataset_revision={CONVERTED}"
KNOWN = (
    "google/boolq",
    "Yelp/yelp_review_full",
    "stanfordnlp/imdb",
    "nyu-mll/glue",
    "SetFit/sst5",
    "dair-ai/emotion",
    "fancyzhx/ag_news",
)
"""Datasets that the tests read as replicas; suggested for similar names."""


def hub_tables(
    section: Section, known: Sequence[str], *, needs_train: bool = True
) -> tuple[dict[str, Table], list[str]]:
    """The splits of a Hub dataset, and notes on how they were chosen; ``known`` are embedded names, for errors."""
    splits, notes = hub_splits(section, known, needs_train=needs_train)
    tables = {}
    for split, (name, rows) in splits.items():
        tables[split] = from_arrow(rows.data.table, name, from_hub=True)
        # The label names come from the features of the dataset, also if the files have none.
        tables[split].classes.update(class_names(rows.features))
    return tables, notes


def hub_splits(
    section: Section, known: Sequence[str], *, needs_train: bool = True
) -> tuple[dict[str, tuple[str, Any]], list[str]]:
    """The splits of a Hub dataset as memory-mapped ``Dataset`` objects, each with its name for messages."""
    loaded, notes = _download(section, known)
    available = list(loaded)
    named = section.split_names
    chosen = {split: choose_split(available, split, named[split], section.dataset_name) for split in WORDS}
    if needs_train and chosen["train"] is None:
        raise _no_training_split(section, available)
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
                hint=did_you_mean(named, available, f"set data.{split}_split_name to one of them"),
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
            hint=f"name one of them, for example --set data.{split}_split_name={found[0]}",
        )
    return found[0] if found else None


def _mismatched(name: str) -> str | None:
    """The counterpart of a matched split of MNLI."""
    head, _, tail = name.rpartition("_")
    return f"{head}_mis{MATCHED}" if head and tail == MATCHED else None


# ---- downloading ----


def _download(section: Section, known: Sequence[str]) -> tuple[Any, list[str]]:
    """Every split, from the Hub or from its cache on this machine."""
    from datasets.exceptions import DatasetNotFoundError
    from huggingface_hub.errors import HfHubHTTPError

    with hub_or_cache(section) as info:
        if info is not None:
            _refuse_script(section, info)
        try:
            return _load(section, info)
        except HftuneError:
            raise
        except DatasetNotFoundError as error:
            raise _not_found(section, info, known) from error
        except Exception as error:  # the files of a repository can make the loader raise anything
            if is_network_error(error) or (isinstance(error, ValueError) and is_offline()):
                raise _offline(section, error, known) from error
            if isinstance(error, HfHubHTTPError):
                raise _http_error(section, error) from error
            if isinstance(error, ValueError):
                names = _config_names(section)
                missing = section.dataset_config_name is None and "Config name is missing" in str(error)
                if (missing and len(names) > 1) or section.dataset_config_name not in (None, *names):
                    raise _no_config(section, names or ["default"], info) from error
            raise HftuneError(
                f"the dataset {quote(section.dataset_name)} can't be opened: {first_line(error)}",
                hint="use a repository of parquet, csv or json files, such as google/boolq, or the Hub's own "
                f"conversion with {REVISION}",
            ) from error


@contextmanager
def hub_or_cache(section: Section) -> Iterator[Any | None]:
    """The ``DatasetInfo`` of a repository, or None; if the Hub does not respond, the context uses only the cache.

    The loaders of the datasets library would retry for minutes on each file, so one request is made, with a timeout.
    """
    import datasets
    from huggingface_hub import HfApi

    before, info = datasets.config.HF_HUB_OFFLINE, None
    try:
        if not before:
            info = HfApi().dataset_info(section.dataset_name, revision=section.dataset_revision, timeout=TIMEOUT)
    except Exception as error:  # any other error is raised again, and explained, when the dataset is loaded
        datasets.config.HF_HUB_OFFLINE = is_network_error(error)
    try:
        yield info
    finally:
        datasets.config.HF_HUB_OFFLINE = before


def _load(section: Section, info: Any | None) -> tuple[Any, list[str]]:
    """The splits, and notes on the configuration."""
    from datasets import load_dataset_builder
    from datasets.packaged_modules.csv.csv import Csv

    request: dict[str, Any] = {
        "path": section.dataset_name,
        "name": section.dataset_config_name,
        "revision": section.dataset_revision,
    }
    notes = []
    is_converted = bool(_conversions_in(info)) if info is not None else is_offline()
    if section.dataset_revision == CONVERTED and is_converted:
        conversion = _download_conversion(section, info)
        request = {"path": "parquet", "data_files": conversion.files}
        notes = [f"the Hub converted only the first part of {name}" for name in sorted(conversion.partial)]
    builder = load_dataset_builder(**request)
    if isinstance(builder, Csv):
        # Otherwise the texts "NA" and "null" of a csv repository would become missing values.
        builder = load_dataset_builder(**request, keep_default_na=False)
    others = [name for name in builder.builder_configs if name != builder.config.name]
    if section.dataset_config_name is None and others:
        notes.append(
            f"configuration {quote(builder.config.name)} is the default; {CONFIG}=NAME takes another one: "
            f"{listing(others)}"
        )
    # Instead of load_dataset, so that a builder that reads csv can be replaced.
    builder.download_and_prepare()
    return builder.as_dataset(), notes


def _config_names(section: Section) -> list[str]:
    from datasets import get_dataset_config_names

    try:
        return list(get_dataset_config_names(section.dataset_name, revision=section.dataset_revision))
    except Exception:  # the first error is the one to report
        return []


def is_offline() -> bool:
    """Whether only the cache is used: because the user has set it, or inside ``hub_or_cache`` without a response."""
    import datasets

    return bool(datasets.config.HF_HUB_OFFLINE)


def is_network_error(error: BaseException) -> bool:
    """Whether the Hub did not respond. By class name: the HTTP library differs between versions of huggingface_hub."""
    return isinstance(error, ConnectionError) or bool(NO_RESPONSE & {kind.__name__ for kind in type(error).__mro__})


# ---- the parquet conversion ----


@dataclass
class Conversion:
    """The files of one configuration in the Hub's parquet conversion."""

    files: dict[str, list[str]] = field(default_factory=dict)
    """Paths by split."""
    partial: set[str] = field(default_factory=set)
    """Splits of which the Hub converted only the first part."""


def _download_conversion(section: Section, info: Any | None) -> Conversion:
    """The files of one configuration of the parquet conversion, on this machine; without a response those in the cache.

    The datasets library would mix configurations, and splits whose names begin alike, and would not find them offline.
    """
    from huggingface_hub import snapshot_download

    request: dict[str, Any] = {"repo_type": "dataset", "revision": CONVERTED}
    if info is not None:
        found = _conversions_in(info)
    else:
        request["local_files_only"] = True
        # No pattern for files here: other configurations need not be in the cache.
        folder = Path(snapshot_download(section.dataset_name, allow_patterns=[], **request))
        found = _by_config([path.relative_to(folder).as_posix() for path in folder.rglob("*.parquet")])
        if not found or section.dataset_config_name not in (None, *found):
            raise ConnectionError(f"of the conversion only {listing(found) or 'nothing'} is in the cache")
    name = section.dataset_config_name
    if name is None:
        name = next(iter(found)) if len(found) == 1 else "default"
    if name not in found:
        raise _no_config(section, list(found))
    paths = [path for group in found[name].files.values() for path in group]
    folder = Path(snapshot_download(section.dataset_name, allow_patterns=paths, **request))
    local = {split: [str(folder / path) for path in group] for split, group in found[name].files.items()}
    return Conversion(local, found[name].partial)


def _conversions_in(info: Any) -> dict[str, Conversion]:
    """The configurations of a parquet conversion, by name; empty for a repository with another layout."""
    return _by_config([file.rfilename for file in info.siblings or []])


def _conversions_on_hub(name: str) -> list[str]:
    """The configurations that the Hub has converted to parquet; none if it did not, or does not respond."""
    from huggingface_hub import HfApi

    try:
        return list(_by_config(HfApi().list_repo_files(name, repo_type="dataset", revision=CONVERTED)))
    except Exception:  # the dataset is refused in any case; the hint is then the general one
        return []


def _by_config(paths: list[str]) -> dict[str, Conversion]:
    found: dict[str, Conversion] = {}
    for path in sorted(paths):
        match = CONVERTED_FILE.fullmatch(path)
        if match is None:
            continue
        config = found.setdefault(match["config"], Conversion())
        config.files.setdefault(match["split"], []).append(path)
        if match["partial"]:
            config.partial.add(match["split"])
    return found


# ---- errors ----


def _refuse_script(section: Section, info: Any) -> None:
    """Refuse a repository that is read by a loading script, and point to the parquet conversion if there is one."""
    script = section.dataset_name.rpartition("/")[2] + ".py"
    if script not in {file.rfilename for file in info.siblings or []}:
        return
    conversions = _conversions_on_hub(section.dataset_name)
    hint = f"the Hub has converted it to parquet: add {REVISION}"
    if len(conversions) > 1:
        hint += f" and {CONFIG}=NAME, with one of {listing(conversions)}"
    elif not conversions:
        hint = (
            f"many such datasets have an automatic conversion, read with {REVISION}, but this one has none; look for a "
            "parquet version of it, or convert it to csv, jsonl or parquet files yourself"
        )
    raise HftuneError(
        f"the dataset {quote(section.dataset_name)} is read by a loading script ({script}), and the datasets library "
        "no longer runs dataset scripts",
        hint=hint,
    )


def _no_training_split(section: Section, available: list[str]) -> HftuneError:
    name, config = section.dataset_name, section.dataset_config_name
    evaluate = f"hftune evaluate RUN --data {name}"
    if config is not None:
        evaluate += f" {CONFIG}={config}"
    if any(split.lower() in WORDS["validation"] for split in available):
        evaluate += " --split validation"
    which = f", configuration {quote(config)}," if config is not None else ""
    return HftuneError(
        f"{quote(name)}{which} has no training split; its splits are {listing(available)}",
        hint=f"score a trained model on it with `{evaluate}`; to train, choose another configuration with "
        "data.dataset_config_name, or name a split with --set data.train_split_name=SPLIT",
    )


def _no_config(section: Section, names: list[str], info: Any | None = None) -> HftuneError:
    """The error for a configuration that is not named, or does not exist."""
    name = f"the dataset {quote(section.dataset_name)}"
    example = next((config for config in names if _has_train(config, info)), names[0])
    hint = f"choose one with {CONFIG}=NAME, for example {CONFIG}={example}"
    if section.dataset_config_name is None:
        return HftuneError(f"{name} has {len(names)} configurations and no default: {listing(names)}", hint=hint)
    return HftuneError(
        f"{name} has no configuration {quote(section.dataset_config_name)}; it has {listing(names)}",
        hint=did_you_mean(section.dataset_config_name, names, hint),
    )


def _has_train(config: str, info: Any | None) -> bool:
    """Whether the card of a repository declares a training split for a configuration: some are for evaluation only."""
    card = info.card_data.to_dict() if info is not None and info.card_data is not None else {}
    declared = [entry for entry in card.get("configs") or [] if isinstance(entry, dict)]
    files = next((entry.get("data_files") for entry in declared if entry.get("config_name") == config), None)
    return isinstance(files, list) and any(isinstance(part, dict) and part.get("split") == "train" for part in files)


def _not_found(section: Section, info: Any | None, known: Sequence[str]) -> HftuneError:
    """The error for a dataset that does not exist, is private, gated, or has no such revision."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RevisionNotFoundError

    name = quote(section.dataset_name)
    page = f"{constants.ENDPOINT}/datasets/{section.dataset_name}"
    try:
        if info is None:
            HfApi().dataset_info(section.dataset_name, revision=section.dataset_revision, timeout=TIMEOUT)
        HfApi().auth_check(section.dataset_name, repo_type="dataset")
    except GatedRepoError as error:
        if error.response.status_code == 401:
            return HftuneError(
                f"the dataset {name} is gated: its owner requires a login, and you are not logged in",
                hint=f"accept its terms on {page}, then log in with `hf auth login` (or set HF_TOKEN)",
            )
        return HftuneError(
            f"the dataset {name} is gated, and your account has no access to it yet",
            hint=f"request access on {page}; some owners grant it at once, others after a review",
        )
    except RevisionNotFoundError:
        return HftuneError(
            f"the dataset {name} has no revision {quote(section.dataset_revision)}",
            hint="set data.dataset_revision to a branch, a tag or a commit of it, or leave it out for main",
        )
    except HfHubHTTPError:
        pass  # the Hub answers the same for a private dataset and for one that does not exist
    return HftuneError(
        f"{name} is neither a file or folder here nor a dataset on the Hub that you can read",
        hint=did_you_mean(
            section.dataset_name,
            [*known, *KNOWN],
            f"check the spelling (owner/name), log in with `hf auth login` if it is private; {_without_network(known)}",
        ),
    )


def _http_error(section: Section, error: Any) -> HftuneError:
    """The error for any other HTTP status, such as 401, 429 or 500."""
    status = error.response.status_code
    hints = dict.fromkeys(
        (401, 403), "your token is invalid or has expired: log in with `hf auth login`, or fix HF_TOKEN"
    )
    hints[429] = "the Hub limits the rate of requests: wait some minutes, or log in with `hf auth login`"
    return HftuneError(
        f"the Hub answered {status} for the dataset {quote(section.dataset_name)}: {first_line(error)}",
        hint=hints.get(status, "try again later; what is in the cache is used with HF_HUB_OFFLINE=1"),
    )


def _offline(section: Section, error: Exception, known: Sequence[str]) -> HftuneError:
    """The error for a dataset that is not in the cache while the Hub can't be reached."""
    return HftuneError(
        f"the Hub can't be reached for the dataset {quote(section.dataset_name)}, and it is not in the cache: "
        f"{first_line(error)}",
        hint=did_you_mean(section.dataset_name, [*known, *KNOWN], _without_network(known)),
    )


def _without_network(known: Sequence[str]) -> str:
    return f"no network is needed for {', '.join(known)}, nor for files and folders"


def first_line(error: Exception) -> str:
    """The first line of a message, quoted."""
    return quote((str(error).strip().splitlines() or [type(error).__name__])[0], limit=240)
