"""The ``data`` section: where rows come from and which of them are used. One class per ``kind``; ``task_name``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, field_validator, model_validator

from hftune.config.section import DATA, WHAT, Flag, Section
from hftune.errors import HftuneError, did_you_mean

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")
"""A dataset or a model on the Hub."""
DELIMITER_NAMES = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|", "\\t": "\t"}
SCORING_SETTINGS = (
    *("dataset_name", "dataset_config_name", "dataset_revision", "train_file", "validation_file", "test_file"),
    *("train_split_name", "validation_split_name", "test_split_name", "split_seed"),
    *("text_column_name", "text_pair_column_name", "label_column_name"),
    *("delimiter", "sheet_name", "drop_missing", "deduplicate"),
    *("max_train_samples", "max_eval_samples", "max_predict_samples"),
)
"""Settings of labeled data that have an effect when a saved model is scored; the others decide how one is trained."""


class SplitData(Section):
    """Examples in up to three splits, from this machine or from the Hub."""

    kind: str
    dataset_name: Annotated[str, Flag("data", group=WHAT, metavar="NAME|PATH")]
    """An embedded dataset, a Hub id, a folder of split files, or one file."""
    dataset_config_name: Annotated[str | None, Flag("dataset-config")] = None
    """Configuration of a Hub dataset that has several."""
    dataset_revision: str | None = None
    """Branch, tag or commit of a Hub dataset."""
    train_file: Annotated[str | None, Flag(group=DATA)] = None
    """File of the training split, if the file names do not show which it is."""
    validation_file: Annotated[str | None, Flag(group=DATA)] = None
    """File of the validation split."""
    test_file: Annotated[str | None, Flag(group=DATA)] = None
    """File of the test split."""
    delimiter: Annotated[str | None, Flag(metavar="CHAR|NAME")] = None
    """What separates the columns of csv and tsv files: a character, or comma, semicolon, tab or pipe; recognized by
    default."""
    sheet_name: str | None = None
    """Sheet of an Excel file that has several with rows."""
    train_split_name: str | None = None
    """Name of the training split of a Hub dataset, if it is not called train."""
    validation_split_name: str | None = None
    """Name of the validation split of a Hub dataset."""
    test_split_name: str | None = None
    """Name of the test split of a Hub dataset."""
    split_seed: int = Field(default=0, ge=0)
    """Seed of the splits and subsets that are made here; independent of train.seed, so that all seeds share them."""

    @field_validator("delimiter")
    @classmethod
    def _one_character(cls, value: str | None) -> str | None:
        sign = DELIMITER_NAMES.get(value or "", value)
        if sign is not None and (len(sign) != 1 or sign.isalnum() or sign in '"\r\n'):
            raise ValueError(f"delimiter must be one character, or one of {', '.join(DELIMITER_NAMES)}")
        return sign

    @property
    def split_files(self) -> dict[str, str | None]:
        """The file that is named for each split."""
        return {"train": self.train_file, "validation": self.validation_file, "test": self.test_file}

    @property
    def split_names(self) -> dict[str, str | None]:
        """The split of a Hub dataset that is named for each split."""
        return {
            "train": self.train_split_name,
            "validation": self.validation_split_name,
            "test": self.test_split_name,
        }


class LabeledData(SplitData):
    """Labeled texts or pairs of texts, in three splits."""

    kind: Literal["labeled"] = "labeled"
    dataset_name: Annotated[str, Flag("data", group=WHAT, metavar="NAME|PATH")] = "reviews"
    """An embedded dataset, a Hub id, a folder of split files, or one file."""
    text_column_name: Annotated[str | None, Flag("text-column", group=DATA)] = None
    """Column of the (first) text; recognized by its name by default."""
    text_pair_column_name: Annotated[str | None, Flag("pair-column")] = None
    """Column of the second text; recognized by its name by default, 'none' for single texts."""
    label_column_name: Annotated[str | None, Flag("label-column", "target-column", group=DATA)] = None
    """Column of the label; recognized by its name by default."""
    drop_missing: Annotated[bool, Flag(group=DATA)] = False
    """Leave out rows without a text or a label, and report how many; they are refused by default."""
    deduplicate: Annotated[bool, Flag(group=DATA)] = False
    """Leave out rows that repeat a text with its label, and training rows whose text is in validation or test."""
    max_seq_length: Annotated[int, Flag("max-length", group=DATA)] = Field(default=128, ge=2)
    """Maximum length of an example in tokens, special tokens included; longer ones are truncated."""
    truncation: Literal["longest_first", "only_first", "only_second"] = "longest_first"
    """Which text of a pair is truncated when both do not fit."""
    max_train_samples: Annotated[int | None, Flag(group=DATA)] = Field(default=None, ge=1)
    """Train on this many labeled examples: stratified, seeded and nested (the 50 are among the 500)."""
    max_eval_samples: Annotated[int | None, Flag()] = Field(default=None, ge=1)
    """Evaluate on this many validation examples, chosen in the same way."""
    max_predict_samples: Annotated[int | None, Flag()] = Field(default=None, ge=1)
    """Score this many test examples, chosen in the same way."""
    validation_size: float = Field(default=0.1, gt=0.0, lt=1.0)
    """Proportion of train that becomes the validation split if there is none."""
    test_size: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Proportion of train that becomes the test split if there is none; 0 makes none."""


