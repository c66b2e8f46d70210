"""What the Hub answers about a dataset repository, and why one can't be read. Called by ``hub``.

One request tells whether the Hub can be reached, which files there are, and whether access is restricted. Everything
that can be refused without downloading data is refused here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hftune.config.data import CorpusData, LabeledData
from hftune.data.wording import closest, listing, quote
from hftune.errors import HftuneError

TIMEOUT = 10.0
"""Seconds to wait for the first answer of the Hub."""
NO_ANSWER = {"TransportError", "TimeoutException", "LocalEntryNotFoundError", "OfflineModeIsEnabled"}
CONVERTED = "refs/convert/parquet"
"""Where the Hub puts its own parquet conversion of a dataset: CONFIG/SPLIT/0000.parquet."""
CONVERTED_FILE = re.compile(r"(?P<config>[^/]+)/(?P<partial>partial-)?(?P<split>\w+)/\d{4,}\.parquet")
KNOWN = (
    "google/boolq",
    "Yelp/yelp_review_full",
    "stanfordnlp/imdb",
    "nyu-mll/glue",
    "SetFit/sst5",
    "dair-ai/emotion",
    "fancyzhx/ag_news",
)
"""Datasets that the tests read as replicas; suggested for a name that is nearly one of them."""


@dataclass
class Conversion:
    """The files of one configuration in the Hub's parquet conversion."""

    files: dict[str, list[str]] = field(default_factory=dict)
    """Paths by split."""
    partial: set[str] = field(default_factory=set)
    """Splits of which the Hub converted only the first part."""


@contextmanager
def hub_or_cache(section: LabeledData | CorpusData) -> Iterator[Any | None]:
    """Ask the Hub about a dataset once; without an answer only the cache is used, because loaders would retry for long.

    Yields:
        The ``DatasetInfo`` of the repository; None if it can't be had, for whatever reason.
    """
    import datasets
    from huggingface_hub import HfApi

    before, info = datasets.config.HF_HUB_OFFLINE, None
    try:
        if not before:
            info = HfApi().dataset_info(section.dataset_name, revision=section.dataset_revision, timeout=TIMEOUT)
    except Exception as error:  # an answer of any other kind is met again, and explained, when the dataset is loaded
        datasets.config.HF_HUB_OFFLINE = is_network(error)
    try:
        yield info
    finally:
        datasets.config.HF_HUB_OFFLINE = before


def refuse_script(section: LabeledData | CorpusData, info: Any) -> None:
    """Refuse a repository that is read by a loading script, and point to the parquet conversion if there is one."""
    script = section.dataset_name.rpartition("/")[2] + ".py"
    if script not in {file.rfilename for file in info.siblings or []}:
        return
    conversions = _conversions_on_hub(section.dataset_name)
    if conversions:
        hint = f"the Hub has converted it to parquet: add --set data.dataset_revision={CONVERTED}"
        if len(conversions) > 1:
            hint += f" and --set data.dataset_config_name=NAME, with one of {listing(conversions)}"
    else:
        hint = (
            f"many such datasets have an automatic conversion, read with --set data.dataset_revision={CONVERTED}, "
            "but this one "
            "has none; look for a parquet version of it, or convert it to csv, jsonl or parquet files yourself"
        )
    raise HftuneError(
        f"the dataset {quote(section.dataset_name)} is read by a loading script ({script}), and the datasets "
        "library no longer "
        "runs dataset scripts",
        hint=hint,
    )


def converted(info: Any) -> dict[str, Conversion]:
    """The configurations of a parquet conversion, by name; empty for a repository that is laid out in another way."""
    return _by_config([file.rfilename for file in info.siblings or []])


def download_conversion(section: LabeledData | CorpusData, info: Any | None) -> Conversion:
    """The files of one configuration of the parquet conversion, on this machine; without an answer those in the cache.

    The datasets library would mix configurations, and splits whose names begin alike, and would not find them offline.
    """
    from huggingface_hub import snapshot_download

    request: dict[str, Any] = {"repo_type": "dataset", "revision": CONVERTED}
    if info is not None:
        found = converted(info)
    else:
        request["local_files_only"] = True
        # No file is asked for here: other configurations need not be in the cache.
        folder = Path(snapshot_download(section.dataset_name, allow_patterns=[], **request))
        found = _by_config([path.relative_to(folder).as_posix() for path in folder.rglob("*.parquet")])
        if not found or section.dataset_config_name not in (None, *found):
            raise ConnectionError(f"of the conversion only {listing(found) or 'nothing'} is in the cache")
    chosen = choose_conversion(section, found)
    paths = [path for group in chosen.files.values() for path in group]
    folder = Path(snapshot_download(section.dataset_name, allow_patterns=paths, **request))
    local = {split: [str(folder / path) for path in group] for split, group in chosen.files.items()}
    return Conversion(local, chosen.partial)


def choose_conversion(section: LabeledData | CorpusData, found: dict[str, Conversion]) -> Conversion:
    """The configuration that the section names, or the only one."""
    if section.dataset_config_name is None and len(found) == 1:
        return next(iter(found.values()))
    if section.dataset_config_name is None and "default" in found:
        return found["default"]
    if section.dataset_config_name not in found:
        raise refuse_config(section, list(found))
    return found[section.dataset_config_name]


