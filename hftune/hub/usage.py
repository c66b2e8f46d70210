"""How a published model is loaded, as lines that run: decided by what its configuration says. Used by the card."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hftune.hub.markdown import fenced

ADDRESS = '"USER/NAME"'
"""Stands in the card of a run until it is pushed."""

MARK = "⁇"
TEXT = '"the food was great but we will never come back"'
PAIR = '{"text": "is the sky blue?", "text_pair": "by day the sky is blue"}'


@dataclass(frozen=True)
class Usage:
    """What the Hub and a reader must know to load the model."""

    pipeline_tag: str
    library: str
    snippet: str


def usage(
    config: Mapping[str, Any],
    *,
    adapter: bool,
    pairs: bool,
    question: str | None = None,
    hole: str | None = None,
    masked_lm_beside: bool = False,
    writes: bool = False,
) -> Usage:
    """The way to load a model.

    Args:
        config: Its config.json; empty for a bare adapter.
        adapter: Whether the folder holds an adapter, which only hftune knows to join to its base.
        pairs: Whether it reads two texts a row.
        masked_lm_beside: Whether the folder holds a masked language model as well.
        writes: Whether it is a language model, which an adapter alone does not tell.
        question: One that it was asked, for a model that answers questions; the mark behind it asks for the answer.
        hole: A text with a mark where something is missing, for a model that writes what was taken out.
    """
    kinds = " ".join(config.get("architectures") or [])
    generates = "CausalLM" in kinds or "LMHead" in kinds or "GPT" in kinds
    masked = "MaskedLM" in kinds
    tag = "text-generation" if generates else "fill-mask" if masked else "text-classification"
    if adapter and writes:
        command = f'hftune generate {ADDRESS} --prompt "There once was"  # pip install hftune'
        return Usage("text-generation", "peft", fenced(command, "sh"))
    if adapter:
        given = f"[{PAIR}]" if pairs else f"[{TEXT}]"
        texts = '["is the sky blue?"], ["by day the sky is blue"]' if pairs else given
        lines = ["from hftune import predict  # pip install hftune", "", f"print(predict({ADDRESS}, {texts}))"]
        return Usage(tag, "peft", fenced("\n".join(lines), "python"))
    trust = ", trust_remote_code=True" if config.get("auto_map") else ""
    asked = '"Where was"' if generates else _with_a_mask(config) if masked else PAIR if pairs else TEXT
    more = ", max_new_tokens=40" if generates else ""
    marked = question if question is not None else hole
    if marked is not None:
        asked, more = json.dumps(f"{marked}{MARK}", ensure_ascii=False), ", return_full_text=False"
    lines = [
        "from transformers import pipeline",
        "",
        f'model = pipeline("{tag}", model={ADDRESS}{trust})',
        f"print(model({asked}{more}))",
    ]
    snippet = fenced("\n".join(lines), "python")
    if question is not None:
        snippet += "\n\n`hftune predict` gives the same answers with their confidence."
    if hole is not None:
        snippet += f"\n\n{MARK} stands where something is missing; the last {MARK} asks for it."
    if masked_lm_beside:
        load = f'AutoModelForMaskedLM.from_pretrained({ADDRESS}, subfolder="mlm")'
        snippet += f"\n\nThe masked language model that was trained beside it: `{load}`."
    if trust:
        snippet += "\n\nThe model's own code comes with it, in the .py files: read it before you trust it."
    return Usage(tag, "transformers", snippet)


def _with_a_mask(config: Mapping[str, Any]) -> str:
    return '"the food was [MASK]"' if config.get("model_type") == "bert" else '"the food was <mask>"'
