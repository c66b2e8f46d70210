"""Where the examples are, from ``data.dataset_name``: an embedded dataset, local files, or the Hub.

Split files in a folder are found by the words in their names. Only files inside the folder are read: a path or a link
to a file outside it is refused.

Embedded datasets need no network: folders that `hftune data make NAME` has generated. To add one, add a generator to
``generators/`` and an entry to one of the tables here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hftune.config.section import Section
from hftune.data.chunks import file_chunks
from hftune.data.columns import NO_PAIR
from hftune.data.readers import FORMATS, read_table
from hftune.data.settings import HUB_ID, CorpusData, LabeledData, QuestionData, SplitData
from hftune.data.text_files import GZIP, ending_of, stem_of
from hftune.errors import HftuneError, did_you_mean, listing, quote
from hftune.files import embedded_data_dir, is_outside

# ---- the datasets that come with hftune ----


@dataclass(frozen=True)
class Embedded:
    """A dataset in a folder of the package."""

    name: str
    about: str
    """One line for ``hftune data ls``."""
    files: dict[str, str]
    """The file of each split; empty if they are found by their names."""
    text_column: str | None = None
    label_column: str | None = None
    """The columns of labeled data; None for plain text."""
    pair_column: str | None = None
    unlabeled: str | None = None
    """File of texts without labels, one per line."""
    documents: str = "lines"
    """What one document of plain text is."""

    @property
    def folder(self) -> Path:
        """The folder of its files."""
        folder = embedded_data_dir() / self.name
        if not folder.is_dir():
            raise HftuneError(
                f"the files of the embedded dataset {quote(self.name)} are missing from this installation",
                hint=f"install hftune again, or make them with `hftune data make {self.name}`",
            )
        return folder

    def row_counts(self) -> dict[str, int]:
        """The number of rows or documents of each split."""
        if self.label_column is not None:
            return {split: len(read_table(self.folder / name)) for split, name in self.files.items()}
        section = CorpusData(dataset_name=self.name)
        return {
            split: sum(chunk.ends for chunk in file_chunks(self.folder / name, section, self.documents))
            for split, name in self.files.items()
        }

    def with_columns(self, section: LabeledData) -> LabeledData:
        """The section, with the dataset's column names where the user named none."""
        return section.model_copy(
            update={
                "text_column_name": section.text_column_name or self.text_column,
                "label_column_name": section.label_column_name or self.label_column,
                "text_pair_column_name": section.text_pair_column_name or self.pair_column or NO_PAIR,
            }
        )


def _by_name(*datasets: Embedded) -> dict[str, Embedded]:
    return {dataset.name: dataset for dataset in datasets}


def own_columns(section: LabeledData) -> LabeledData:
    """The section, with the columns of the embedded dataset that it names, if it names one."""
    embedded = DATASETS.get(section.dataset_name)
    return section if embedded is None else embedded.with_columns(section)


DATASETS = _by_name(
    Embedded(  # stars and text without a header, as in yelp_small
        "reviews",
        "generated reviews of shops and restaurants, 1 to 5 stars",
        {"train": "train.csv", "validation": "dev.csv", "test": "test.csv"},
        text_column="text",
        label_column="label",
        unlabeled="unlabeled.txt",
    ),
    Embedded(  # the columns of google/boolq
        "boolq-mini",
        "generated yes/no questions over short passages, 62 % yes",
        {"train": "train.jsonl", "validation": "dev.jsonl"},
        text_column="question",
        pair_column="passage",
        label_column="answer",
    ),
)
"""Labeled datasets by name."""

CORPORA = _by_name(
    Embedded(
        "births", "invented people and where they were born: a text, and questions about it", {"train": "wiki.txt"}
    ),
    Embedded(
        "prose",
        "invented short stories in plain English",
        {"train": "train.txt", "validation": "valid.txt", "test": "test.txt"},
        documents="paragraphs",
    ),
)
"""Plain texts by name."""

QUESTIONS = _by_name(Embedded("births", "questions about where invented people were born", {}))
"""Questions with answers by name."""


# ---- finding the files of a dataset ----

WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev", "eval"),
    "test": ("test", "testing"),
}
"""Words by which the names of files, and of splits on the Hub, are recognized as a split."""
UNLABELED = {"unlabeled", "unlabelled", "unsupervised", "unlab"}
SHARD = re.compile(r"[-_]\d{1,6}[-_]of[-_]\d{1,6}$")
Files = dict[str, list[Path]]
"""The files of each split; several if a split is in shards."""
HUB_ONLY = (
    "dataset_config_name",
    "dataset_revision",
    "train_split_name",
    "validation_split_name",
    "test_split_name",
)
"""Settings for datasets of the Hub only."""
FILES_ONLY = ("train_file", "validation_file", "test_file", "delimiter", "sheet_name")
"""Settings for files only."""


