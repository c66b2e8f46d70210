"""A classifier that is ready to answer: model, tokenizer, label names and length in one, saved and loaded as one.

``hftune.tasks`` scores with it, ``hftune.inference`` predicts with it, ``hftune.verify`` reloads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from transformers import (
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hftune.config.model import ModelSection
from hftune.errors import HftuneError
from hftune.files import write_json
from hftune.models.adapter import is_adapter, load_adapter, save_adapter
from hftune.models.auto import load_auto_config, load_auto_tokenizer, pad_with_eos, set_padding
from hftune.models.checkpoint import USED, ask_first, explained, locate, refuse_unsafe, whose_code
from hftune.models.facts import CARD, saved_facts
from hftune.models.first_token import read_first_only
from hftune.models.onnx_model import GRAPH, OnnxModel, is_onnx
from hftune.models.weights import load_weights


@dataclass(frozen=True)
class Classifier:
    """Texts in, logits out, in the order of ``labels``."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    labels: tuple[str, ...]
    max_length: int
    truncation: str
    reads_pairs: bool | None = None
    """Whether it was trained on pairs of texts; None for a model that is not ours, which does not say."""

    def encode(self, texts: Sequence[str], pairs: Sequence[str] | None) -> list[dict[str, list[int]]]:
        """Token ids of each row, not padded: exactly what the model was trained on."""
        if self.reads_pairs is not None and self.reads_pairs != (pairs is not None):
            wanted, got = ("pairs of texts", "single texts") if self.reads_pairs else ("single texts", "pairs of texts")
            raise HftuneError(
                f"the model was trained on {wanted}, got {got}",
                hint='give each text its second: TEXT --pair "second text"; in jsonl as text_pair, or both under the '
                "names of the columns that it was trained on"
                if self.reads_pairs
                else "leave the second texts out",
            )
        return encode(self.tokenizer, texts, pairs, max_length=self.max_length, truncation=self.truncation)

    def logits(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        batch_size: int = 64,
        advance: Callable[[int], None] = lambda rows: None,
    ) -> np.ndarray:
        """Logits of every row, in the order given. Longest rows run first, so memory trouble shows at once."""
        rows = self.encode(texts, pairs)
        order = sorted(range(len(rows)), key=lambda index: len(rows[index]["input_ids"]), reverse=True)
        result = np.empty((len(rows), len(self.labels)), dtype=np.float32)
        device, was_training = self.model.device, self.model.training
        self.model.eval()
        with torch.inference_mode(), _full_precision():
            for start in range(0, len(order), batch_size):
                chosen = order[start : start + batch_size]
                batch = self.tokenizer.pad([rows[index] for index in chosen], return_tensors="pt").to(device)
                result[chosen] = self.model(**batch).logits.float().cpu().numpy()
                advance(len(chosen))
        self.model.train(was_training)
        return result

    def save(self, folder: Path, *, base: ModelSection | None = None, **facts: Any) -> None:
        """Weights as safetensors, tokenizer, and a small json with what neither of them can say.

        Args:
            folder: Where to.
            base: What the model was made of; needed for an adapter, whose base may have to go along.
            facts: Further entries of the json.
        """
        if isinstance(self.model, PeftModel):
            assert base is not None, "an adapter has a base"
            save_adapter(self.model, folder, base)
        else:
            self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        write_json(folder / CARD, {"task": "classify", **self.facts(), **facts})

    def facts(self) -> dict[str, Any]:
        """What neither weights nor tokenizer can say, for the json beside them."""
        return {
            "labels": list(self.labels),
            "max_length": self.max_length,
            "truncation": self.truncation,
            "pairs": self.reads_pairs,
        }

    @classmethod
    def load(cls, name: str, *, section: ModelSection | None = None, device: str | None = None) -> Classifier:
        """From a folder, a run, or a Hub id; hftune's own or anybody's sequence classifier, or an adapter of ours."""
        section = section or ModelSection(model_name_or_path=name)
        location = locate(name)
        refuse_unsafe(location, section)
        ask_first(location, section, USED)
        with explained(section, USED):
            tokenizer = load_auto_tokenizer(location, **whose_code(location, section))
            facts = saved_facts(location, section.model_revision)
            model = _load_model(location, section, facts)
        pad_with_eos(tokenizer, name)
        set_padding(model, tokenizer)
        read_first_only(model.get_base_model() if isinstance(model, PeftModel) else model)
        names = label_names(model, name)
        noted = tuple(facts.get("labels", names))
        if noted != names:
            raise HftuneError(
                f"{name}: the labels in {CARD} ({', '.join(noted)}) are not the model's ({', '.join(names)})",
                hint="the folder was changed by hand; take the model folder of the run again",
            )
        model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        return cls(
            model=model,
            tokenizer=tokenizer,
            labels=names,
            max_length=facts.get("max_length") or min(tokenizer.model_max_length, 512),
            truncation=facts.get("truncation", "longest_first"),
            reads_pairs=facts.get("pairs"),
        )


def label_names(model: PreTrainedModel, name: str) -> tuple[str, ...]:
    """The names in the order of the model's outputs, each once, as its configuration has them.

    Raises:
        HftuneError: They are no names, or not one for each output.
    """
    given = model.config.id2label
    names = tuple(given.get(index) for index in range(model.config.num_labels))
    if not names or not all(isinstance(one, str) for one in names) or len(set(names)) < len(names):
        raise HftuneError(
            f"the labels of {name} are not one name for each output: {str(given)[:200]}",
            hint="its config.json was changed; take the model again from where it was made",
        )
    return names


@contextmanager
def _full_precision() -> Iterator[None]:
    """TF32, which training may have switched on, would make answers differ between two processes."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _load_model(location: str, section: ModelSection, facts: dict[str, Any]) -> PreTrainedModel:
    graph = Path(location) if is_onnx(Path(location)) else None
    if graph is None and is_adapter(location, section.model_revision):
        return load_adapter(location, section, facts.get("labels"))
    config = load_auto_config(location, **whose_code(location, section))
    if graph is not None:
        return OnnxModel(graph / GRAPH, config)
    model, missing = load_weights(AutoModelForSequenceClassification, location, section, config)
    if missing:
        raise HftuneError(
            f"{section.model_name_or_path} is no classifier: it has no weights for {sorted(missing)[0]}",
            hint=f"train it first: hftune classify --model {section.model_name_or_path}",
        )
    return model


def encode(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    *,
    max_length: int,
    truncation: str,
) -> list[dict[str, list[int]]]:
    """Token ids of each row. Training and prediction both come through here, so they can't differ."""
    if len(texts) == 0:
        return []
    try:
        columns = tokenizer(
            list(texts),
            list(pairs) if pairs is not None else None,
            truncation=truncation if pairs is not None else True,
            max_length=max_length,
        )
    except Exception as error:  # the tokenizers library has no class of its own for this
        if "too short" not in str(error):
            raise
        kept = "first" if truncation == "only_second" else "second"
        raise HftuneError(
            f"data.truncation is {truncation!r}, but in one row the {kept} text alone is longer than "
            "data.max_seq_length "
            f"({max_length})",
            hint="use a larger --max-length, or --set data.truncation=longest_first",
        ) from error
    return [{name: values[index] for name, values in columns.items()} for index in range(len(columns["input_ids"]))]
