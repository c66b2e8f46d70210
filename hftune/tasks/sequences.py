"""Token sequences for language models: corrupted anew each epoch, or fixed. Used by the tasks that pretrain."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from hftune.models.vocabulary import as_text
from hftune.tasks.corruption import Corruption, Numbers, Plan, corrupted, plan

CHUNK = 1000
"""Documents that are tokenized together."""


class Tokens:
    """All documents of a split as one array of token ids."""

    def __init__(self, texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> None:
        """Tokenize the documents, without marks of any kind."""
        rows: list[Numbers] = []
        for start in range(0, len(texts), CHUNK):
            part, how = list(texts[start : start + CHUNK]), as_text(tokenizer)
            encoded = tokenizer(part, add_special_tokens=False, verbose=False, **how)
            rows += [np.asarray(ids, dtype=np.int64) for ids in encoded["input_ids"]]
        self.sizes: Numbers = np.array([len(row) for row in rows], dtype=np.int64)
        self._flat = np.concatenate(rows)
        self._ends = self.sizes.cumsum()

    def __getitem__(self, row: int) -> Numbers:
        """The tokens of one document."""
        return self._flat[self._ends[row] - self.sizes[row] : self._ends[row]]

    def __len__(self) -> int:
        """How many documents there are."""
        return len(self.sizes)

    @property
    def fingerprint(self) -> str:
        """A hash of all token ids and of where documents end."""
        return hashlib.sha256(self._flat.tobytes() + self._ends.tobytes()).hexdigest()


def characters_of_each(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[NDArray[np.float64]]:
    """For each token of each text how many characters it stands for, so that vocabularies can be compared.

    What a vocabulary leaves out, such as blanks, counts with the token after it, or with the last. Where a tokenizer
    can't tell where its tokens end, all tokens of a text count alike.
    """
    found: list[NDArray[np.float64]] = []
    how = {"add_special_tokens": False, "verbose": False, "return_offsets_mapping": tokenizer.is_fast}
    for start in range(0, len(texts), CHUNK):
        part = list(texts[start : start + CHUNK])
        encoded = tokenizer(part, **how, **as_text(tokenizer))
        for text, ids, places in zip(part, encoded["input_ids"], encoded.get("offset_mapping", part), strict=True):
            ends = [end for _, end in places] if tokenizer.is_fast else np.linspace(0, len(text), len(ids) + 1)[1:]
            reached = np.asarray(ends, dtype=np.float64)
            reached[-1:] = len(text)
            found.append(np.diff(reached, prepend=0.0))
    return found


class CorruptedRows(Dataset[dict[str, Any]]):
    """Training documents, corrupted anew in every epoch: asked for as (epoch, row)."""

    def __init__(self, tokens: Tokens, corruption: Corruption, seed: int, mark: int) -> None:
        """mark: the mask token."""
        self._tokens = tokens
        self._corruption = corruption
        self._seed = seed
        self._mark = mark
        self._planned: tuple[int, Plan] | None = None

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, key: tuple[int, int]) -> dict[str, Any]:
        epoch, row = key
        return {"input_ids": corrupted(self._tokens[row], self.plan(epoch), row, self._mark)}

    def plan(self, epoch: int) -> Plan:
        """What is done to the documents in an epoch; kept until another epoch is asked for."""
        if self._planned is None or self._planned[0] != epoch:
            self._planned = (epoch, plan(self._tokens.sizes, self._corruption, self._seed, epoch))
        return self._planned[1]

    def lengths(self, epoch: int) -> Sequence[int]:
        """Tokens of each corrupted document in an epoch."""
        return self.plan(epoch).totals.tolist()  # type: ignore[no-any-return]


class FixedRows(Dataset[dict[str, Any]]):
    """Sequences that stay as they are, such as those of validation."""

    def __init__(self, rows: Sequence[Numbers], characters: Sequence[float]) -> None:
        """rows: token ids; characters: how many of them the tokens after the first stand for, in each row."""
        self.rows = list(rows)
        self.characters = list(characters)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"input_ids": self.rows[row]}

    @property
    def lengths(self) -> list[int]:
        """Tokens of each sequence."""
        return [len(row) for row in self.rows]
