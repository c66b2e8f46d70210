"""A teacher that is a classifier: found and checked without its weights, then loaded to give texts its logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hftune.errors import HftuneError
from hftune.models.checkpoint import Checkpoint, open_checkpoint
from hftune.models.classifier import Classifier
from hftune.models.hub_files import is_onnx
from hftune.models.settings import ModelSection
from hftune.models.teacher import TEACHER, fingerprint_of, of_the_teacher

HEAD = "ForSequenceClassification"
"""End of the name of every class of transformers that has the head of a sequence classifier."""
MOST_NAMES = 20
"""Labels that a message lists."""


@dataclass(frozen=True)
class OpenedClassifier:
    """A classifier that has passed all checks that need no weights."""

    checkpoint: Checkpoint
    labels: tuple[str, ...]
    """Label names in the order of its logits."""

    @property
    def name(self) -> str:
        """The name that the user gave."""
        return self.checkpoint.name

    def order_for(self, labels: Sequence[str], source: str) -> list[int]:
        """The place of each label of the data among the teacher's, by name.

        Raises:
            HftuneError: The teacher has other labels than the data.
        """
        if set(self.labels) != set(labels):
            raise HftuneError(
                f"the teacher {self.name} has other labels than {source}: it gives {len(self.labels)} "
                f"({listed(self.labels)}), the data have {len(labels)} ({listed(labels)})",
                hint="fine-tune a teacher on these labels (`hftune classify`), or write their names into id2label of "
                "the teacher's config.json if they mean the same",
            )
        return [self.labels.index(label) for label in labels]

    def refuse_other_inputs(self, source: str, *, pairs: bool) -> None:
        """Refuse a teacher of single texts for pairs, or of pairs for single texts; only hftune records that."""
        reads_pairs = self.checkpoint.metadata.get("pairs")
        if reads_pairs is not None and reads_pairs != pairs:
            names = {True: "pairs of texts", False: "single texts"}
            raise HftuneError(
                f"the teacher {self.name} was trained on {names[reads_pairs]}, and {source} has {names[pairs]}",
                hint="name a teacher that was trained on data of this form",
            )


def open_classifier(section: ModelSection) -> OpenedClassifier:
    """Find a teacher, and refuse what is not a sequence classifier."""
    try:
        checkpoint = open_checkpoint(section, TEACHER)
        if is_onnx(Path(checkpoint.location)):
            raise HftuneError(
                f"{checkpoint.name} is an ONNX export, whose weights can't be compared on resume",
                hint="name the run that it was exported from",
            )
        if checkpoint.is_adapter:
            known = tuple(checkpoint.metadata.get("labels") or ())
            architectures: list[str] = [] if known else ["an adapter of another tool"]
        else:
            config = checkpoint.config()
            known = tuple(str(config.id2label[place]) for place in sorted(config.id2label))
            architectures = config.architectures or []
    except HftuneError as error:
        raise of_the_teacher(error) from error
    if architectures and not any(name.endswith(HEAD) for name in architectures):
        raise HftuneError(
            f"the teacher {checkpoint.name} is no classifier ({architectures[0]}), so it has no labels to teach",
            hint=f"fine-tune it first: `hftune classify --model {checkpoint.name} --data FILE`; to learn the hidden "
            "states of an encoder from plain text, give --corpus and no --data",
        )
    return OpenedClassifier(checkpoint, known)


class ClassifierTeacher:
    """A loaded teacher, which gives its logits in the label order of the data."""

    def __init__(self, opened: OpenedClassifier, order: Sequence[int]) -> None:
        """Load the weights in fp32; torch's random state does not change."""
        self.name, self.order = opened.name, list(order)
        try:
            with torch.random.fork_rng():
                self.classifier = Classifier.load(opened.name, section=opened.checkpoint.section)
        except HftuneError as error:
            raise of_the_teacher(error) from error
        self.labels = tuple(self.classifier.labels[place] for place in order)
        self.classifier.model.eval().requires_grad_(False)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of everything that decides its logits and their order."""
        found = self.classifier
        return fingerprint_of(found.model, found.tokenizer, found.max_length, found.truncation, self.order)

    def logits(
        self, texts: Sequence[str], pairs: Sequence[str] | None, advance: Callable[[int], None] = lambda texts: None
    ) -> NDArray[np.float32]:
        """Logits [texts, labels]."""
        found: NDArray[np.float32] = self.classifier.logits(texts, pairs, advance=advance)[:, self.order]
        if not np.isfinite(found).all():
            raise HftuneError(
                f"the teacher {self.name} gives logits that are not finite", hint="check its weights, or choose another"
            )
        return found


def listed(labels: Sequence[str]) -> str:
    """Label names for a message."""
    more = f" … {len(labels):,} in all" if len(labels) > MOST_NAMES else ""
    return ", ".join(labels[:MOST_NAMES]) + more