@dataclass(frozen=True)
class Source:
    """Where the examples of a dataset are."""

    files: Files
    """Empty for a dataset of the Hub."""
    embedded: Embedded | None
    notes: list[str]


def locate(
    section: SplitData | QuestionData,
    known: Mapping[str, Embedded],
    endings: Collection[str] = FORMATS,
    suggested: Sequence[str] = (),
) -> Source:
    """Find a dataset by its name. An embedded name comes first, then a path, then a Hub id.

    Args:
        section: The dataset's name, and files or splits that are named.
        known: The embedded datasets that fit the task.
        endings: Endings of the files that may be splits.
        suggested: The names for the error if there is no such dataset; those of ``known`` by default.
    """
    # In this order a recipe that names an embedded dataset means the same in every folder, and no request to the Hub is
    # made for what is on this machine.
    name, path, embedded = section.dataset_name, as_path(section.dataset_name), known.get(section.dataset_name)
    notes, files = [], {}
    if embedded is not None:
        stated = {split: file for split, file in section.split_files.items() if file}
        files = folder_files(embedded.folder, embedded.files | stated, endings)
        if path is not None:
            notes.append(f"{name} is the embedded dataset; the one in this folder would be ./{name}")
    elif path is not None:
        files = files_of(path, section, endings)
    elif isinstance(section, QuestionData) or not is_hub_id(name) or ending_of(Path(name)) in {*endings} - {""}:
        raise missing_path_error(name, suggested or list(known))
    if isinstance(section, SplitData):
        ignored, reason = (HUB_ONLY, "does not come from the Hub") if files else (FILES_ONLY, "comes from the Hub")
        _refuse_settings(section, ignored, reason)
    return Source(files, embedded, notes)


# ---- names and settings ----


def as_path(name: str) -> Path | None:
    """The file or folder of that name, or None if there is none."""
    if not name or "\0" in name:
        raise HftuneError(
            f"data.dataset_name is {quote(name)}", hint="give an embedded name, a Hub id, a folder or a file"
        )
    try:
        path = Path(name).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError):  # a name too long for the file system, the home of a user that does not exist
        return None


def same_data(name: str, embedded: str) -> bool:
    """Whether a name is that of an embedded dataset, or the path of its folder."""
    known, path = {**DATASETS, **CORPORA}.get(embedded), as_path(name)
    return name == embedded or (known is not None and path is not None and path.resolve() == known.folder.resolve())


def is_hub_id(name: str) -> bool:
    """Whether a name that is not a path can be a Hub id: ``owner/name`` or ``name``, without the ending of a file."""
    return HUB_ID.fullmatch(name) is not None and ending_of(Path(name)) not in (*FORMATS, GZIP)


def missing_path_error(name: str, known: Sequence[str]) -> HftuneError:
    """The error for a path that does not exist."""
    path = Path(name).expanduser() if not name.startswith("~") else Path(name)
    hint = f"give a file, a folder, a Hub id (owner/name) or an embedded name ({', '.join(known)})"
    try:
        hint = did_you_mean(path.name, sorted(entry.name for entry in path.parent.iterdir()), hint)
    except OSError:
        hint = f"the folder {quote(str(path.parent))} does not exist either; {hint}"
    return HftuneError(f"there is no file or folder {quote(name)}", hint=hint)


def _refuse_settings(section: SplitData, names: Sequence[str], reason: str) -> None:
    """Refuse settings that would be ignored for this dataset."""
    for name in names:
        value = getattr(section, name)
        if value is not None:
            split = name.partition("_")[0]
            other = f"; set data.{split}_{'split_name' if names == FILES_ONLY else 'file'}" if split in WORDS else ""
            raise HftuneError(
                f"data.{name} is {quote(value)}, but {quote(section.dataset_name)} {reason}",
                hint=f"leave data.{name} out{other}",
            )


def refuse_unused_sizes(section: Section, existing: Collection[str], *, draws: bool) -> None:
    """Refuse settings of splits that are made from train if those splits exist already.

    A resolved recipe states every default, so a default passes; so does a size of 0, which makes no split. ``draws`` is
    whether examples are drawn with ``split_seed``: for a split that is made, or for a subset.
    """
    for name in ("validation_size", "test_size", "split_seed"):
        value = getattr(section, name, None)
        if name not in section.model_fields_set or value in (0, type(section).model_fields[name].default):
            continue
        split = name.removesuffix("_size")
        if split in existing:
            raise HftuneError(
                f"data.{name} is {value:g}, but the data has a {split} split, so none is made from train",
                hint=f"leave data.{name} out",
            )
        if name == "split_seed" and not draws:
            raise HftuneError(
                f"data.split_seed is {value}, but the data has all its splits and no subset is drawn",
                hint="leave data.split_seed out; the training seed is train.seed",
            )


