"""Sequence classifiers: loaded to be trained, and loaded, used and saved with tokenizer, label names and length."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from transformers import (
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hftune.errors import HftuneError
from hftune.models.checkpoint import Checkpoint, open_checkpoint, refuse_incomplete, save_checkpoint
from hftune.models.cls_only import compute_cls_only
from hftune.models.hub_files import INFERENCE, METADATA, ONNX, is_onnx
from hftune.models.load import (
    LoadedModel,
    check_vocabulary,
    default_device,
    evaluation_mode,
    longest_first,
    modules_of,
    open_model,
    refuse_other_head,
    set_labels,
)
from hftune.models.pooling import choose_pooling, pooling_of, with_pooling
from hftune.models.settings import MINGPT_TYPE, ModelSection
from hftune.models.tokenizers import pad_with_eos

logger = logging.getLogger(__name__)


def load_sequence_classifier(
    section: ModelSection, tokenizer: PreTrainedTokenizerBase, labels: Sequence[str], *, cls_only: bool = True
) -> LoadedModel:
    """An encoder with a classification head for these labels, in fp32, to be trained.

    A head of the checkpoint is kept only if its label names are the same. With ``cls_only``, the last layer computes
    only the first token, if the head reads no other.
    """
    refuse_other_head(section, causal=False)
    checkpoint, config = open_model(section, tokenizer)
    if config.model_type == MINGPT_TYPE:
        raise HftuneError(
            f"{section.model_name_or_path} is a minGPT, which generates text and has no classification head",
            hint="use an encoder (BERT, RoBERTa …); a minGPT answers questions after `hftune finetune --from RUN`",
        )
    pooling = choose_pooling(section, checkpoint, config)
    before, trained_with = tuple(config.id2label.values()), pooling_of(config)
    if checkpoint is not None and checkpoint.is_adapter:
        trained_with = checkpoint.metadata.get("pooling", trained_with)  # the base may be the encoder alone
    config = with_pooling(config, pooling.kind)
    if pooling_of(config) != trained_with:
        before = ()  # a head that was trained on another vector
    set_labels(config, labels)
    if checkpoint is None:
        loaded = LoadedModel(AutoModelForSequenceClassification.from_config(config, dtype=torch.float32))
    else:
        loaded = _pretrained(checkpoint, config, before, tuple(labels))
        check_vocabulary(checkpoint, loaded.model, tokenizer)
        _set_padding(loaded.model, tokenizer)
    if cls_only:
        compute_cls_only(loaded.model)
    return replace(loaded, facts=pooling.facts(), notes=pooling.notes())


def _pretrained(
    checkpoint: Checkpoint, config: PreTrainedConfig, before: tuple[str, ...], labels: tuple[str, ...]
) -> LoadedModel:
    if checkpoint.is_adapter:
        from hftune.models.adapter import load_adapted_classifier, merge_into

        before = before and tuple(checkpoint.metadata.get("labels") or ())
        adapted = load_adapted_classifier(checkpoint)  # first: it registers the class of a base with its own code
        model = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32)
        new = merge_into(adapted, model)
        refuse_incomplete(checkpoint.name, model, (), new, other_labels=True)
    else:
        model, new = checkpoint.weights(AutoModelForSequenceClassification, config, other_labels=True)
    head = tuple(name for name, _ in model.named_children() if name != model.base_model_prefix)
    fresh = modules_of(new)
    if not any(name.split(".")[0] in head for name in fresh) and before != labels:
        fresh += _reset(model, head)
    if fresh:
        logger.info("newly initialized: %s", ", ".join(fresh))
    return LoadedModel(model, fresh)


def _reset(model: PreTrainedModel, head: Sequence[str]) -> tuple[str, ...]:
    """Initialize the head again: one that was trained for other labels would start with wrong answers."""
    names = []
    for name, module in model.named_modules():
        if name.split(".")[0] in head and any(True for _ in module.parameters(recurse=False)):
            # transformers marks the parameters that it loaded and does not initialize them again; a copy has no marks.
            fresh = copy.deepcopy(module)
            model._init_weights(fresh)
            module.load_state_dict(fresh.state_dict())
            names.append(name)
    return tuple(names)


def _set_padding(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Set ``pad_token_id``: a model that reads the last token of a text needs it to skip padding."""
    if getattr(model.config, "pad_token_id", None) is None:
        model.config.pad_token_id = tokenizer.pad_token_id


