"""Shared by the tasks with a causal language model: checks of the model, its probe, and the scores of its tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from hftune.errors import HftuneError
from hftune.models.causal import NextTokenBatches, check_causal, load_causal_lm, load_saved_lm, score_sequences
from hftune.models.load import LoadedModel, load_tokenizer, max_positions
from hftune.models.qa import check_marks
from hftune.models.settings import MASK, MINGPT, NO_TRUST, ModelSection, Trust
from hftune.models.tokenizers import end_of_text
from hftune.progress import ProgressReporter, progress_bar
from hftune.tasks.task import Data, Task, saved_section

LONGEST = 1024
"""Default maximum length in tokens, for models with more positions or without a limit."""
Floats = NDArray[np.float32]


class LanguageModel(Task[Data]):
    """A task whose model predicts the next token."""

    causal: ClassVar[bool] = True
    marks: ClassVar[bool] = False
    """Whether ⁇ separates the parts of an example; otherwise an end of text separates documents."""

    def check_model(self, config: PreTrainedConfig) -> None:
        """Refuse encoders and classifiers, and a tokenizer without the special tokens of the task."""
        model = self.recipe.model
        check_causal(model, config)
        # A tokenizer that is trained gets the special tokens of its task; one that exists may lack them, and then the
        # run would fail after its data were read.
        if not model.from_scratch or model.tokenizer_name is not None:
            self.check_tokenizer(load_tokenizer(model, (), padded=self.marks))
        elif self.marks and not model.scratch_mingpt:
            raise HftuneError(
                f"the tokenizer that is trained for {model.model_name_or_path} has no mask token {MASK}",
                hint=f"use --model {MINGPT}, or name a tokenizer that has a mask token with --tokenizer",
            )

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
        """The tokenizer; refused without the special tokens of the task."""
        name = self.recipe.model.tokenizer_name or self.recipe.model.model_name_or_path
        if self.marks:
            check_marks(tokenizer, name)
        else:
            end_of_text(tokenizer, name)
        return tokenizer

    def build_model(self, data: Data, tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
        """A causal language model with the tokenizer's vocabulary."""
        return load_causal_lm(self.recipe.model, tokenizer)

    @classmethod
    def load_saved(cls, model: str, settings: ModelSection) -> PreTrainedModel:
        """The causal language model."""
        return load_saved_lm(model, settings)[0]

    def outputs(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Logits of the token after each probe text."""
        return _next_logits(model, tokenizer, rows)

    @staticmethod
    def reload_outputs(folder: Path, rows: list[dict[str, Any]], trust: Trust = NO_TRUST) -> dict[str, Any]:
        """The same from the saved folder."""
        model, tokenizer, _ = load_saved_lm(str(folder), saved_section(folder, trust), "cpu")
        return _next_logits(model, tokenizer, rows)


def score_tokens(
    model: PreTrainedModel, rows: Any, pad: int, *, batch_size: int, progress: ProgressReporter, split: str
) -> tuple[Floats, Floats]:
    """Loss of each token of a split and 1 where it was the most probable one, each [rows, T]."""
    examples = [rows[row] for row in range(len(rows))]
    with progress_bar(progress, len(rows), f"scoring {split}") as advance:
        return score_sequences(model, examples, NextTokenBatches(pad), batch_size=batch_size, advance=advance)


def _next_logits(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    block, was_training = min(max_positions(model.config) or LONGEST, LONGEST), model.training
    model.eval()
    logits = []
    with torch.inference_mode():
        for row in rows:
            ids = tokenizer(row["text"], add_special_tokens=False)["input_ids"][:block]
            # One row at a time: without padding, outputs do not depend on the other rows.
            made = model(input_ids=torch.tensor([ids], device=model.device), use_cache=False).logits  # [1, T, V]
            logits.append(made[0, -1].float().cpu().tolist())
    model.train(was_training)
    return {"logits": logits}
