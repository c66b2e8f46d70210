"""Checkpoints: found by name, checked before anything is loaded, and loaded in one way for every kind of model.

``open_checkpoint`` turns a name (Hub id, folder or run) into a ``Checkpoint``, after every check that needs no weights.
Its methods load configuration, tokenizer and weights, and turn the exceptions of the libraries into an HftuneError with
the cause and what to do.
"""

from __future__ import annotations

import logging
import os
import pickle
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from peft import PeftModel
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto import modeling_auto

from hftune.errors import HftuneError, nearby_path
from hftune.models.hub_files import (
    ADAPTER,
    CONFIG,
    TOKENIZER,
    TRAINING,
    ModelFiles,
    Purpose,
    check_weights,
    load_metadata,
    locate,
    log_bin,
    models_near,
    refuse_unsafe,
    write_metadata,
)
from hftune.models.settings import MINGPT_TYPE, POOLED_TYPE, ModelSection, encoder_config
from hftune.models.trust import refuse_outside_paths, trusted

if TYPE_CHECKING:
    from hftune.models.adapter import Adapter

logger = logging.getLogger(__name__)

WRAPPERS = re.compile(r"(?:(?:module|_orig_mod|model)\.)+")
"""Prefixes of weight names from DataParallel and DDP, torch.compile, and classes with a model as ``self.model``."""
POOLER = "pooler."
"""May be missing, as in checkpoints of masked language models; it is trained with the head."""
NETWORK_ERRORS = {
    *("LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectError", "ConnectionError", "TimeoutException"),
    *("TransportError", "HfHubHTTPError"),
}
"""Names of the client libraries' exceptions for a network that does not work."""
_CLASSES = ("MODEL", "MODEL_FOR_MASKED_LM", "MODEL_FOR_PRETRAINING", "MODEL_FOR_SEQUENCE_CLASSIFICATION")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that has passed the checks of ``open_checkpoint``."""

    section: ModelSection
    """The name that the user gave, the revision, and what may be trusted."""
    files: ModelFiles
    purpose: Purpose = TRAINING

    @property
    def name(self) -> str:
        """The name that the user gave."""
        return self.section.model_name_or_path

    @property
    def location(self) -> str:
        """A folder or a Hub id."""
        return self.files.location

    def explained(self) -> AbstractContextManager[None]:
        """Turn any exception of a loader into one error with the cause and what to do."""
        return _explained(self.section, self.files, self.purpose)

    def check(self) -> None:
        """Refuse what can't be reached, has files that lead out of it, or has no weights."""
        with self.explained():
            if isinstance(self.files.answer, Exception) and self.files.local(CONFIG) is None:
                raise OSError(f"no answer about {self.location}") from self.files.answer
            refuse_outside_paths(self.files)
        if self.purpose is not TOKENIZER:
            check_weights(self.name, self.files)

    def find(self, file: str) -> Path | None:
        """One of its files, downloaded if needed; None if there is none."""
        with self.explained():
            return self.files.path(file)

    @cached_property
    def is_adapter(self) -> bool:
        """Whether it is an adapter, not a whole model."""
        return self.find(ADAPTER) is not None

    @cached_property
    def adapter(self) -> Adapter | None:
        """The adapter, with its base, after all checks; None for a whole model."""
        if not self.is_adapter:
            return None
        from hftune.models.adapter import open_adapter

        return open_adapter(self)

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """The content of hftune.json; empty for a model that hftune did not save."""
        with self.explained():
            return load_metadata(self.files)

    @property
    def _code(self) -> dict[str, Any]:
        """Arguments of every ``from_pretrained``: the revision, and whether its code may run."""
        return {
            "revision": self.section.model_revision,
            "trust_remote_code": trusted(self.files, self.section),
        }

    def _config_values(self) -> dict[str, Any] | None:
        """The content of config.json."""
        values = self.files.values(CONFIG)
        # What hftune's own classes saved is loaded with this package's code, not with the code next to it.
        kind = None if values is None else values.get("model_type")
        if kind == MINGPT_TYPE:
            from hftune.models import mingpt

            mingpt.register()
        elif kind == POOLED_TYPE:
            from hftune.models import pooled

            pooled.register()
        return values

    def config(self) -> PreTrainedConfig:
        """The configuration, also of an old repository whose config.json has no model_type.

        transformers 4 took the architecture from the repository's name there (prajjwal1/bert-tiny); transformers 5
        refuses.
        """
        with self.explained():
            code, values = self._code, self._config_values()
            if values is None or "model_type" in values or "auto_map" in values:
                return AutoConfig.from_pretrained(self.location, **code)
            name = self.files.folder.name if self.files.folder else self.location
            kind = _from_architectures(values.get("architectures")) or _from_name(name)
            if kind is None:
                raise HftuneError(
                    f"the config.json of {self.location} has no model_type, and neither its architectures nor the name "
                    f"{name!r} show which architecture it is",
                    hint='download the checkpoint, add "model_type" to its config.json (such as "bert"), and use that '
                    "folder",
                )
            logger.info("The config.json of %s has no model_type: loading it as %s", self.location, kind)
            return CONFIG_MAPPING[kind].from_dict(values, name_or_path=self.location)

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer."""
        with self.explained():
            arguments, values = self._code, self._config_values()
            if values is not None and not {"model_type", "auto_map", "tokenizer_class"} & values.keys():
                arguments["config"] = self.config()
            return AutoTokenizer.from_pretrained(self.location, **arguments)

    def weights(
        self,
        model_class: Any,
        config: PreTrainedConfig,
        *,
        subfolder: str = "",
        other_labels: bool = False,
        quiet: bool = False,
    ) -> tuple[PreTrainedModel, set[str]]:
        """A model in fp32, and the names of its weights that are new: those of a head, or of a pooler.

        transformers initializes at random all that a checkpoint lacks, be it a new head or half of the encoder. Here
        only a head or a pooler may be new; it may also have another shape if ``other_labels``. ``quiet`` does not log
        again that a prefix was stripped.
        """
        with self.explained():
            # For a repository with .bin weights only, transformers starts a thread that asks the Hub for a conversion,
            # which opens a pull request in a repository of someone else.
            os.environ["DISABLE_SAFETENSORS_CONVERSION"] = "1"
            log_bin(self.name, self.files)
            # fp32, because transformers 5 keeps the dtype of the file, and a checkpoint in half precision would then be
            # trained in half precision. Shapes are compared below: transformers would explain how to ignore them.
            how = {
                **self._code,
                **{"config": config, "subfolder": subfolder, "weights_only": True, "dtype": torch.float32},
                **{"output_loading_info": True, "ignore_mismatched_sizes": True},
            }
            random_state = torch.random.get_rng_state()
            model, info = model_class.from_pretrained(self.location, **how)
            if prefix := _wrapper_prefix(model, info):
                # With the prefix, every weight was missing and drawn at random. Undo those draws, so that a new head is
                # the same as from a checkpoint without the prefix.
                torch.random.set_rng_state(random_state)
                renamed, info = model_class.from_pretrained(
                    self.location, key_mapping={f"^{re.escape(prefix)}": ""}, **how
                )
                # Once more from its tensors: a model that was loaded with key_mapping applies it backwards when it is
                # saved, and the prefix would be in the new checkpoint again.
                model = type(renamed).from_pretrained(
                    None, config=renamed.config, state_dict=renamed.state_dict(), dtype=torch.float32
                )
            mismatched = {entry[0] for entry in info["mismatched_keys"]}
            refuse_incomplete(self.name, model, info["missing_keys"], mismatched, other_labels=other_labels)
            if prefix and not quiet:
                logger.info("Stripped the prefix %r from the weight names of %s", prefix, self.name)
            return model, {*info["missing_keys"], *mismatched}


def open_checkpoint(section: ModelSection, purpose: Purpose = TRAINING) -> Checkpoint:
    """Find a checkpoint and check it; one that is opened for its tokenizer needs no weights."""
    name = section.model_name_or_path
    has_tokenizer = any((Path(name) / file).is_file() for file in ("tokenizer.json", "tokenizer_config.json"))
    location = name if purpose is TOKENIZER and has_tokenizer else locate(name, purpose)
    checkpoint = Checkpoint(section, ModelFiles(location, section.model_revision), purpose)
    checkpoint.check()
    return checkpoint


def save_checkpoint(
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    metadata: Mapping[str, Any],
    *,
    base: ModelSection | None = None,
) -> None:
    """Save weights as safetensors, the tokenizer, and hftune.json.

    ``base`` is what an adapter was trained on; it is saved with it if others can't get it by its name.
    """
    if isinstance(model, PeftModel):
        from hftune.models.adapter import save_adapter

        save_adapter(model, folder, base)
    else:
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_metadata(folder, metadata)


def refuse_incomplete(
    name: str, model: PreTrainedModel, missing: Collection[str], mismatched: Collection[str], *, other_labels: bool
) -> None:
    """Refuse weights that lack a part of the encoder, or do not fit the configuration."""
    # transformers names the encoder base_model_prefix ("bert."): all other weights are those of a head.
    encoder = f"{model.base_model_prefix}."
    lacking = sorted(key for key in missing if key.startswith(encoder) and not key.startswith(encoder + POOLER))
    if lacking:
        raise HftuneError(
            f"the weights of {name} are not those of a {encoder_config(model.config).model_type} model: "
            f"{len(lacking)} weights of the encoder are missing, such as {lacking[0]}",
            hint="check model_type and the number of layers in its config.json and the names in its weights, or choose "
            "another checkpoint",
        )
    strange = sorted(key for key in mismatched if not other_labels or key.startswith(encoder))
    if strange:
        raise HftuneError(
            f"the weights of {name} do not fit its configuration: {strange[0]} has another shape",
            hint="the checkpoint is damaged, or its config.json was changed",
        )


def _wrapper_prefix(model: PreTrainedModel, info: dict[str, Any]) -> str:
    """The prefix before the names of a checkpoint; empty if there is none, or more than one to choose from."""
    # A checkpoint of a wrapped model (module.bert.encoder…) matches no name, and transformers would only warn that all
    # weights are random. The prefix of the wrapper is in the names that were not expected.
    missing = set(info["missing_keys"])
    encoder = {name for name, _ in model.named_parameters() if name.startswith(f"{model.base_model_prefix}.")}
    if not encoder or not encoder <= missing:
        return ""  # weights of the encoder were found under their own names
    wrapped = {name: found[0] for name in info["unexpected_keys"] if (found := WRAPPERS.match(name))}
    # The shortest: the rest of a longer one ("module.model.") is part of the model's own names.
    prefix = min(wrapped.values(), key=len, default="")
    own = set(model.state_dict()) - missing
    unambiguous = all(name.startswith(prefix) and name.removeprefix(prefix) not in own for name in wrapped)
    return prefix if unambiguous else ""


def _from_architectures(names: Any) -> str | None:
    """The model type whose classes include the first of ``architectures``."""
    wanted = names[0] if isinstance(names, list) and names else None
    for table in _CLASSES:
        for kind, classes in getattr(modeling_auto, f"{table}_MAPPING_NAMES").items():
            if wanted in (classes if isinstance(classes, tuple) else (classes,)):
                return str(kind)
    return None


def _from_name(name: str) -> str | None:
    """The longest model type that is part of the name, as in transformers 4."""
    kinds = sorted(modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES, key=len, reverse=True)
    return next((kind for kind in kinds if kind in name.lower()), None)


@contextmanager
def _explained(section: ModelSection, files: ModelFiles, purpose: Purpose) -> Iterator[None]:
    try:
        yield
    except HftuneError:
        raise
    except Exception as error:  # untrusted files can make the loaders raise anything
        for path in files.bin_files():
            refuse_unsafe(path)
        raise _explain(error, section, purpose) from error


def _explain(error: BaseException, section: ModelSection, purpose: Purpose) -> HftuneError:
    name, what, chain = section.model_name_or_path, purpose.what, list(_chain(error))
    near = nearby_path(Path(name), models_near(name, causal=purpose.causal), similar_only=True)
    near = near and f"{near} Else "
    text = " ".join(str(link) for link in chain)

    def caused_by(*classes: type[BaseException]) -> bool:
        return any(isinstance(link, classes) for link in chain)

    if caused_by(GatedRepoError):
        return HftuneError(
            f"the {what} {name} is gated", hint="accept its terms on the Hub, then log in with `hf auth login`"
        )
    if caused_by(RevisionNotFoundError):
        return HftuneError(
            f"the {what} {name} has no revision {section.model_revision!r}",
            hint="leave model.model_revision out, or name a branch, tag or commit that exists",
        )
    if caused_by(RepositoryNotFoundError, HFValidationError):
        return HftuneError(
            f"no {what} {name!r}: not a folder here, and not a {what} on the Hub that you can see",
            hint=f"{near}check the spelling (user/name); a private {what} needs `hf auth login`. "
            f"Offline: {purpose.offline}",
        )
    if caused_by(pickle.UnpicklingError):  # torch's own text suggests weights_only=False
        return HftuneError(
            f"a .bin file of {name} can't be loaded safely: it has more than tensors. hftune loads pickles only with "
            "torch.load(weights_only=True), which runs no code from the file",
            hint="get the checkpoint from its author again, or choose one with .safetensors weights",
        )
    if "trust_remote_code" in text:
        return HftuneError(
            f"{name} comes with its own Python code, which is not run without consent",
            hint="read that code, then pass --trust-remote-code, with model.model_revision set to the commit you read; "
            "for the base of an adapter, --trust-base-code REPO@COMMIT",
        )
    if caused_by(ImportError) and ("tiktoken" in text or "sentencepiece" in text):
        return HftuneError(
            f"the tokenizer of {name} is a SentencePiece model, which needs the packages sentencepiece and protobuf",
            hint="pip install 'hftune[sentencepiece]'",
        )
    if any(isinstance(link, EntryNotFoundError) and not isinstance(link, LocalEntryNotFoundError) for link in chain):
        return HftuneError(
            f"{name} lacks a file that a model needs: {error}", hint="check that it is a transformers checkpoint"
        )
    if NETWORK_ERRORS & {cls.__name__ for link in chain for cls in type(link).__mro__}:
        return HftuneError(
            f"can't get the {what} {name!r}: the Hugging Face Hub can't be reached, and it is not in the local cache",
            hint=f"{near}check the network (and HF_ENDPOINT, HF_HUB_OFFLINE); offline, {purpose.offline}",
        )
    reason = (str(error).strip() or type(error).__name__)[:400]
    return HftuneError(
        f"can't load the {what} {name!r}: {reason}",
        hint="check that it is a checkpoint transformers can load; `hftune doctor` shows the installed versions",
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and everything it was raised from."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__