@dataclass(frozen=True)
class Classifier:
    """Texts in, logits out, in the order of ``labels``."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    labels: tuple[str, ...]
    max_length: int
    truncation: str
    reads_pairs: bool | None = None
    """Whether it was trained on pairs of texts; None for a model that hftune did not save."""

    def encode(self, texts: Sequence[str], pairs: Sequence[str] | None) -> list[dict[str, list[int]]]:
        """Token ids of each example, not padded, as in training."""
        if self.reads_pairs is not None and self.reads_pairs != (pairs is not None):
            wanted, got = ("pairs of texts", "single texts") if self.reads_pairs else ("single texts", "pairs of texts")
            hint = "leave the second texts out"
            if self.reads_pairs:
                hint = (
                    'give each text its second: TEXT --pair "second text"; in jsonl as text_pair, or both under '
                    "the names of the columns that it was trained on"
                )
            raise HftuneError(f"the model was trained on {wanted}, got {got}", hint=hint)
        return encode(self.tokenizer, texts, pairs, max_length=self.max_length, truncation=self.truncation)

    def logits(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        batch_size: int = 64,
        advance: Callable[[int], None] = lambda rows: None,
    ) -> np.ndarray:
        """Logits of every example [N, labels], in order."""
        rows = self.encode(texts, pairs)
        result = np.empty((len(rows), len(self.labels)), dtype=np.float32)
        with evaluation_mode(self.model), _full_precision():
            for chosen in longest_first([len(row["input_ids"]) for row in rows], batch_size):
                batch = self.tokenizer.pad([rows[index] for index in chosen], return_tensors="pt")
                logits = self.model(**batch.to(self.model.device)).logits  # [B, labels]
                result[chosen] = logits.float().cpu().numpy()
                advance(len(chosen))
        return result

    def save(self, folder: Path, *, base: ModelSection | None = None, **metadata: Any) -> None:
        """What ``save_checkpoint`` saves; ``metadata`` are further entries of hftune.json."""
        save_checkpoint(
            self.model, self.tokenizer, folder, {"task": "classify", **self.metadata(), **metadata}, base=base
        )

    def metadata(self) -> dict[str, Any]:
        """The entries of hftune.json that belong to a classifier; an adapter has no other place for its pooling."""
        pooling = pooling_of(self.model.config)
        return {
            "labels": list(self.labels),
            "max_length": self.max_length,
            "truncation": self.truncation,
            "pairs": self.reads_pairs,
            **({} if pooling is None else {"pooling": pooling}),
        }

    @classmethod
    def load(cls, name: str, *, section: ModelSection | None = None, device: str | None = None) -> Classifier:
        """Load a classifier from a folder, a run or the Hub: any sequence classifier, or an adapter saved by hftune."""
        checkpoint = open_checkpoint(
            (section or ModelSection()).model_copy(update={"model_name_or_path": name}), INFERENCE
        )
        tokenizer, metadata = checkpoint.tokenizer(), checkpoint.metadata
        model = _load_model(checkpoint)
        pad_with_eos(tokenizer, name)
        _set_padding(model, tokenizer)
        compute_cls_only(model.get_base_model() if isinstance(model, PeftModel) else model)
        names = label_names(model, name)
        noted = tuple(metadata.get("labels", names))
        if noted != names:
            raise HftuneError(
                f"{name}: the labels in {METADATA} ({', '.join(noted)}) are not the model's ({', '.join(names)})",
                hint="the folder was changed: use the model folder of the run again",
            )
        model.to(device or default_device())
        return cls(
            model=model,
            tokenizer=tokenizer,
            labels=names,
            max_length=metadata.get("max_length") or min(tokenizer.model_max_length, 512),
            truncation=metadata.get("truncation", "longest_first"),
            reads_pairs=metadata.get("pairs"),
        )


def load_saved_classifier(section: ModelSection) -> PreTrainedModel:
    """The model alone, in evaluation mode: unlike that of ``Classifier.load`` it computes every token."""
    checkpoint = open_checkpoint(section, INFERENCE)
    tokenizer, model = checkpoint.tokenizer(), _load_model(checkpoint)
    pad_with_eos(tokenizer, section.model_name_or_path)
    _set_padding(model, tokenizer)
    return model.to(default_device()).eval()


def _load_model(checkpoint: Checkpoint) -> PreTrainedModel:
    if is_onnx(Path(checkpoint.location)):
        from hftune.models.onnx_model import OnnxModel

        config = checkpoint.config()
        with checkpoint.explained():
            return OnnxModel(Path(checkpoint.location) / ONNX, config)
    if checkpoint.is_adapter:
        from hftune.models.adapter import load_adapted_classifier

        return load_adapted_classifier(checkpoint)
    model, missing = checkpoint.weights(AutoModelForSequenceClassification, checkpoint.config())
    if missing:
        raise HftuneError(
            f"{checkpoint.name} is not a classifier: it has no weights for {sorted(missing)[0]}",
            hint=f"train it first: `hftune classify --model {checkpoint.name} --data NAME|PATH`",
        )
    return model


def label_names(model: PreTrainedModel, name: str) -> tuple[str, ...]:
    """The label names in the order of the model's outputs.

    Raises:
        HftuneError: The configuration does not have one name for each output.
    """
    given = model.config.id2label
    names = tuple(given.get(index) for index in range(model.config.num_labels))
    if not names or not all(isinstance(one, str) for one in names) or len(set(names)) < len(names):
        raise HftuneError(
            f"the labels of {name} are not one name for each output: {str(given)[:200]}",
            hint="its config.json was changed; get the model again from where it was saved",
        )
    return names


@contextmanager
def _full_precision() -> Iterator[None]:
    """Without TF32, which training may have enabled: results would differ between two processes."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def encode(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    *,
    max_length: int,
    truncation: str,
) -> list[dict[str, list[int]]]:
    """Token ids of each example, the same for training and prediction."""
    if len(texts) == 0:
        return []
    try:
        columns = tokenizer(
            list(texts),
            list(pairs) if pairs is not None else None,
            truncation=truncation if pairs is not None else True,
            max_length=max_length,
        )
    except Exception as error:  # the tokenizers library has no exception class for this
        if "too short" not in str(error):
            raise
        kept = "first" if truncation == "only_second" else "second"
        raise HftuneError(
            f"data.truncation is {truncation!r}, but in one example the {kept} text alone is longer than "
            f"data.max_seq_length ({max_length})",
            hint="use a larger --max-length, or --set data.truncation=longest_first",
        ) from error
    return [{name: values[index] for name, values in columns.items()} for index in range(len(columns["input_ids"]))]