class MissingSplit(HftuneError):
    """A dataset does not have a split; the hint is for commands with --split."""


def missing_split_error(source: str, split: str, existing: Collection[str]) -> MissingSplit:
    """The error for a split that a dataset does not have."""
    choices = "all" if len(existing) == 1 else ", ".join(existing)
    return MissingSplit(f"{quote(source)} has no {split} split", hint=f"choose one with --split: {choices}")


# ---- the files of each split ----


def files_of(path: Path, section: SplitData | QuestionData, endings: Collection[str] = FORMATS) -> Files:
    """The split files of a folder, or the one file and those that the settings name."""
    named = section.split_files
    if path.is_dir():
        return folder_files(path, named, endings)
    if named["train"] is not None:
        raise HftuneError(
            f"data.dataset_name is a file of training rows already ({quote(path.name)}); data.train_file names another",
            hint="leave data.train_file out, or make data.dataset_name the folder of both",
        )
    files = {"train": [path]}
    for split in ("validation", "test"):
        name = named[split]
        if name is not None:
            # A file in the same folder as the first one, or any path.
            found = as_path(name) or as_path(str(path.parent / name))
            if found is None or not found.is_file():
                raise missing_path_error(name, [])
            files[split] = [found]
    return files


def folder_files(folder: Path, named: Mapping[str, str | None], endings: Collection[str] = FORMATS) -> Files:
    """The split files of a folder: those that the recipe names (relative to it), others by the words in their names."""
    candidates = sorted(
        entry
        for entry in folder.iterdir()
        if ending_of(entry) in endings
        and not entry.name.startswith((".", "_"))  # "._train.csv" of macOS, "_SUCCESS" of Spark
        and not UNLABELED & set(words_of(entry))
    )
    files: Files = {}
    for split, words in WORDS.items():
        name = named.get(split)
        found = [entry for entry in candidates if set(words) & set(words_of(entry))]
        if name is not None:
            files[split] = [_named_file(folder, name)]
        elif found:
            files[split] = _one_file_or_shards(found, split, folder)
    if "train" not in files:
        files["train"] = _only_file(folder, candidates, files, endings)
    for path in (path for paths in files.values() for path in paths):
        _refuse_outside(path, folder)
    return files


def words_of(path: Path) -> list[str]:
    """The words in a file's name: ``sst_train.txt`` has sst and train."""
    return re.split(r"[^a-z0-9]+", SHARD.sub("", stem_of(path)).lower())


def _named_file(folder: Path, name: str) -> Path:
    path = folder / name
    if "\0" in name or ".." in Path(name).parts:
        raise HftuneError(
            f"{quote(name)} is outside the data folder {quote(folder.name)}",
            hint="name a file inside the folder, or make data.dataset_name the folder that holds it",
        )
    _refuse_outside(path, folder)
    if not path.is_file():
        files = sorted(entry.name for entry in folder.iterdir())
        raise HftuneError(
            f"there is no file {quote(name)} in the data folder {quote(folder.name)}",
            hint=did_you_mean(name, files, f"the folder holds {listing(files)}"),
        )
    return path


def _one_file_or_shards(found: list[Path], split: str, folder: Path) -> list[Path]:
    """One file, the one whose name is exactly that of the split, or the shards of one file."""
    exact = [path for path in found if stem_of(path).lower() in WORDS[split]]
    if len(exact) == 1:
        return exact
    families = {(SHARD.sub("", stem_of(path)), ending_of(path)) for path in found}
    if len(families) > 1 or (len(found) > 1 and not all(SHARD.search(stem_of(path)) for path in found)):
        raise HftuneError(
            f"the folder {quote(folder.name)} has several files that could be {split}: "
            f"{listing(path.name for path in found)}",
            hint=f"name one with --set data.{split}_file=FILE",
        )
    return found


def _only_file(folder: Path, candidates: list[Path], files: Files, endings: Collection[str]) -> list[Path]:
    """The only data file of a folder is the training file."""
    if len(candidates) == 1 and not files:
        return candidates
    ends = ", ".join(ending for ending in endings if ending)  # "" is a text file without an ending
    inside = listing(sorted(entry.name + ("/" if entry.is_dir() else "") for entry in folder.iterdir()))
    raise HftuneError(
        f"the folder {quote(folder.name)} has no training file; it holds {inside or 'nothing'}",
        hint="a split file has train, validation (or valid, val, dev) or test in its name and ends in "
        f"{ends} (text also in .gz after it); name others with --set data.train_file=FILE",
    )


def _refuse_outside(path: Path, folder: Path) -> None:
    if is_outside(path, folder):
        raise HftuneError(
            f"{quote(path.name)} is a link to a file outside the data folder {quote(folder.name)}",
            hint="copy the file into the folder, or make data.dataset_name the folder that holds it",
        )
