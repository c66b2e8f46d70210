"""Adapters on disk: what peft saves, plus what it leaves out, so that the folder can be loaded like a whole model.

An adapter names its base. A base that others can't get by its name (trained from scratch, a folder, a run) is saved
with it in ``base/``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from peft import PeftModel
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from hftune.data.settings import HUB_ID
from hftune.errors import HftuneError
from hftune.files import read_json
from hftune.models.adapter_limits import check_adapter_config
from hftune.models.checkpoint import Checkpoint
from hftune.models.hub_files import ADAPTER, ModelFiles, log_bin_file, refuse_unsafe
from hftune.models.load import set_labels
from hftune.models.pooling import with_pooling
from hftune.models.settings import ModelSection
from hftune.models.trust import base_on_hub, refuse_outside_paths, trusted

BASE = "base"
LOCAL_BASE = f"./{BASE}"
"""base_model_name_or_path of an adapter whose base is in its folder; no Hub id can look like this."""
WEIGHTS, BIN = "adapter_model.safetensors", "adapter_model.bin"
SAVED = ".modules_to_save.default."
"""Part of the names that peft gives to weights that replace those of the base."""
MERGEABLE = ("LORA", "IA3")
"""peft's types whose update can be added to the weights."""
FILES = [ADAPTER, WEIGHTS, BIN, f"{BASE}/*"]
OTHER_FILES = ("adapters", "prompt_tuning_init_state_dict_path", "shadow_model")
"""Settings that let peft open other files or models."""


@dataclass(frozen=True)
class Adapter:
    """An adapter that has passed all checks, and its base."""

    folder: Path
    peft_type: str
    base: Checkpoint
    name: str
    """The name that the user gave."""

    def refuse_unmergeable(self) -> None:
        """Refuse an adapter that can't be added to the base's weights, such as a prefix, as a start of training."""
        if self.peft_type not in MERGEABLE:
            raise HftuneError(
                f"{self.name} is an adapter of the type {self.peft_type[:40]!r}, which can't be merged into its base, "
                "so training can't start from it",
                hint="start from its base, or from an adapter of the type lora or ia3, or train with --method full",
            )

    def join(self, base: PreTrainedModel, new: Collection[str] = ()) -> PeftModel:
        """Put the adapter around its base, which is changed; in fp32 and in evaluation mode.

        ``new`` are weights that the checkpoint of the base lacks: the adapter must have them, or they would be random.
        """
        model = PeftModel.from_pretrained(base, str(self.folder), torch_device="cpu")
        # Once more, because from_pretrained only warns about missing weights, and load_adapter returns their names.
        missing = model.load_adapter(str(self.folder), model.active_adapter, torch_device="cpu").missing_keys
        saved = {name.replace(SAVED, ".") for name in base.state_dict() if SAVED in name}
        tensors = dict(model.named_parameters(remove_duplicate=False))
        # Tensors that layers share, such as the vectors of VB-LoRA, are saved once: missing under every other name.
        shared = {id(value) for name, value in tensors.items() if name not in missing}
        # A prompt is not loaded with the state dict; its size was compared with the file before.
        lacking = [name for name in missing if "prompt_encoder" not in name and id(tensors.get(name)) not in shared]
        lacking += sorted(set(new) - saved)
        if lacking:
            raise HftuneError(
                f"neither the adapter {self.name} nor its base has weights for {lacking[0]}",
                hint="get the adapter again from where it was saved",
            )
        model.eval()
        return model


def open_adapter(checkpoint: Checkpoint) -> Adapter:
    """Check an adapter and its base before peft reads either."""
    section, folder = checkpoint.section, checkpoint.files.folder
    trusted(checkpoint.files, section)  # base/ is part of the same repository, at the same revision
    if folder is None:
        with checkpoint.explained():
            revision = section.model_revision
            folder = Path(snapshot_download(checkpoint.location, revision=revision, allow_patterns=FILES))
            refuse_outside_paths(ModelFiles(str(folder)))
    _check_weights(folder, section)
    config = read_json(folder / ADAPTER)
    named = _base(folder, config, section)
    base = Checkpoint(named, ModelFiles(named.model_name_or_path, named.model_revision), checkpoint.purpose)
    _refuse_other_files(config, section)
    if base.is_adapter:  # transformers would load the base that this one names in turn
        raise HftuneError(
            f"the base of the adapter {section.model_name_or_path} is an adapter itself ({base.name}); a "
            "whole model is expected",
            hint="merge that adapter into its base, and save the result as the base",
        )
    check_adapter_config(config, folder, section.model_name_or_path)
    base.check()
    return Adapter(folder, str(config.get("peft_type")), base, section.model_name_or_path)


