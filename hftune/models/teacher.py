"""The teacher of a distillation: an encoder that is loaded with the checks of every other model, and what it computes.

It gives one vector for each word of a text that its tokenizer covers, and one for the whole text: the mean over all
tokens of the last layer, as sentence-transformers does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import tokenizers
import torch
import transformers
from numpy.typing import NDArray
from transformers import AutoModelForMaskedLM, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from hftune.errors import HftuneError
from hftune.models.adapter import refuse_adapter
from hftune.models.alignment import Aligned, align, refuse_slow, text_means, word_means
from hftune.models.checkpoint import Checkpoint, open_checkpoint
from hftune.models.hub_files import Purpose
from hftune.models.load import evaluation_mode, max_positions
from hftune.models.settings import SCRATCH, ModelSection

TEACHER = Purpose("teacher", "name a run, or a folder that has the teacher", causal=False)
LONGEST = 512
"""Maximum length of a teacher that has no limit of its own, in tokens."""
TOKENS_TOGETHER = 4096
"""Tokens of a batch, padding included."""
NAMES = {
    "--trust-remote-code": "--trust-teacher-code",
    "trust_remote_code": "task.trust_teacher_code",
    "model.model_revision": "task.teacher_revision",
    "(or --revision COMMIT)": "(or --teacher-revision COMMIT)",
}
"""Settings of the student's model, and those of the teacher that have the same meaning."""


class TextVectors(NamedTuple):
    """What the teacher computes for one text, in half precision."""

    words: NDArray[Any]
    """[W]: the numbers of the words that have a vector, ascending."""
    vectors: NDArray[np.float16]
    """[W, C]"""
    sentence: NDArray[np.float16]
    """[C]"""


def teacher_section(name: str, revision: str | None, *, trust: bool) -> ModelSection:
    """The ``model`` section of a teacher."""
    if name.startswith(SCRATCH):
        raise HftuneError(
            f"the teacher {name} would have random weights, so there is nothing to learn from it",
            hint="name a pretrained encoder: a run, a folder or a Hub id",
        )
    return ModelSection(model_name_or_path=name, model_revision=revision, trust_remote_code=trust)


@dataclass(frozen=True)
class OpenedTeacher:
    """A teacher that has passed all checks that need no weights."""

    checkpoint: Checkpoint
    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase

    @property
    def max_length(self) -> int:
        """The longest text that it reads, in tokens."""
        known = [max_positions(self.config), self.tokenizer.model_max_length, LONGEST]
        return int(min(one for one in known if one))


def open_teacher(section: ModelSection) -> OpenedTeacher:
    """Find a teacher, and refuse what is not an encoder with a fast tokenizer."""
    try:
        checkpoint = open_checkpoint(section, TEACHER)
        refuse_adapter(checkpoint)
        config = checkpoint.config()
        encoder = config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES or section.trust_remote_code
        if not encoder or config.is_encoder_decoder:
            raise HftuneError(
                f"{checkpoint.name} is a {config.model_type} model, not an encoder, so it has no vectors of words in "
                "context to learn from",
                hint="use a BERT, RoBERTa, ModernBERT or another encoder as the teacher",
            )
        tokenizer = checkpoint.tokenizer()
        refuse_slow(tokenizer, checkpoint.name)
    except HftuneError as error:
        raise of_the_teacher(error) from error
    return OpenedTeacher(checkpoint, config, tokenizer)