class JointData(LabeledData):
    """Labeled texts, and text of the same kind without labels."""

    kind: Literal["joint"] = "joint"  # type: ignore[assignment]  # labeled data, and more
    unlabeled: Annotated[str | None, Flag("train-data-file", group=DATA, metavar="FILE|NAME")] = None
    """Unlabeled text: a file, a folder, a Hub id, an embedded dataset, or train for the training texts themselves; by
    default task joint takes those of an embedded dataset, or train, and task distill takes none."""
    line_by_line: bool | None = None
    """Make each line one example, truncated at block_size or max_seq_length; the default unless block_size is set."""
    block_size: int | None = Field(default=None, ge=3)
    """Concatenate all unlabeled lines and split them into blocks of this many tokens, special tokens included; with
    line_by_line, the maximum length of a line."""
    max_unlabeled_samples: int | None = Field(default=None, ge=1)
    """Use this many unlabeled lines: seeded and nested."""

    @property
    def blocks(self) -> int | None:
        """Tokens of a block, or None for one example per line."""
        if self.line_by_line:
            return None
        return self.max_seq_length if self.line_by_line is False and self.block_size is None else self.block_size

    @property
    def line_length(self) -> int:
        """Maximum tokens of an unlabeled line."""
        return self.block_size if self.line_by_line and self.block_size is not None else self.max_seq_length


class CorpusData(SplitData):
    """Plain text, in documents: what a language model is pretrained on."""

    kind: Literal["corpus"] = "corpus"
    dataset_name: Annotated[str, Flag("corpus", "data", group=WHAT, metavar="NAME|PATH")] = "births"
    """An embedded corpus, a Hub id, a folder of split files, or one file."""
    text_column_name: Annotated[str | None, Flag("text-column")] = None
    """Column of the text in jsonl, parquet and Hub data; recognized by its name by default."""
    documents: Literal["lines", "paragraphs", "file", "labeled"] | None = None
    """What a document is: a line (the default), a paragraph between blank lines, the whole file, or a labeled text."""
    validation_size: float | None = Field(default=None, ge=0.0, lt=1.0)
    """Proportion of train that is held out for validation if there is no such split; 0 draws validation from train;
    the default depends on the task."""


class QuestionData(Section):
    """Questions and their answers, one tab-separated pair per line."""

    kind: Literal["questions"] = "questions"
    dataset_name: Annotated[str, Flag("data", group=WHAT, metavar="NAME|PATH")] = "births"
    """An embedded dataset, a folder of split files, or one file."""
    train_file: Annotated[str | None, Flag(group=DATA)] = None
    """File of the training split, if the file names do not show which it is."""
    validation_file: Annotated[str | None, Flag(group=DATA)] = None
    """File of the validation split."""
    test_file: Annotated[str | None, Flag(group=DATA)] = None
    """File of the test split, which may have no answers."""
    corpus: Annotated[str | None, Flag(group=DATA)] = None
    """Text on which the tokenizer of a model from scratch is trained too; wiki.txt next to the questions by default."""
    template: str | None = None
    """A question with {} in place of the name, to find which names were seen; recognized in train by default."""
    max_train_samples: int | None = Field(default=None, ge=1)
    """Train on this many questions: seeded and nested."""
    max_eval_samples: int | None = Field(default=None, ge=1)
    """Evaluate on this many validation questions, chosen in the same way."""
    validation_size: float = Field(default=0.1, gt=0.0, lt=1.0)
    """Proportion of train that becomes the validation split if there is none."""
    split_seed: int = Field(default=0, ge=0)
    """Seed of the splits and subsets that are made here; independent of train.seed, so that all seeds share them."""

    @property
    def split_files(self) -> dict[str, str | None]:
        """The file that is named for each split."""
        return {"train": self.train_file, "validation": self.validation_file, "test": self.test_file}

    @model_validator(mode="after")
    def _place_of_the_name(self) -> QuestionData:
        if self.template is not None and self.template.count("{}") != 1:
            raise ValueError("template must hold {} once, in place of the name, as in 'Where was {} born?'")
        return self


