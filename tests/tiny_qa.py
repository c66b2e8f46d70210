"""A minGPT of a few thousand weights with a vocabulary of characters, and questions for it."""

from __future__ import annotations

from pathlib import Path

import torch
from trained_tokenizers import char_tokenizer
from transformers import PreTrainedTokenizerFast

from hftune.models.mingpt import MinGPTConfig, MinGPTForCausalLM
from hftune.models.qa import QuestionAnswerer
from hftune.recipe import load_recipe
from hftune.runs.directory import RunDir

BORN = {
    "Ann Ash": "Rome",
    "Bob Bay": "Oslo",
    "Cy Cole": "Lima",
    "Dee Dun": "Bonn",
    "Eve Elm": "Cork",
    "Flo Fox": "Kiel",
}
LETTERS = [*BORN, *BORN.values(), "Where was born?Gus Gray"]
BLOCK = 40
MARK = 1


def rows(names: list[str]) -> str:
    """A tsv of where these people were born."""
    return "".join(f"Where was {name} born?\t{BORN[name]}\n" for name in names)


def tiny(tokenizer: PreTrainedTokenizerFast, attention: str = "rope") -> MinGPTForCausalLM:
    """Fresh weights, the same each time."""
    torch.manual_seed(0)
    return MinGPTForCausalLM(
        MinGPTConfig(
            vocab_size=len(tokenizer),
            block_size=BLOCK,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            attention=attention,
            pad_token_id=0,
            eos_token_id=MARK,
            linformer_block=8,
            linformer_rank=4,
            bigbird_block=4,
        )
    )


def plant(path: Path, data: Path | str, start: str = "scratch:mingpt") -> RunDir:
    """A run that is taken for fine-tuned: its weights are random, so that it answers anything."""
    run = RunDir.create(path)
    run.write_recipe(
        load_recipe(None, {"task.kind": "answer", "data.dataset_name": str(data), "model.model_name_or_path": start})
    )
    tokenizer = char_tokenizer(LETTERS, block_size=BLOCK)
    QuestionAnswerer(tiny(tokenizer), tokenizer, max_answer_tokens=8).save(run.model)
    return run