class Teacher:
    """A loaded teacher."""

    def __init__(self, opened: OpenedTeacher) -> None:
        """Load the weights in fp32; torch's random state does not change."""
        self.name, self.tokenizer, self.max_length = opened.checkpoint.name, opened.tokenizer, opened.max_length
        try:
            with torch.random.fork_rng():
                # With the head of a masked language model, or a new one, which is then dropped: a class with a head
                # shows by the prefix of the names which weights of the encoder are missing.
                model, _ = opened.checkpoint.weights(AutoModelForMaskedLM, opened.config, quiet=True)
        except HftuneError as error:
            raise of_the_teacher(error) from error
        self.model: PreTrainedModel = model.base_model.eval().requires_grad_(False)
        self.width = int(self.model.config.hidden_size)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the weights, the architecture, the tokenizer and the versions of the libraries."""
        return fingerprint_of(self.model, self.tokenizer, self.max_length)

    def align(self, texts: Sequence[str], advance: Callable[[int], None] = lambda texts: None) -> Aligned:
        """The tokens of texts and their words."""
        return align(self.tokenizer, texts, self.max_length, advance)

    def vectors(
        self, aligned: Aligned, rows: Sequence[int], advance: Callable[[int], None] = lambda tokens: None
    ) -> Iterator[TextVectors]:
        """What it computes for some of the texts, in order; from long to short, they need little padding.

        ``advance`` receives the number of tokens that are done.
        """
        sizes = np.diff(aligned.ends, prepend=0)
        left = list(rows)
        with evaluation_mode(self.model):
            while left:
                count = max(1, TOKENS_TOGETHER // int(sizes[left[0]]))
                chosen, left = left[:count], left[count:]
                yield from self._batch([aligned.text(row) for row in chosen])
                advance(int(sizes[chosen].sum()))

    def _batch(self, texts: Sequence[tuple[Any, Any, Any]]) -> Iterator[TextVectors]:
        longest = max(len(ids) for ids, _, _ in texts)
        ids = torch.full((len(texts), longest), int(self.tokenizer.pad_token_id or 0))  # [B, T]
        mask = torch.zeros_like(ids)
        tokens, words, numbers, total = [], [], [], 0
        for row, (own, pair_tokens, pair_words) in enumerate(texts):
            ids[row, : len(own)] = torch.from_numpy(own.astype(np.int64))
            mask[row, : len(own)] = 1
            covered, place = np.unique(pair_words, return_inverse=True)
            tokens.append(pair_tokens.astype(np.int64) + row * longest)
            words.append(place + total)
            numbers.append(covered)
            total += len(covered)
        device = self.model.device
        ids, mask = ids.to(device), mask.to(device)
        hidden = self.model(input_ids=ids, attention_mask=mask).last_hidden_state.float()  # [B, T, C]
        of_tokens, of_words = (torch.from_numpy(np.concatenate(part)).to(device) for part in (tokens, words))
        vectors = self._half(word_means(hidden.flatten(0, 1), of_tokens, of_words, total))  # [W, C]
        sentences = self._half(text_means(hidden, mask))  # [B, C]
        first = 0
        for row, covered in enumerate(numbers):
            yield TextVectors(covered, vectors[first : first + len(covered)], sentences[row])
            first += len(covered)

    def _half(self, values: torch.Tensor) -> NDArray[np.float16]:
        half: NDArray[np.float16] = values.to(torch.float16).cpu().numpy()
        if not np.isfinite(half).all():
            raise HftuneError(
                f"the hidden states of the teacher {self.name} are too large for half precision, or not finite",
                hint="choose another teacher, or check its weights",
            )
        return half


def fingerprint_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *settings: Any) -> str:
    """A hash of everything that decides what a teacher computes."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.contiguous().reshape(-1).view(torch.uint8).cpu().numpy())
    shape = {key: value for key, value in model.config.to_dict().items() if not key.startswith("_")}
    words = json.dumps(tokenizer.get_vocab(), sort_keys=True)
    if tokenizer.is_fast:
        backend = tokenizer.backend_tokenizer
        backend.no_truncation()
        backend.no_padding()
        words = backend.to_str()
    versions = [torch.__version__, transformers.__version__, tokenizers.__version__]
    about = [type(model).__name__, shape, words, *settings, versions]
    digest.update(json.dumps(about, sort_keys=True, default=str).encode())
    return digest.hexdigest()


def of_the_teacher(error: HftuneError) -> HftuneError:
    """An error about a model, in terms of the teacher's settings."""
    return HftuneError(f"the teacher: {_renamed(error.message, NAMES)}", hint=_renamed(error.hint or "", NAMES))


def _renamed(text: str, names: Mapping[str, str]) -> str:
    for old, new in names.items():
        text = text.replace(old, new)
    return text
