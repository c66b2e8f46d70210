"""Adapters on disk: what peft saves, and beside it what peft leaves out, so that the folder stands for a whole model.

An adapter names its base. A base that only this machine has (fresh weights, a folder, a run) goes along in ``base/``.
Called by the other files of ``hftune.models``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from peft import PeftModel
from transformers import AutoModelForSequenceClassification, PreTrainedModel
from transformers.utils import cached_file

from hftune import pickles
from hftune.config.model import HUB_ID, ModelSection
from hftune.errors import HftuneError
from hftune.files import read_json
from hftune.models.adapter_limits import check_adapter_config
from hftune.models.auto import load_auto_config
from hftune.models.checkpoint import explained, refuse_unsafe, whose_code
from hftune.models.trust import base_on_hub, trusted
from hftune.models.weight_files import cached_path, report_adapter_bin
from hftune.models.weights import load_weights

CONFIG = "adapter_config.json"
BASE = "base"
BESIDE = f"./{BASE}"
"""What the adapter's configuration names when its base lies beside it; no Hub id can look like this."""
WEIGHTS = "adapter_model.safetensors"
BIN = "adapter_model.bin"
SAVED = ".modules_to_save.default."
"""What peft puts into the names of weights that replace those of the base."""
MERGEABLE = ("LORA", "IA3")
"""peft's names of the kinds whose update can be added to the weights."""
FILES = [CONFIG, WEIGHTS, BIN, f"{BASE}/*"]
ELSEWHERE = ("adapters", "prompt_tuning_init_state_dict_path", "shadow_model")
"""Settings of an adapter under which peft opens a file or loads a model, wherever it is."""


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
            f"{section.model_name_or_path} is an adapter of the kind {str(kind)[:40]!r}, which stays beside the "
            "weights of its base, "
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
    # An adapter that training started from is in the weights now, and no base by its name.
    merged = cached_path(base.model_name_or_path, CONFIG, base.model_revision) is not None
    beside = base.from_scratch or Path(base.model_name_or_path).exists() or merged
    config.base_model_name_or_path = BESIDE if beside else base.model_name_or_path
    config.revision = None if beside else base.model_revision
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
    """Folder of an adapter, and its base with what may be trusted of it."""
    trusted(location, section)  # what is in base/ is part of the same repository, and read at the same revision
    local = Path(location).is_dir()
    folder = Path(
        location if local else snapshot_download(location, revision=section.model_revision, allow_patterns=FILES)
    )
    refuse_unsafe(str(folder), section)
    _check_weights(folder, section)
    config = read_json(folder / CONFIG)
    named, revision = config.get("base_model_name_or_path"), config.get("revision")
    if named == BESIDE:
        if not (folder / BASE / "config.json").is_file():
            raise HftuneError(
                f"the adapter {section.model_name_or_path} names its base {BESIDE!r}, but has no model there (no "
                f"{BASE}/config.json)",
                hint="take the adapter again from where it was saved, with all its folders",
            )
        base = section.model_copy(
            update={"model_name_or_path": str(folder / BASE), "model_revision": None, "trust_base_code": None}
        )
    elif isinstance(named, str) and HUB_ID.fullmatch(named) and isinstance(revision, str | None):
        base = base_on_hub(section, named, revision)
    else:
        raise HftuneError(
            f"the adapter {section.model_name_or_path} names its base as {str(named)[:100]!r}, which is no model on "
            "the Hub",
            hint=f"put the base into {BASE}/ beside the adapter, and name it {BESIDE!r} in {CONFIG}",
        )
    if config.get("megatron_config") is not None:  # peft would import the module that it names
        raise HftuneError(
            f"the adapter {section.model_name_or_path} is one for Megatron", hint="take an adapter of another kind"
        )
    _refuse_elsewhere(config, section)
    _refuse_no_model(base, section)
    check_adapter_config(config, folder, section.model_name_or_path)
    refuse_unsafe(base.model_name_or_path, base)
    return folder, base


