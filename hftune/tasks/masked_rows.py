"""Plain texts → token ids of examples, and those masked anew each time round. Used by tasks mlm and joint."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from hftune.models.masked import padded
from hftune.models.vocabulary import as_text
from hftune.tasks.masking import Masking
from hftune.tasks.rows import cut_note
from hftune.training.companion import Beside, Repeated


@dataclass(frozen=True)
class Examples:
    """Token ids with their special tokens."""

    ids: list[list[int]]
    words: list[list[int]] | None
    """The number of the word that each token is of, -1 for none; None where single tokens are masked."""

    def __len__(self) -> int:
        """How many examples."""
        return len(self.ids)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each."""
        return [len(row) for row in self.ids]

    def notes(self, max_length: int, block_size: int | None) -> tuple[str, ...]:
        """How many blocks they are, or how many are cut."""
        if block_size is not None:
            return (f"unlabeled: {len(self):,} blocks of at most {block_size} tokens",)
        return cut_note(self.lengths, max_length, "unlabeled texts", "--block-size N reads all of each")

    def fingerprint(self) -> str:
        """A hash of all token ids, in order."""
        digest = hashlib.sha256()
        for row in self.ids:
            digest.update(array("q", [len(row), *row]).tobytes())
        return digest.hexdigest()

    def masked(self, masking: Masking, epoch: int, row: int) -> tuple[list[int], list[int]]:
        """One example as it is shown in an epoch, and what must be predicted."""
        return masking(self.ids[row], epoch, row, None if self.words is None else self.words[row])


def make_examples(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], *, max_length: int, block_size: int | None, words: bool
) -> Examples:
    """Tokenize texts.

    Args:
        tokenizer: The model's.
        texts: One string each.
        max_length: Tokens kept of a text, where each is one example.
        block_size: Join the texts, with a separator between them, and cut them into blocks of so many tokens.
        words: Whether whole words will be masked.
    """
    if block_size is not None:
        return _blocks(tokenizer, texts, block_size, words)
    encoded = tokenizer(
        list(texts),
        truncation=True,
        max_length=max_length,
        return_attention_mask=False,
        return_token_type_ids=False,
        **as_text(tokenizer),
    )
    return Examples(
        ids=list(encoded["input_ids"]),
        words=[_numbers(encoded.word_ids(row)) for row in range(len(texts))] if words else None,
    )


def _blocks(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], size: int, words: bool) -> Examples:
    encoded = tokenizer(
        list(texts),
        add_special_tokens=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
        **as_text(tokenizer),
    )
    ids: list[int] = []
    of: list[int] = []
    before = 0
    for row, tokens in enumerate(encoded["input_ids"]):
        ids += [tokenizer.sep_token_id, *tokens] if ids else tokens
        if words:
            numbers = _numbers(encoded.word_ids(row))
            of += [-1] * (len(ids) - len(of) - len(tokens))  # the separator is of no word
            of += [before + number if number >= 0 else -1 for number in numbers]
            before += max(numbers, default=-1) + 1
    room = size - 2
    starts = range(0, len(ids), room)
    return Examples(
        ids=[[tokenizer.cls_token_id, *ids[start : start + room], tokenizer.sep_token_id] for start in starts],
        words=[_from_zero([-1, *of[start : start + room], -1]) for start in starts] if words else None,
    )


def _numbers(words: Sequence[int | None]) -> list[int]:
    return [-1 if word is None else word for word in words]


def _from_zero(words: list[int]) -> list[int]:
    """The words of a block counted from its first one."""
    first = min((word for word in words if word >= 0), default=0)
    return [word - first if word >= 0 else -1 for word in words]


class MaskedRows(Dataset[dict[str, Any]]):
    """The training rows of a masked language model: asked for (epoch, row), they answer by these two alone."""

    def __init__(self, examples: Examples, masking: Masking) -> None:
        """examples: what is masked."""
        self.examples = examples
        self.masking = masking

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, key: tuple[int, int]) -> dict[str, Any]:
        shown, truth = self.examples.masked(self.masking, *key)
        return {"input_ids": shown, "labels": truth}


class FixedMaskedRows(MaskedRows):
    """Rows that are always masked the same way, to be scored: asked for by their number."""

    def __getitem__(self, key: Any) -> dict[str, Any]:
        return super().__getitem__((0, key))


class PairedRows(Dataset[dict[str, Any]]):
    """Labeled rows by number, and unlabeled ones as ``Beside`` asks for them."""

    def __init__(self, labeled: Dataset[dict[str, Any]], unlabeled: MaskedRows) -> None:
        """labeled: as plain classification has them."""
        self.labeled = labeled
        self.unlabeled = unlabeled

    def __len__(self) -> int:
        return len(self.labeled)  # type: ignore[arg-type]

    def __getitem__(self, key: Any) -> dict[str, Any]:
        match key:
            case Beside():
                row = self.unlabeled[key]
                return {"mlm": (row["input_ids"], row["labels"])}
            case Repeated():
                return {**self.labeled[key.row], "labels": -100}
            case _:
                return self.labeled[key]


@dataclass(frozen=True)
class PairedCollator:
    """Labeled rows as plain classification pads them, and the unlabeled ones beside them."""

    labeled: Any
    pad: int

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        """One batch of both; validation has labeled rows only."""
        beside = [row["mlm"] for row in rows if "mlm" in row]
        batch = dict(self.labeled([row for row in rows if "mlm" not in row]))
        if beside:
            ids, mask, labels = padded(beside, self.pad)
            batch |= {"mlm_input_ids": ids, "mlm_attention_mask": mask, "mlm_labels": labels}
        return batch


@dataclass(frozen=True)
class MaskedCollator:
    """Masked rows as one batch."""

    pad: int

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Token ids, attention mask and labels."""
        ids, mask, labels = padded([(row["input_ids"], row["labels"]) for row in rows], self.pad)
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}
