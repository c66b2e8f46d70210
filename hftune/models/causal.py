"""Causal language models: fresh, from a run, a folder or the Hub; saved with their code. Called by tasks.

minGPT is registered with the Auto classes here, so that a saved one loads without running the code that lies beside it.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import (
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from hftune.config.model import ModelSection
from hftune.errors import HftuneError
from hftune.files import write_json
from hftune.models import mingpt
from hftune.models.adapter import adapter_parts, is_adapter, join, save_adapter, with_weights_of
from hftune.models.auto import load_auto_config, load_auto_tokenizer
from hftune.models.checkpoint import USED, ask_first, explained, locate, refuse_unsafe, whose_code
from hftune.models.facts import CARD, saved_facts
from hftune.models.load import LoadedModel, check_vocabulary, load_config
from hftune.models.presets import refuse_other_head
from hftune.models.weights import load_weights

LABELS = ("classify", "joint")
"""Tasks whose models label texts."""


def load_causal_lm(section: ModelSection, tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
    """A language model for this tokenizer, in fp32: the checkpoint's weights, or fresh ones.

    Raises:
        HftuneError: The checkpoint can't be had, or was trained with another vocabulary.
    """
    refuse_other_head(section, causal=True)
    mingpt.register()
    config = load_config(section, tokenizer)
    if section.from_scratch:
        return LoadedModel(AutoModelForCausalLM.from_config(config, dtype=torch.float32), ())
    location = locate(section.model_name_or_path)
    with explained(section):
        refuse_other_kinds(section.model_name_or_path, saved_facts(location, section.model_revision), config)
        if is_adapter(location, section.model_revision):
            joined, _, _ = load_saved_lm(section.model_name_or_path, section, "cpu")
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
            missing = set(with_weights_of(joined, model))
        else:
            model, missing = load_weights(AutoModelForCausalLM, location, section, config)
    refuse_headless(section.model_name_or_path, missing)
    check_vocabulary(section, model, tokenizer)
    return LoadedModel(model, ())


def refuse_other_kinds(name: str, facts: dict[str, Any], config: PreTrainedConfig) -> None:
    """A model that fills in words or labels texts: some load as causal ones, and would write nonsense.

    Args:
        name: What the messages call it.
        facts: What hftune noted beside its weights; nothing for a model of somebody else.
        config: Its configuration.
    """
    made = (config.architectures or [""])[0]
    # An encoder's causal class, made for the decoder of a pair, loads its weights and still looks ahead.
    masked = config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not config.is_encoder_decoder
    encoder = masked and not config.to_dict().get("is_decoder", True)
    task = facts.get("task")
    if task in LABELS or (task is None and made.endswith("Classification")):
        raise HftuneError(f"{name} labels texts and writes none", hint=f"label texts with it: hftune predict {name}")
    if task == "mlm" or (task is None and encoder):
        raise HftuneError(
            f"{name} is a masked language model: it fills in words and can't go on from a text",
            hint=f'fill in words with transformers\' pipeline("fill-mask", {locate(name)!r}); a model that writes is '
            "trained with `hftune pretrain --objective clm`",
        )


def refuse_headless(name: str, missing: Collection[str]) -> None:
    """A model that lacks weights would write at random, and nobody would be told."""
    if missing:
        raise HftuneError(
            f"{name} is not a causal language model: it has no weights for {sorted(missing)[0]}",
            hint="take a checkpoint of a GPT, such as a run of `hftune pretrain`",
        )


def save_causal_lm(
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    *,
    base: ModelSection | None = None,
    **facts: Any,
) -> None:
    """Weights as safetensors, the code of a minGPT, the tokenizer, and hftune.json with the facts.

    Args:
        model: The trained model, or an adapter around one.
        tokenizer: Goes along.
        folder: Where it all goes.
        base: What an adapter was put around.
        **facts: What neither weights nor tokenizer say.
    """
    mingpt.register()  # from here on a saved minGPT carries its code
    cached, model.config.use_cache = model.config.use_cache, True  # Trainer switches it off while it trains
    if isinstance(model, PeftModel):
        assert base is not None, "an adapter has a base"
        save_adapter(model, folder, base)
    else:
        model.save_pretrained(folder)
    model.config.use_cache = cached
    tokenizer.save_pretrained(folder)
    write_json(folder / CARD, facts)


def load_saved_lm(
    name: str, section: ModelSection | None = None, device: str | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, dict[str, Any]]:
    """Model in evaluation mode, tokenizer and facts, from a folder, a run or a Hub id."""
    mingpt.register()
    section = section or ModelSection(model_name_or_path=name)
    location = locate(name)
    refuse_unsafe(location, section)
    ask_first(location, section, USED)
    with explained(section, USED):
        tokenizer = load_auto_tokenizer(location, **whose_code(location, section))
        facts = saved_facts(location, section.model_revision)
        adapted = is_adapter(location, section.model_revision)
        folder, base = adapter_parts(location, section) if adapted else (None, section)
        name = base.model_name_or_path if adapted else location
        config = load_auto_config(name, **whose_code(name, base))
        refuse_other_kinds(section.model_name_or_path, facts, config)
        model, missing = load_weights(AutoModelForCausalLM, name, base, config)
        refuse_headless(section.model_name_or_path, missing)
        if folder is not None:
            model = join(model, folder, section)
    model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return model.eval(), tokenizer, facts
