"""What of a document span corruption ever sees: all of it, or what stands before the longest cut.

``hftune.tasks.seen`` looks for names in what was read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hftune.config.model import NO_TRUST
from hftune.config.recipe import Recipe
from hftune.config.task import SpanTask
from hftune.errors import HftuneError
from hftune.models.load import load_config, load_tokenizer
from hftune.models.vocabulary import as_text
from hftune.tasks.corruption import Corruption

CHUNK = 256
"""Documents that are tokenized together: where each token ends takes more memory than the tokens."""


def seen_parts(recipe: Recipe, texts: Sequence[str], saved: Path | None = None) -> Sequence[str]:
    """What training sees of each document, whatever weights and vocabulary it starts with.

    Args:
        recipe: What was trained.
        texts: The training text.
        saved: The trained model, which has the vocabulary; learned from the texts again where it is not there.

    Raises:
        HftuneError: The weights, whose block draws the line, can't be found any more.
    """
    task = recipe.task
    if not isinstance(task, SpanTask) or task.crop == "random":
        return texts
    # What a run was allowed to trust when it was trained says nothing about whoever asks now.
    model = recipe.model.model_copy(update={**NO_TRUST})
    if model.from_scratch and model.tokenizer_name is None and saved is not None and saved.is_dir():
        model = model.model_copy(update={"tokenizer_name": str(saved)})
    tokenizer = load_tokenizer(model, texts)
    if not tokenizer.is_fast:
        raise HftuneError(
            f"the tokenizer of {model.model_name_or_path} does not tell where its tokens end",
            hint="take a checkpoint that has a fast tokenizer",
        )
    block = int(load_config(model, tokenizer).max_position_embeddings)
    longest = Corruption.of(task, block).longest
    found: list[str] = []
    for start in range(0, len(texts), CHUNK):
        part = list(texts[start : start + CHUNK])
        how = {"add_special_tokens": False, "verbose": False, "return_offsets_mapping": True, **as_text(tokenizer)}
        for text, places in zip(part, tokenizer(part, **how)["offset_mapping"], strict=True):
            found.append(text if len(places) <= longest else text[: places[longest - 1][1]])
    return found
