"""A tiny encoder to learn from, whose tokenizer has other tokens than those of the students."""

from __future__ import annotations

import string
from pathlib import Path

import torch
from transformers import BertConfig, BertForMaskedLM, BertTokenizer

LETTERS = string.ascii_lowercase + string.digits + string.punctuation
WIDTH = 24


def teacher_tokenizer() -> BertTokenizer:
    """Words become letters; what is no letter, digit or punctuation of ASCII is unknown."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    return BertTokenizer(vocab={piece: number for number, piece in enumerate(pieces)})


def write_teacher(folder: Path, seed: int = 0) -> Path:
    """Save a teacher of random weights; another seed gives another one."""
    tokenizer = teacher_tokenizer()
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=96,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        BertForMaskedLM(config).bert.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
