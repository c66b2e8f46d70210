"""Adapters on disk: what peft saves, and beside it what peft leaves out, so that the folder stands for a whole model.

An adapter names its base. A base that only this machine has (fresh weights, a folder, a run) goes along in ``base/``.
Called by the other files of ``hftune.models``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from peft import PeftModel
from transformers import AutoModelForSequenceClassification, PreTrainedModel
from transformers.utils import cached_file

from hftune.config.model import ModelSection
from hftune.errors import HftuneError
from hftune.files import read_json
from hftune.models.checkpoint import explained, how_to_load, pickle_error, refuse_unsafe

CONFIG = "adapter_config.json"
BASE = "base"
BESIDE = f"./{BASE}"
"""What the adapter's configuration names when its base lies beside it; no Hub id can look like this."""
WEIGHTS = "adapter_model.safetensors"
MERGEABLE = ("LORA", "IA3")
"""peft's names of the kinds whose update can be added to the weights."""
FILES = [CONFIG, WEIGHTS, f"{BASE}/*"]
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def is_adapter(location: str, revision: str | None = None) -> bool:
    """Whether a folder or a Hub repository holds an adapter instead of a model."""
    if Path(location).is_dir():
        return (Path(location) / CONFIG).is_file()
    found = cached_file(
        location,
        CONFIG,
        revision=revision,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return found is not None


def refuse_adapter(location: str, revision: str | None = None) -> None:
    """Some training goes on from whole models only."""
    if is_adapter(location, revision):
        raise HftuneError(
            f"{location} is an adapter, not a whole model, so this training can't start from it",
            hint="start from its base, or from a model that was trained with --method full",
        )


def base_to_start_from(location: str, section: ModelSection) -> ModelSection:
    """The base of an adapter that training can start from, because its update fits into the base's weights.

    Raises:
        HftuneError: It is one that stays beside the weights, such as a prefix.
    """
    folder, base = adapter_parts(location, section)
    kind = read_json(folder / CONFIG).get("peft_type")
    if kind not in MERGEABLE:
        raise HftuneError(
            f"{section.name} is an adapter of the kind {str(kind)[:40]!r}, which stays beside the weights of its base, "
            "so no training can start from it",
            hint="start from its base, or from an adapter of the kind lora or ia3, or train with --method full",
        )
    return base


def with_weights_of(joined: PeftModel, fresh: PreTrainedModel) -> list[str]:
    """Put a base and its adapter, as one, into a model of the same architecture; names of weights that do not fit."""
    found, wanted = joined.merge_and_unload().state_dict(), fresh.state_dict()
    fitting = {name: value for name, value in found.items() if name in wanted and value.shape == wanted[name].shape}
    fresh.load_state_dict(fitting, strict=False)
    return [name for name in wanted if name not in fitting]


def save_adapter(model: PeftModel, folder: Path, base: ModelSection) -> None:
    """Adapter weights and configuration, and the base where nobody else could get it by its name."""
    config = model.peft_config[model.active_adapter]
    beside = base.from_scratch or Path(base.name).exists() or base.allow_pickle
    config.base_model_name_or_path = BESIDE if beside else base.name
    config.revision = None if beside else base.revision
    # False: peft would ask the Hub whether the vocabulary has changed, and it never has.
    model.save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink()  # an empty form; the card of the run is written elsewhere
    if beside:
        plain_base(model).save_pretrained(folder / BASE)


def plain_base(model: PeftModel) -> PreTrainedModel:
    """The model as it was before the adapter: the same weights under their own names."""
    base = model.get_base_model()
    with torch.device("meta"):
        plain = type(base)(base.config)
    names = plain.state_dict().keys()
    found = {
        name.replace(".base_layer.", ".").replace(".original_module.", "."): value
        for name, value in base.state_dict().items()
        if ".modules_to_save." not in name
    }
    plain.load_state_dict({name: found[name] for name in names}, assign=True)
    return plain


def adapter_parts(location: str, section: ModelSection) -> tuple[Path, ModelSection]:
    """Folder of an adapter, and its base with what may be trusted of it; neither of them a pickle, unless asked."""
    local = Path(location).is_dir()
    folder = Path(location if local else snapshot_download(location, revision=section.revision, allow_patterns=FILES))
    refuse_unsafe(str(folder), section)
    if not section.allow_pickle and not (folder / WEIGHTS).is_file():
        raise pickle_error(section.name, f"there is no {WEIGHTS}")
    config = read_json(folder / CONFIG)
    named, revision = config.get("base_model_name_or_path"), config.get("revision")
    if named == BESIDE:
        base = section.model_copy(update={"name": str(folder / BASE), "revision": None})
    elif isinstance(named, str) and HUB_ID.fullmatch(named) and isinstance(revision, str | None):
        base = section.model_copy(update={"name": named, "revision": revision})
    else:
        raise HftuneError(
            f"the adapter {section.name} names its base as {str(named)[:100]!r}, which is no model on the Hub",
            hint=f"put the base into {BASE}/ beside the adapter, and name it {BESIDE!r} in {CONFIG}",
        )
    if config.get("megatron_config") is not None:  # peft would import the module that it names
        raise HftuneError(f"the adapter {section.name} is one for Megatron", hint="take an adapter of another kind")
    refuse_unsafe(base.name, base)
    return folder, base


def load_adapter(location: str, section: ModelSection, labels: Sequence[str] | None) -> PeftModel:
    """Base and adapter joined, in fp32 and ready to answer.

    Args:
        location: A folder or a Hub id that holds an adapter.
        section: Revision of the adapter, and what may be trusted.
        labels: Names of the labels, in order; peft does not keep them.
    """
    if not labels:
        raise HftuneError(
            f"{section.name} is an adapter without hftune.json, so its labels are not known",
            hint="load it with peft and save the merged model, or use an adapter that hftune saved",
        )
    folder, base_section = adapter_parts(location, section)
    with explained(base_section):
        base = AutoModelForSequenceClassification.from_pretrained(
            base_section.name,
            # The base may bring a head for other labels; the adapter brings the one that was trained.
            ignore_mismatched_sizes=True,
            id2label=dict(enumerate(labels)),
            label2id={label: index for index, label in enumerate(labels)},
            **how_to_load(base_section.name, base_section),
        )
        model = PeftModel.from_pretrained(base, str(folder))
    model.eval()
    return model
