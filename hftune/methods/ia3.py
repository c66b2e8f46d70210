"""(IA)³: trained factors for keys, values and feed-forward activations (Liu et al. 2022, arXiv:2205.05638)."""

from __future__ import annotations

from collections.abc import Sequence

from peft import IA3Config
from transformers import PreTrainedModel

from hftune.config.method import Ia3Method
from hftune.methods.adapters import wrapped
from hftune.methods.applied import Applied
from hftune.methods.support import ARCHITECTURES


def apply(model: PreTrainedModel, section: Ia3Method, fresh_modules: Sequence[str]) -> Applied:
    """Rescale the layers that are named, or keys, values and feed-forward inputs."""
    if section.target_modules:
        targets, feedforward = section.target_modules, section.feedforward_modules
    else:
        known = ARCHITECTURES[model.config.model_type]
        targets, feedforward = (*known.ia3, *known.ia3_feedforward), known.ia3_feedforward
    return wrapped(
        model,
        fresh_modules,
        IA3Config,
        {"target_modules": list(targets), "feedforward_modules": list(feedforward)},
        # Keys and values; the attention's output and the feed-forward output, whose inputs are d and f wide.
        formula=lambda head: f"3·L·d + L·f + {head}",
        merge=section.merge,
    )