def refuse_config(section: LabeledData | CorpusData, names: list[str], info: Any | None = None) -> HftuneError:
    """The error for a configuration that is missing or not there."""
    example = f"--set data.dataset_config_name={next((name for name in names if _has_train(name, info)), names[0])}"
    if section.dataset_config_name is None:
        return HftuneError(
            f"the dataset {quote(section.dataset_name)} has {len(names)} configurations and no default: "
            f"{listing(names)}",
            hint=f"choose one with --set data.dataset_config_name=NAME, for example {example}",
        )
    near = closest(section.dataset_config_name, names)
    return HftuneError(
        f"the dataset {quote(section.dataset_name)} has no configuration {quote(section.dataset_config_name)}; it "
        f"has {listing(names)}",
        hint=near + f"choose one with --set data.dataset_config_name=NAME, for example {example}",
    )


def refuse_not_found(section: LabeledData | CorpusData, info: Any | None, embedded: list[str]) -> HftuneError:
    """The error for a dataset that does not exist, is private, gated, or has no such revision."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RevisionNotFoundError

    name, offline = quote(section.dataset_name), without_network(embedded)
    page = f"{constants.ENDPOINT}/datasets/{section.dataset_name}"
    try:
        if info is None:
            HfApi().dataset_info(section.dataset_name, revision=section.dataset_revision, timeout=TIMEOUT)
        HfApi().auth_check(section.dataset_name, repo_type="dataset")
    except GatedRepoError as error:
        if error.response.status_code == 401:
            return HftuneError(
                f"the dataset {name} is gated: its owner wants to know who uses it, and you are not logged in",
                hint=f"accept its terms on {page}, then log in with `hf auth login` (or set HF_TOKEN)",
            )
        return HftuneError(
            f"the dataset {name} is gated, and your account has no access to it yet",
            hint=f"ask for access on {page}; some owners grant it at once, others after a review",
        )
    except RevisionNotFoundError:
        return HftuneError(
            f"the dataset {name} has no revision {quote(section.dataset_revision)}",
            hint="set data.dataset_revision to a branch, a tag or a commit of it, or leave it out for main",
        )
    except HfHubHTTPError:
        pass  # the Hub answers the same for a private dataset and for one that does not exist
    return HftuneError(
        f"{name} is no file or folder here, and no dataset on the Hub that you can read",
        hint=closest(section.dataset_name, [*embedded, *KNOWN])
        + f"check the spelling (owner/name), log in with `hf auth login` if it is private; {offline}",
    )


def refuse_http(section: LabeledData | CorpusData, error: Any) -> HftuneError:
    """The error for an answer of the Hub that is neither a dataset nor that there is none."""
    status = error.response.status_code
    if status in (401, 403):
        hint = "your token is not valid or has expired: log in with `hf auth login`, or correct HF_TOKEN"
    elif status == 429:
        hint = "the Hub limits how often it is asked: wait some minutes, or log in with `hf auth login`"
    else:
        hint = "try again later; what is in the cache is used with HF_HUB_OFFLINE=1"
    return HftuneError(
        f"the Hub answered {status} for the dataset {quote(section.dataset_name)}: {first_line(error)}", hint=hint
    )


def refuse_offline(section: LabeledData | CorpusData, error: Exception, embedded: list[str]) -> HftuneError:
    """The error for a dataset that is not in the cache while the Hub can't be reached."""
    name = quote(section.dataset_name)
    return HftuneError(
        f"the Hub can't be reached for the dataset {name}, and it is not in the cache: {first_line(error)}",
        hint=closest(section.dataset_name, [*embedded, *KNOWN]) + without_network(embedded),
    )


def is_offline() -> bool:
    """Whether only the cache is used: by the user's wish, or inside ``hub_or_cache`` because no answer came."""
    import datasets

    return bool(datasets.config.HF_HUB_OFFLINE)


def without_network(embedded: list[str]) -> str:
    """What works offline, for a hint."""
    return f"no network is needed for {', '.join(embedded)}, nor for files and folders"


def is_network(error: BaseException) -> bool:
    """Whether no answer came. By name: the HTTP library differs between versions of huggingface_hub."""
    if isinstance(error, ConnectionError):
        return True
    return bool(NO_ANSWER & {kind.__name__ for kind in type(error).__mro__})


def first_line(error: Exception) -> str:
    """The first line of a message, quoted."""
    return quote((str(error).strip().splitlines() or [type(error).__name__])[0], limit=240)


def _conversions_on_hub(name: str) -> list[str]:
    """The configurations that the Hub has converted to parquet; none if it did not, or does not answer."""
    from huggingface_hub import HfApi

    try:
        return list(_by_config(HfApi().list_repo_files(name, repo_type="dataset", revision=CONVERTED)))
    except Exception:  # the dataset is refused in any case; the hint is then the general one
        return []


def _has_train(config: str, info: Any | None) -> bool:
    """Whether the card of a repository declares a training split for a configuration: some are for evaluation only."""
    card = info.card_data.to_dict() if info is not None and info.card_data is not None else {}
    declared = [entry for entry in card.get("configs") or [] if isinstance(entry, dict)]
    files = next((entry.get("data_files") for entry in declared if entry.get("config_name") == config), None)
    return isinstance(files, list) and any(isinstance(part, dict) and part.get("split") == "train" for part in files)


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