def _refuse_elsewhere(config: dict[str, Any], section: ModelSection) -> None:
    """Refuse an adapter that is made of more than its own weights and a base."""
    found = next((name for name in ELSEWHERE if config.get(name) not in (None, {}, "mirror")), None)
    if found is not None:
        raise HftuneError(
            f"the adapter {section.model_name_or_path} leads out of itself: {CONFIG} names "
            f"{str(config[found])[:200]!r} as {found}",
            hint="take an adapter that consists of its own weights and a base",
        )


def _refuse_no_model(base: ModelSection, section: ModelSection) -> None:
    """A base is a whole model: of another adapter, transformers would load the base that this one names in turn."""
    with explained(base):
        is_whole = not is_adapter(base.model_name_or_path, base.model_revision)
    if not is_whole:
        raise HftuneError(
            f"the base of the adapter {section.model_name_or_path} is an adapter itself "
            f"({base.model_name_or_path}); a whole model is expected",
            hint="merge that adapter into its base, and save the result as the base",
        )


def _check_weights(folder: Path, section: ModelSection) -> None:
    """Refuse an adapter without weights, and a .bin that holds anything but tensors."""
    if (folder / WEIGHTS).is_file():
        return
    if not (folder / BIN).is_file():
        raise HftuneError(
            f"the adapter {section.model_name_or_path} has no weights: expected {WEIGHTS} or {BIN}",
            hint="take the adapter again from where it was saved",
        )
    if reason := pickles.fault(folder / BIN):
        raise pickles.refused(
            folder / BIN,
            reason,
            hint="don't use this file: take the adapter from its author again, or choose one with .safetensors weights",
        )
    report_adapter_bin(section.model_name_or_path)


def load_adapter(location: str, section: ModelSection, labels: Sequence[str] | None) -> PeftModel:
    """Base and adapter joined, in fp32 and ready to answer.

    Args:
        location: A folder or a Hub id that holds an adapter.
        section: Revision of the adapter, and what may be trusted.
        labels: Names of the labels, in order; peft does not keep them.
    """
    if not labels:
        raise HftuneError(
            f"{section.model_name_or_path} is an adapter without hftune.json, so its labels are not known",
            hint="load it with peft and save the merged model, or use an adapter that hftune saved",
        )
    folder, base_section = adapter_parts(location, section)
    with explained(base_section):
        config = load_auto_config(
            base_section.model_name_or_path, **whose_code(base_section.model_name_or_path, base_section)
        )
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: index for index, label in enumerate(labels)}
        # The base may bring a head for other labels; the adapter brings the one that was trained.
        base, new = load_weights(
            AutoModelForSequenceClassification, base_section.model_name_or_path, base_section, config, other_labels=True
        )
        return join(base, folder, section, new)


def join(base: PreTrainedModel, folder: Path, section: ModelSection, new: Collection[str] = ()) -> PeftModel:
    """Put the weights of an adapter around its base, in fp32 and ready to answer.

    Args:
        base: The base; it is changed.
        folder: Of the adapter, as ``adapter_parts`` found it.
        section: What the user named.
        new: Weights of the base that are not its checkpoint's: the adapter must bring them.

    Raises:
        HftuneError: A weight comes from neither; it would be random.
    """
    model = PeftModel.from_pretrained(base, str(folder), torch_device="cpu")
    # The same once more: from_pretrained warns of weights that are missing, and load_adapter returns their names.
    missing = model.load_adapter(str(folder), model.active_adapter, torch_device="cpu").missing_keys
    brought = {name.replace(SAVED, ".") for name in base.state_dict() if SAVED in name}
    # A prompt is loaded apart from the rest, and was compared with the file before.
    lacking = [name for name in missing if "prompt_encoder" not in name] + sorted(set(new) - brought)
    if lacking:
        raise HftuneError(
            f"the adapter {section.model_name_or_path} has no weights for {lacking[0]}, and its base has none either",
            hint="take the adapter again from where it was saved",
        )
    model.eval()
    return model
