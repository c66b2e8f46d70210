"""The ``data`` section: where rows come from and which of them are used. One class a kind, told apart by ``kind``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from hftune.config.section import Section


class SplitData(Section):
    """Rows in up to three splits, from this machine or from the Hub."""

    kind: str
    name: str
    """An embedded name, a Hub id, a folder of split files, or one file."""
    subset: str | None = None
    """The configuration of a Hub dataset that has several."""
    revision: str | None = None
    """Branch, tag or commit of a Hub dataset."""
    train: str | None = None
    """File of the training split, where the names in the folder do not tell; or its name on the Hub."""
    validation: str | None = None
    """File of the validation split, or its name on the Hub."""
    test: str | None = None
    """File of the test split, or its name on the Hub."""
    split_seed: int = Field(default=0, ge=0)
    """Seed of the splits and subsets that are made here; apart from train.seed, so that seeds share them."""


class LabeledData(SplitData):
    """Labeled texts or pairs of texts, in three splits."""

    kind: Literal["labeled"] = "labeled"
    name: str = "reviews"
    """An embedded name, a Hub id, a folder of split files, or one file."""
    text_column: str | None = None
    """Column of the (first) text; found by its name where not given."""
    pair_column: str | None = None
    """Column of the second text; found by its name where not given, 'none' for single texts."""
    label_column: str | None = None
    """Column of the label; found by its name where not given."""
    max_length: int = Field(default=128, ge=2)
    """Tokens kept of each example, special tokens among them."""
    truncate: Literal["longest", "first", "second"] = "longest"
    """Which text of a pair gives way when both do not fit."""
    labels: int | None = Field(default=None, ge=1)
    """Train on this many labeled rows: stratified, seeded and nested (the 50 are inside the 500)."""
    validation_size: float = Field(default=0.1, gt=0.0, lt=1.0)
    """Share of train that becomes validation when there is no validation split."""
    test_size: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Share of train that becomes test when there is no test split; 0 makes none."""


class JointData(LabeledData):
    """Labeled texts, and text of the same kind without labels."""

    kind: Literal["joint"] = "joint"  # type: ignore[assignment]  # labeled data, and more
    unlabeled: str | None = None
    """Unlabeled text: a file, a folder, a Hub id, an embedded name, or train for the training texts themselves."""
    line_by_line: bool | None = None
    """Whether each line is one example, cut at max_length; so where block_size is not given."""
    block_size: int | None = Field(default=None, ge=3)
    """Join all unlabeled lines and cut them into blocks of this many tokens, special tokens among them."""
    limit_unlabeled: int | None = Field(default=None, ge=1)
    """Use this many unlabeled lines: drawn at random, seeded and nested."""

    @model_validator(mode="after")
    def _lines_or_blocks(self) -> JointData:
        if self.line_by_line and self.block_size is not None:
            raise ValueError("line_by_line and block_size exclude each other; leave one of them out")
        return self

    @property
    def blocks(self) -> int | None:
        """Tokens of a block, or None for one example a line."""
        return self.max_length if self.line_by_line is False and self.block_size is None else self.block_size


class CorpusData(SplitData):
    """Plain text, in documents: what a language model is pretrained on."""

    kind: Literal["corpus"] = "corpus"
    name: str = "births"
    """An embedded name, a Hub id, a folder of split files, or one file."""
    text_column: str | None = None
    """Column of the text in jsonl, parquet and Hub data; found by its name where not given."""
    documents: Literal["lines", "paragraphs", "file", "labeled"] | None = None
    """What a document is: a line (the default), what stands between blank lines, the whole file, or a labeled text."""
    validation_size: float | None = Field(default=None, ge=0.0, lt=1.0)
    """Share of train held out as validation where there is no validation split; 0 draws validation from train; the task has a default."""


class QuestionData(Section):
    """Questions and their answers, one pair a line, with a tab between."""

    kind: Literal["questions"] = "questions"
    name: str = "births"
    """An embedded name, a folder of split files, or one file."""
    train: str | None = None
    """File of the training split, where the names in the folder do not tell."""
    validation: str | None = None
    """File of the validation split."""
    test: str | None = None
    """File of the test split, which may have no answers."""
    corpus: str | None = None
    """Text that a fresh model's vocabulary is made of too; wiki.txt beside the questions where not given."""
    template: str | None = None
    """A question with {} where the name stands, to tell names that were seen; found from train where not given."""
    validation_size: float = Field(default=0.1, gt=0.0, lt=1.0)
    """Share of train that becomes validation when there is no validation split."""
    split_seed: int = Field(default=0, ge=0)
    """Seed of the splits that are made here; apart from train.seed, so that seeds share them."""

    @model_validator(mode="after")
    def _place_of_the_name(self) -> QuestionData:
        if self.template is not None and self.template.count("{}") != 1:
            raise ValueError("template must hold {} once, where the name stands, as in 'Where was {} born?'")
        return self


DataSection = Annotated[LabeledData | JointData | CorpusData | QuestionData, Field(discriminator="kind")]
