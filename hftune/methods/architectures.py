"""Which method works with which architecture: what is tested, and why the rest is refused. Asked before training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hftune.errors import HftuneError
from hftune.methods.method import PAST, VIRTUAL_TOKENS, Method

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

NO_PAST = {PAST: "its attention takes no keys and values from outside, which a prefix is made of"}
READS_THE_END = {
    VIRTUAL_TOKENS: "it reads the last token of a text, which it can't tell from padding behind trained vectors"
}


@dataclass(frozen=True)
class Architecture:
    """What the methods need to know of a model type."""

    lora: tuple[str, ...]
    """Ends of the names of the query and value projections."""
    ia3: tuple[str, ...]
    """Those of the key and value projections."""
    ia3_feedforward: tuple[str, ...]
    """Those of the layers whose input is rescaled."""
    lacks: Mapping[str, str] = field(default_factory=dict)
    """What its classifiers do not have that some methods need, and why."""


_BERT = Architecture(lora=("query", "value"), ia3=("key", "value"), ia3_feedforward=("output.dense",))
ARCHITECTURES: dict[str, Architecture] = {
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "camembert": _BERT,
    "electra": _BERT,
    # All layers share one set of weights, so an adapter is small.
    "albert": Architecture(("query", "value"), ("key", "value"), ("ffn_output",), lacks=NO_PAST),
    "mpnet": Architecture(("attn.q", "attn.v"), ("attn.k", "attn.v"), ("output.dense",), lacks=NO_PAST),
    "distilbert": Architecture(("q_lin", "v_lin"), ("k_lin", "v_lin"), ("ffn.lin2",), lacks=NO_PAST),
    "deberta-v2": Architecture(
        ("query_proj", "value_proj"), ("key_proj", "value_proj"), ("output.dense",), lacks=NO_PAST
    ),
    # One matrix makes query, key and value here.
    "modernbert": Architecture(("Wqkv",), ("Wqkv",), ("mlp.Wo",), lacks=NO_PAST),
    "gpt2": Architecture(("c_attn",), ("c_attn",), ("mlp.c_proj",), lacks=READS_THE_END),
    "mingpt": Architecture(("qkv",), ("qkv",), ("mlp.down",), lacks=READS_THE_END),
}
"""By ``model_type``. XLM-RoBERTa and CamemBERT are RoBERTa's code under another name."""


def check(
    section: Method, config: PreTrainedConfig, *, gradient_checkpointing: bool = False, causal: bool = False
) -> None:
    """Refuse a method that this architecture or another setting rules out.

    Args:
        section: The recipe's method.
        config: The model's configuration; its weights need not be there yet.
        gradient_checkpointing: Whether activations are computed twice.
        causal: Whether it is a language model, not a classifier.

    Raises:
        HftuneError: With the reason, and a method that would work.
    """
    if causal and section.not_causal:
        raise HftuneError(
            f"--method {section.kind} is not for language models: {section.not_causal}",
            hint="use --method full, lora, ia3 or bitfit",
        )
    known = ARCHITECTURES.get(config.model_type)
    lacks = known.lacks if known else {}
    if known is None and not section.any_architecture:
        _check_unknown(section, config.model_type)
    reason = next((lacks[need] for need in section.required if need in lacks), None)
    if reason is not None:
        prompt = "" if VIRTUAL_TOKENS in lacks else "prompt, which puts trained embeddings before the text, or "
        raise HftuneError(
            f"--method {section.kind} does not work with {config.model_type} models: {reason}",
            hint=f"use --method {prompt}{'--method ' if prompt else ''}lora",
        )
    if PAST in section.required and gradient_checkpointing:
        raise HftuneError(
            "prefix tuning does not work with train.gradient_checkpointing: activations computed anew would meet the "
            "prefix twice",
            hint="leave train.gradient_checkpointing out, or use --method lora",
        )


def _check_unknown(section: Method, model_type: str) -> None:
    """A method that must know something of the model, on an architecture that is not listed."""
    if "target_modules" in type(section).model_fields:
        if vars(section)["target_modules"]:
            return
        raise HftuneError(
            f"{section.kind} does not know the layers of {model_type} models",
            hint="name them with --set method.target_modules=[…], or use --method bitfit, which works with every model",
        )
    tested = [name for name, entry in ARCHITECTURES.items() if not entry.lacks.keys() & set(section.required)]
    raise HftuneError(
        f"{section.kind} is not known to work with {model_type} models; it is with {', '.join(tested)}",
        hint="use --method full, head or bitfit, which work with every model",
    )
