"""Which method works with which architecture: what is tested, and why the rest is refused. Asked before training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from transformers import PreTrainedConfig

from hftune.config.method import Ia3Method, LoraMethod, MethodSection
from hftune.errors import HftuneError

ANY = ("full", "head", "bitfit")
"""Methods that only freeze weights and so work with every classifier."""
NO_PAST = {"prefix": "its attention takes no keys and values from outside, which a prefix is made of"}
_LAST_TOKEN = "it reads the last token of a text, which it can't tell from padding behind trained vectors"
READS_THE_END = {"prefix": _LAST_TOKEN, "prompt": _LAST_TOKEN, "ptuning": _LAST_TOKEN}
_TAKES_CONTEXT = "its trained vectors take positions from every block, and every later text must make room for them"
NOT_CAUSAL = {
    "head": "their head is mostly their embeddings, and a fresh one learns nothing that the frozen rest can use",
    "prefix": _TAKES_CONTEXT,
    "prompt": _TAKES_CONTEXT,
    "ptuning": _TAKES_CONTEXT,
}
"""Why a method is not for language models."""


@dataclass(frozen=True)
class Architecture:
    """What the methods need to know of a model type."""

    lora: tuple[str, ...]
    """Ends of the names of the query and value projections."""
    ia3: tuple[str, ...]
    """Those of the key and value projections."""
    ia3_feedforward: tuple[str, ...]
    """Those of the layers whose input is rescaled."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Methods that can't work with its classifiers, and why."""


_BERT = Architecture(lora=("query", "value"), ia3=("key", "value"), ia3_feedforward=("output.dense",))
ARCHITECTURES: dict[str, Architecture] = {
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "camembert": _BERT,
    "electra": _BERT,
    # All layers share one set of weights, so an adapter is small.
    "albert": Architecture(("query", "value"), ("key", "value"), ("ffn_output",), refused=NO_PAST),
    "mpnet": Architecture(("attn.q", "attn.v"), ("attn.k", "attn.v"), ("output.dense",), refused=NO_PAST),
    "distilbert": Architecture(("q_lin", "v_lin"), ("k_lin", "v_lin"), ("ffn.lin2",), refused=NO_PAST),
    "deberta-v2": Architecture(
        ("query_proj", "value_proj"), ("key_proj", "value_proj"), ("output.dense",), refused=NO_PAST
    ),
    # One matrix makes query, key and value here.
    "modernbert": Architecture(("Wqkv",), ("Wqkv",), ("mlp.Wo",), refused=NO_PAST),
    "gpt2": Architecture(("c_attn",), ("c_attn",), ("mlp.c_proj",), refused=READS_THE_END),
    "mingpt": Architecture(("qkv",), ("qkv",), ("mlp.down",), refused=READS_THE_END),
}
"""By ``model_type``. XLM-RoBERTa and CamemBERT are RoBERTa's code under another name."""


def check(
    section: MethodSection, config: PreTrainedConfig, *, gradient_checkpointing: bool = False, causal: bool = False
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
    if isinstance(section, Ia3Method):
        _check_feedforward(section)
    if causal and section.kind in NOT_CAUSAL:
        raise HftuneError(
            f"--method {section.kind} is not for language models: {NOT_CAUSAL[section.kind]}",
            hint="use --method full, lora, ia3 or bitfit",
        )
    if section.kind in ANY:
        return
    known = ARCHITECTURES.get(config.model_type)
    if known is None:
        _check_unknown(section, config.model_type)
    elif section.kind in known.refused:
        prompt = "" if "prompt" in known.refused else "prompt, which puts trained embeddings before the text, or "
        raise HftuneError(
            f"--method {section.kind} does not work with {config.model_type} models: {known.refused[section.kind]}",
            hint=f"use --method {prompt}{'--method ' if prompt else ''}lora",
        )
    if section.kind == "prefix" and gradient_checkpointing:
        raise HftuneError(
            "prefix tuning does not work with train.gradient_checkpointing: activations computed anew would meet the "
            "prefix twice",
            hint="leave train.gradient_checkpointing out, or use --method lora",
        )


def _check_unknown(section: MethodSection, model_type: str) -> None:
    if isinstance(section, LoraMethod | Ia3Method):
        if section.target_modules:
            return
        raise HftuneError(
            f"{section.kind} does not know the layers of {model_type} models",
            hint="name them with --set method.target_modules=[…], or use --method bitfit, which works with every model",
        )
    tested = [name for name, entry in ARCHITECTURES.items() if section.kind not in entry.refused]
    raise HftuneError(
        f"{section.kind} is not known to work with {model_type} models; it is with {', '.join(tested)}",
        hint="use --method full, head or bitfit, which work with every model",
    )


def _check_feedforward(section: Ia3Method) -> None:
    strange = [name for name in section.feedforward_modules if name not in (section.target_modules or ())]
    if strange:
        raise HftuneError(
            f"method.feedforward_modules names {strange[0]!r}, which is not among method.target_modules",
            hint="name it in both, or leave both out",
        )
