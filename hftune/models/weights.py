"""Loading the weights of a checkpoint so that none of the encoder is missing: one way for every kind of model.

transformers initializes what a checkpoint lacks at random and goes on, whether that is a new head or half of the
encoder. Here only a head may be new. The prefix that DataParallel, DDP or torch.compile puts before every name is
stripped. Called by everything in ``hftune.models`` that loads weights.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from hftune.config.model import ModelSection
from hftune.errors import HftuneError
from hftune.models.checkpoint import how_to_load

logger = logging.getLogger(__name__)

WRAPPERS = re.compile(r"(?:(?:module|_orig_mod|model)\.)+")
"""What DataParallel and DDP, torch.compile, and classes that hold a model as ``self.model`` put before the names."""
POOLER = "pooler."
"""Checkpoints of masked language models have none; it is trained with the head."""


def load_weights(
    wanted: Any,
    location: str,
    section: ModelSection,
    config: PreTrainedConfig,
    *,
    subfolder: str = "",
    other_labels: bool = False,
    again: bool = False,
) -> tuple[PreTrainedModel, set[str]]:
    """A model in fp32, and the names of its weights that are not the checkpoint's: those of a head, or of a pooler.

    Args:
        wanted: The class of the model, or an Auto class.
        location: A folder or a Hub id.
        section: What was asked for, and what may be trusted.
        config: The architecture.
        subfolder: Of the checkpoint.
        other_labels: Whether the checkpoint's head may have another shape, since it was trained for other labels.
        again: Whether weights of this checkpoint were loaded before, so that its prefix has been reported.

    Raises:
        HftuneError: Weights of the encoder are missing, or weights have another shape than the configuration says.
    """
    how = {"config": config, "subfolder": subfolder, "output_loading_info": True, **how_to_load(location, section)}
    before = torch.random.get_rng_state()
    # Shapes are compared below: transformers would explain how to ignore them.
    model, info = wanted.from_pretrained(location, ignore_mismatched_sizes=True, **how)
    if prefix := _wrapper_prefix(model, info):
        torch.random.set_rng_state(before)  # a new head is the one that it would be without the prefix
        how["key_mapping"] = {f"^{re.escape(prefix)}": ""}
        model, info = wanted.from_pretrained(location, ignore_mismatched_sizes=True, **how)
        model._weight_conversions = None  # transformers would put the prefix back when it saves the model
    mismatched = {entry[0] for entry in info["mismatched_keys"]}
    refuse_incomplete(section, model, info["missing_keys"], mismatched, other_labels=other_labels)
    if prefix and not again:
        logger.info("Stripped the prefix %r from the weight names of %s", prefix, section.model_name_or_path)
    return model, {*info["missing_keys"], *mismatched}


def refuse_incomplete(
    section: ModelSection,
    model: PreTrainedModel,
    missing: Collection[str],
    mismatched: Collection[str],
    *,
    other_labels: bool,
) -> None:
    """Refuse weights that lack a part of the encoder, or do not fit the configuration. Names are those of the model."""
    encoder = f"{model.base_model_prefix}."
    lacking = sorted(name for name in missing if name.startswith(encoder) and not name.startswith(encoder + POOLER))
    if lacking:
        raise HftuneError(
            f"the weights of {section.model_name_or_path} are not those of a {model.config.model_type} model: "
            f"{len(lacking)} weights "
            f"of the encoder are missing, such as {lacking[0]}",
            hint="check model_type and the number of layers in its config.json and the names in its weights, or choose "
            "another checkpoint",
        )
    strange = sorted(name for name in mismatched if not other_labels or name.startswith(encoder))
    if strange:
        raise HftuneError(
            f"the weights of {section.model_name_or_path} do not fit its configuration: {strange[0]} has another shape",
            hint="the checkpoint is damaged, or its config.json was changed",
        )


def _wrapper_prefix(model: PreTrainedModel, info: dict[str, Any]) -> str:
    """The prefix before the names of a checkpoint; empty if there is none, or more than one to choose from."""
    missing = set(info["missing_keys"])
    encoder = {name for name, _ in model.named_parameters() if name.startswith(f"{model.base_model_prefix}.")}
    if not encoder or not encoder <= missing:
        return ""  # weights of the encoder have their own names
    wrapped = {name: found[0] for name in info["unexpected_keys"] if (found := WRAPPERS.match(name))}
    prefix = min(wrapped.values(), key=len, default="")
    own = set(model.state_dict()) - missing
    unambiguous = all(name.startswith(prefix) and name.removeprefix(prefix) not in own for name in wrapped)
    return prefix if unambiguous else ""