DataSection = Annotated[LabeledData | JointData | CorpusData | QuestionData, Field(discriminator="kind")]


# ---- task_name: a GLUE task from the Hub or a folder, or the yelp exercise ----

GLUE_ON_HUB = "nyu-mll/glue"
YELP = "yelp"


class GlueTask(NamedTuple):
    """The columns of a task: on the Hub, and in the tsv files of the GLUE download where those differ."""

    text: str
    pair: str | None = None
    tsv: tuple[str, str | None, str] | None = None
    """Text, second text and label."""
    metric: str = "accuracy"
    """The metric that GLUE ranks it by."""
    metrics: tuple[str, ...] = ()
    """Those that GLUE reports in addition."""


GLUE: dict[str, GlueTask] = {
    "cola": GlueTask("sentence", metric="mcc"),
    "mnli": GlueTask("premise", "hypothesis", ("sentence1", "sentence2", "gold_label")),
    "mrpc": GlueTask("sentence1", "sentence2", ("#1 String", "#2 String", "Quality"), metrics=("f1",)),
    "qnli": GlueTask("question", "sentence"),
    "qqp": GlueTask("question1", "question2", ("question1", "question2", "is_duplicate"), metrics=("f1",)),
    "rte": GlueTask("sentence1", "sentence2"),
    "sst2": GlueTask("sentence"),
    "wnli": GlueTask("sentence1", "sentence2"),
}
GLUE_REGRESSION = "stsb"


def data_of(task_name: str, data_dir: str | None) -> dict[str, Any]:
    """The settings of ``task_name`` and ``data_dir``, by dotted key."""
    name = task_name.lower().replace("-", "")
    if name == GLUE_REGRESSION:
        raise HftuneError(
            "task_name stsb is a regression task, and hftune classifies", hint=f"choose one of {', '.join(GLUE)}"
        )
    if name != YELP and name not in GLUE:
        raise HftuneError(
            f"task_name expects {YELP} or a task of GLUE ({', '.join(GLUE)}); got {task_name!r}",
            hint=did_you_mean(name, [YELP, *GLUE]) or "for other data, name it with --data",
        )
    if data_dir is not None and not Path(data_dir).expanduser().is_dir():
        raise HftuneError(f"data_dir expects a folder; there is none at {data_dir!r}", hint="check the path")
    if data_dir is not None and Path(data_dir).name == data_dir:
        data_dir = f"./{data_dir}"  # it is a folder, also if an embedded dataset has that name
    if name == YELP:
        if data_dir is None:
            raise HftuneError(
                "task_name yelp is a folder with the files train.csv, valid.csv and test.csv",
                hint="name it with --data_dir; the full dataset is --data Yelp/yelp_review_full",
            )
        return {"data.dataset_name": data_dir}
    task = GLUE[name]
    if data_dir is None:
        settings: dict[str, Any] = {"data.dataset_name": GLUE_ON_HUB, "data.dataset_config_name": name}
    else:
        settings = {"data.dataset_name": data_dir, **_matched_mnli(Path(data_dir).expanduser())}
    original = data_dir is not None and any(Path(data_dir).expanduser().glob("*.tsv"))
    text, pair, label = (task.tsv if original else None) or (task.text, task.pair, "label")
    return settings | {
        "data.text_column_name": text,
        "data.text_pair_column_name": pair or "none",
        "data.label_column_name": label,
        "train.metric_for_best_model": task.metric,
        **({"task.metrics": list(task.metrics)} if task.metrics else {}),
    }


def _matched_mnli(folder: Path) -> dict[str, Any]:
    """MNLI's download has two validation and two test files; results are reported on the matched ones."""
    names = {"validation": "dev_matched.tsv", "test": "test_matched.tsv"}
    return {f"data.{split}_file": name for split, name in names.items() if (folder / name).is_file()}
