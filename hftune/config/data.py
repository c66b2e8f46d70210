"""The ``data`` section: where rows come from and which of them are used. One class a kind, told apart by ``kind``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from hftune.config.model import WHAT
from hftune.config.section import Flag, Section

DATA = "Data"


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
    train_split_name: str | None = None
    """Name of the training split of a Hub dataset, if it is not called train."""
    validation_split_name: str | None = None
    """Name of the validation split of a Hub dataset."""
    test_split_name: str | None = None
    """Name of the test split of a Hub dataset."""
    split_seed: int = Field(default=0, ge=0)
    """Seed of the splits and subsets that are made here; independent of train.seed, so that all seeds share them."""

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
    """Proportion of train that becomes the validation split where there is none."""
    test_size: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Proportion of train that becomes the test split where there is none; 0 makes none."""


class JointData(LabeledData):
    """Labeled texts, and text of the same kind without labels."""

    kind: Literal["joint"] = "joint"  # type: ignore[assignment]  # labeled data, and more
    unlabeled: Annotated[str | None, Flag("train-data-file", group=DATA, metavar="FILE|NAME")] = None
    """Unlabeled text: a file, a folder, a Hub id, an embedded dataset, or train for the training texts themselves."""
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
    """Proportion of train that is held out for validation where there is no such split; 0 draws validation from train;
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
    """A question with {} in place of the name, to tell which names were seen; recognized in train by default."""
    max_train_samples: int | None = Field(default=None, ge=1)
    """Train on this many questions: seeded and nested."""
    max_eval_samples: int | None = Field(default=None, ge=1)
    """Evaluate on this many validation questions, chosen in the same way."""
    validation_size: float = Field(default=0.1, gt=0.0, lt=1.0)
    """Proportion of train that becomes the validation split where there is none."""
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