def _base(folder: Path, config: dict[str, Any], section: ModelSection) -> ModelSection:
    """The base that the configuration names, with the consent to its code."""
    named, revision = config.get("base_model_name_or_path"), config.get("revision")
    if named == LOCAL_BASE:
        if not (folder / BASE / "config.json").is_file():
            raise HftuneError(
                f"the base of the adapter {section.model_name_or_path} is {LOCAL_BASE!r}, but there is no model in it "
                f"(no {BASE}/config.json)",
                hint="get the adapter again from where it was saved, with all its folders",
            )
        return section.model_copy(
            update={"model_name_or_path": str(folder / BASE), "model_revision": None, "trust_base_code": None}
        )
    if isinstance(named, str) and HUB_ID.fullmatch(named) and isinstance(revision, str | None):
        return base_on_hub(section, named, revision)
    raise HftuneError(
        f"the base of the adapter {section.model_name_or_path} is {str(named)[:100]!r}, which is not a model on the "
        "Hub",
        hint=f"put the base into {BASE}/ of the adapter and set base_model_name_or_path of {ADAPTER} to {LOCAL_BASE!r}",
    )


def _refuse_other_files(config: dict[str, Any], section: ModelSection) -> None:
    """Refuse an adapter that consists of more than its own weights and a base."""
    if config.get("megatron_config") is not None:  # peft would import the module that it names
        raise HftuneError(
            f"the adapter {section.model_name_or_path} is one for Megatron", hint="use an adapter of another type"
        )
    found = next((name for name in OTHER_FILES if config.get(name) not in (None, {}, "mirror")), None)
    if found is not None:
        raise HftuneError(
            f"the adapter {section.model_name_or_path} names another file or model: {found} in {ADAPTER} is "
            f"{str(config[found])[:200]!r}",
            hint="use an adapter that consists of its own weights and a base",
        )


def _check_weights(folder: Path, section: ModelSection) -> None:
    """Refuse an adapter without weights, and a .bin with anything but tensors."""
    if (folder / WEIGHTS).is_file():
        return
    if not (folder / BIN).is_file():
        raise HftuneError(
            f"the adapter {section.model_name_or_path} has no weights: expected {WEIGHTS} or {BIN}",
            hint="get the adapter again from where it was saved",
        )
    refuse_unsafe(folder / BIN)
    log_bin_file(BIN, section.model_name_or_path)


def refuse_adapter(checkpoint: Checkpoint) -> None:
    """Refuse an adapter where training can only start from a whole model."""
    if checkpoint.is_adapter:
        raise HftuneError(
            f"{checkpoint.name} is an adapter, not a whole model, so this training can't start from it",
            hint="start from its base, or from a model that was trained with --method full",
        )


def merge_into(adapted: PeftModel, model: PreTrainedModel) -> set[str]:
    """Copy a base with its merged adapter into a model of the same architecture; names of weights that do not fit."""
    merged, wanted = adapted.merge_and_unload().state_dict(), model.state_dict()
    fitting = {name: value for name, value in merged.items() if name in wanted and value.shape == wanted[name].shape}
    model.load_state_dict(fitting, strict=False)
    return set(wanted) - set(fitting)


def load_adapted_classifier(checkpoint: Checkpoint) -> PeftModel:
    """Base and adapter of a classifier, in fp32 and in evaluation mode; its labels are those of hftune.json."""
    labels = checkpoint.metadata.get("labels")
    if not labels:
        raise HftuneError(
            f"{checkpoint.name} is an adapter without hftune.json, so its labels are not known",
            hint="load it with peft and save the merged model, or use an adapter that hftune saved",
        )
    adapter = checkpoint.adapter
    assert adapter is not None
    config = with_pooling(adapter.base.config(), checkpoint.metadata.get("pooling"))
    set_labels(config, labels)
    # The base may have a head for other labels; the adapter has the one that was trained.
    base, new = adapter.base.weights(AutoModelForSequenceClassification, config, other_labels=True)
    with adapter.base.explained():
        return adapter.join(base, new)


def save_adapter(model: PeftModel, folder: Path, base: ModelSection | None) -> None:
    """Save an adapter, and its base if others can't get it by its name."""
    assert base is not None, "an adapter has a base"
    config = model.peft_config[model.active_adapter]
    # If training started from another adapter, that one was merged into the base, which is then not on the Hub.
    merged = ModelFiles(base.model_name_or_path, base.model_revision).local(ADAPTER) is not None
    local = base.from_scratch or Path(base.model_name_or_path).exists() or merged
    config.base_model_name_or_path = LOCAL_BASE if local else base.model_name_or_path
    config.revision = None if local else base.model_revision
    # False: peft would request the base's config from the Hub to see whether the vocabulary was resized; it never is.
    model.save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink()  # peft's empty template; the model card of the run is written elsewhere
    if local:
        _plain_base(model).save_pretrained(folder / BASE)


def _plain_base(model: PeftModel) -> PreTrainedModel:
    """The model without the adapter: the same weights under their own names."""
    # peft renames what it wraps: query.weight becomes query.base_layer.weight, and a trained head is there twice, as
    # original_module and in modules_to_save. The adapter is saved with the trained copy, the base with the original.
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
