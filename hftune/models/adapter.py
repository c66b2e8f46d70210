"""Adapters on disk: what peft saves, and beside it what peft leaves out, so that the folder stands for a whole model.

An adapter names its base. A base that only this machine has (fresh weights, a folder, a run) goes along in ``base/``.
Called by ``hftune.models.classifier``.
"""

from __future__ import annotations

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
from hftune.models.checkpoint import explained, how_to_load, refuse_pickle

CONFIG = "adapter_config.json"
BASE = "base"
BESIDE = f"./{BASE}"
"""What the adapter's configuration names when its base lies beside it; no Hub id can look like this."""
FILES = [CONFIG, "adapter_model.safetensors", f"{BASE}/*"]


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


def refuse_adapter(location: str) -> None:
    """Training goes on from whole models only."""
    if is_adapter(location):
        raise HftuneError(
            f"{location} is an adapter, not a whole model, so no training can start from it",
            hint="start from its base, or train it again with method.merge=true (lora, ia3), or with --method full",
        )


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


def adapter_parts(location: str, section: ModelSection) -> tuple[Path, str, str | None]:
    """Folder of an adapter, and name and revision of its base, neither of them a pickle."""
    local = Path(location).is_dir()
    folder = Path(location if local else snapshot_download(location, revision=section.revision, allow_patterns=FILES))
    refuse_pickle(str(folder), section)
    config = read_json(folder / CONFIG)
    beside = config["base_model_name_or_path"] == BESIDE
    name = str(folder / BASE) if beside else config["base_model_name_or_path"]
    refuse_pickle(name, section)
    return folder, name, None if beside else config.get("revision")


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
    folder, name, revision = adapter_parts(location, section)
    with explained(section.model_copy(update={"name": name})):
        base = AutoModelForSequenceClassification.from_pretrained(
            name,
            # The base may bring a head for other labels; the adapter brings the one that was trained.
            ignore_mismatched_sizes=True,
            id2label=dict(enumerate(labels)),
            label2id={label: index for index, label in enumerate(labels)},
            **{**how_to_load(section), "revision": revision},
        )
    model = PeftModel.from_pretrained(base, str(folder))
    model.eval()
    return model
