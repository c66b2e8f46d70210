"""Where a model can have met the name that a question asks about: in the text it was pretrained on, or in fine-tuning.

Called by the task that answers questions and by ``hftune.answering``. The text is found through the recipe of the run
that the weights come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hftune.config.data import CorpusData, QuestionData
from hftune.config.model import ModelSection
from hftune.data import load_texts
from hftune.errors import HftuneError
from hftune.evaluation.knowledge import SEEN, name_in, names_in_text, question_template
from hftune.runs.directory import RunDir, is_run
from hftune.runs.naming import public_name
from hftune.tasks.longest_cut import seen_parts


@dataclass(frozen=True)
class Pretraining:
    """What the weights were trained on before they learned to answer."""

    about: str
    """In words: the corpus, "none", or why it is not known."""
    texts: Sequence[str] | None
    """The documents; none for weights that started fresh, None where they are not known."""


@dataclass(frozen=True)
class Seen:
    """What is known of the names that questions ask about."""

    template: str | None
    """The question with {} where the name stands; None where questions have no common form."""
    trained: frozenset[str]
    """Names that the questions of fine-tuning ask about."""
    pretraining: Pretraining

    @classmethod
    def of(cls, model: ModelSection, data: QuestionData, trained: Sequence[str]) -> Seen:
        """For a model, and the questions that it was fine-tuned on."""
        template = data.template or question_template(trained)
        names = frozenset(name for question in trained if (name := name_in(question, template)) is not None)
        return cls(template, names, pretraining_of(model))

    @property
    def notes(self) -> list[str]:
        """What can't be told, and why."""
        found = []
        if self.template is None:
            found.append("where the names stand in the questions is not known: set data.template to show it")
        if self.pretraining.texts is None:
            found.append(f"which names were seen in pretraining is not known: {self.pretraining.about}")
        return found

    def where(self, questions: Sequence[str]) -> list[dict[str, bool | None]]:
        """For each question whether its name was seen in pretraining and in fine-tuning; None where it is not known."""
        names = [name_in(question, self.template) for question in questions]
        texts = self.pretraining.texts
        read = None if texts is None else names_in_text({name for name in names if name is not None}, texts)
        return [
            dict(
                zip(
                    SEEN,
                    (None if name is None or read is None else name in read, _known(name, self.trained)),
                    strict=True,
                )
            )
            for name in names
        ]

    def as_dict(self) -> dict[str, Any]:
        """As it stands in metrics.json."""
        texts = self.pretraining.texts
        return {
            "corpus": self.pretraining.about,
            "documents": None if texts is None else len(texts),
            "template": self.template,
        }


def pretraining_of(model: ModelSection) -> Pretraining:
    """Follow the weights back through all runs that read a corpus."""
    if model.from_scratch:
        return Pretraining("none", ())
    path = Path(model.name)
    path = path if is_run(path) else path.parent
    if not is_run(path):
        return Pretraining(f"{public_name(model.name)} is not a run", None)
    recipe = RunDir.open(path).read_recipe()
    before = pretraining_of(recipe.model)
    if isinstance(recipe.data, QuestionData) or before.texts is None:
        return before
    if not isinstance(recipe.data, CorpusData):
        return Pretraining(f"{public_name(model.name)} was not trained on a corpus", None)
    try:
        corpus = load_texts(recipe.data, drop_short=True)
    except HftuneError as error:
        return Pretraining(f"the corpus of {public_name(model.name)} can't be read ({error.message})", None)
    try:
        read = seen_parts(recipe, corpus.train)
    except HftuneError as error:
        return Pretraining(f"how far {public_name(model.name)} read is not known ({error.message})", None)
    about = public_name(recipe.data.name)
    return Pretraining(
        about if recipe.model.from_scratch else f"{before.about}, then {about}",
        (*before.texts, *read),
    )


def _known(name: str | None, names: frozenset[str]) -> bool | None:
    return None if name is None else name in names
