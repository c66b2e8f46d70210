"""Where a model can have met the name that a question asks about: in the text it was pretrained on, or in fine-tuning.

Called by the task that answers questions and by ``hftune.answering``. Texts and questions are found through the recipes
of the runs that the weights come from, and count only where they are still what these runs were trained on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hftune.config.data import CorpusData, QuestionData
from hftune.config.model import ModelSection
from hftune.config.recipe import Recipe
from hftune.config.section import expect
from hftune.config.task import ClmTask, SpanTask
from hftune.data.questions import load_questions
from hftune.data.stream import TextSplit, stream_corpus
from hftune.errors import HftuneError
from hftune.evaluation.knowledge import SEEN, name_in, names_in_text, question_template
from hftune.models.answerer import TASK
from hftune.models.checkpoint import locate
from hftune.models.facts import saved_facts
from hftune.runs.directory import RunDir, is_run
from hftune.runs.naming import public_name
from hftune.tasks.longest_cut import seen_parts
from hftune.tasks.span_corruption import SpanCorruption


@dataclass(frozen=True)
class Pretraining:
    """What the weights were trained on before they learned to answer."""

    about: str
    """In words: the corpus, "none", or why it is not known."""
    texts: Sequence[str] | None
    """The documents; none for weights that started fresh, None where they are not known."""


@dataclass(frozen=True)
class Finetuning:
    """What the weights were taught to answer, in one run or in several."""

    names: frozenset[str]
    """Names that the training questions ask about."""
    template: str | None = None
    """The form of the latest questions: {} where the name stands; None where they have none, or are not known."""
    missing: str | None = None
    """Why there may be other names, in words; None where these are all."""

    def asked(self, name: str) -> bool | None:
        """Whether a training question asks about a name; None where it is not known."""
        return True if name in self.names else None if self.missing else False


@dataclass(frozen=True)
class Seen:
    """What is known of the names that questions ask about."""

    template: str | None
    """The question with {} where the name stands; None where questions have no common form."""
    finetuning: Finetuning
    pretraining: Pretraining

    @classmethod
    def of(cls, model: ModelSection, data: QuestionData, trained: Sequence[str]) -> Seen:
        """For a run that is being trained: what it starts from, and its questions."""
        finetuning = _further(finetuning_of(model), data, trained, "this run")
        return cls(finetuning.template, finetuning, pretraining_of(model))

    @classmethod
    def behind(cls, model: ModelSection, asked: Sequence[str]) -> Seen:
        """For a model as it lies there; what it is asked shows the form of a question where its runs do not."""
        finetuning = finetuning_of(model)
        return cls(finetuning.template or question_template(asked), finetuning, pretraining_of(model))

    @property
    def notes(self) -> list[str]:
        """What can't be told, and why."""
        if self.template is None:
            return [
                "where the names stand in the questions is not known, because these do not begin or end alike: say it "
                "when a model is trained, with hftune finetune --set data.template='Where was {} born?'"
            ]
        found = []
        if self.finetuning.missing:
            found.append(f"which names were seen in fine-tuning is not wholly known: {self.finetuning.missing}")
        if self.pretraining.texts is None:
            found.append(f"which names were seen in pretraining is not known: {self.pretraining.about}")
        return found

    def where(self, questions: Sequence[str]) -> list[dict[str, bool | None]]:
        """For each question whether its name was seen in pretraining and in fine-tuning; None where it is not known."""
        names = [name_in(question, self.template) for question in questions]
        texts = self.pretraining.texts
        read = None if texts is None else names_in_text({name for name in names if name is not None}, texts)
        return [
            dict.fromkeys(SEEN)
            if name is None
            else dict(zip(SEEN, (None if read is None else name in read, self.finetuning.asked(name)), strict=True))
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
    run, name = run_of(model.model_name_or_path), public_name(model.model_name_or_path)
    if run is None:
        return Pretraining(f"{name} is not a run", None)
    recipe = run.read_recipe()
    before = pretraining_of(recipe.model)
    if isinstance(recipe.data, QuestionData) or before.texts is None:
        return before
    if not isinstance(recipe.task, SpanTask | ClmTask):
        return Pretraining(f"{name} was not trained on a corpus", None)
    try:
        texts, fingerprint = _text_of(recipe)
        if _changed(run, fingerprint):
            return Pretraining(f"the corpus of {name} has changed since it was read", None)
    except HftuneError as error:
        return Pretraining(f"the corpus of {name} can't be read ({error.message})", None)
    try:
        read = seen_parts(recipe, texts, run.model)
    except HftuneError as error:
        return Pretraining(f"how far {name} read is not known ({error.message})", None)
    about = public_name(recipe.data.dataset_name)
    return Pretraining(
        about if recipe.model.from_scratch else f"{before.about}, then {about}",
        (*before.texts, *read),
    )


def finetuning_of(model: ModelSection) -> Finetuning:
    """Follow the weights back through all runs that were taught to answer."""
    if model.from_scratch:
        return Finetuning(frozenset())
    run, name = run_of(model.model_name_or_path), public_name(model.model_name_or_path)
    if run is None:
        try:
            taught = saved_facts(locate(model.model_name_or_path), model.model_revision).get("task") == TASK
        except HftuneError as error:  # what a run began with may be gone, and the run is as good as before
            return Finetuning(frozenset(), missing=f"{name} can't be read ({error.message})")
        return Finetuning(frozenset(), missing=f"{name} is not a run" if taught else None)
    recipe = run.read_recipe()
    before = finetuning_of(recipe.model)
    if not isinstance(recipe.data, QuestionData):
        return before
    try:
        trained = load_questions(recipe.data).train
        if not _changed(run, trained.fingerprint()):
            return _further(before, recipe.data, trained.questions, name)
        missing = f"the training questions of {name} have changed since"
    except HftuneError as error:
        missing = f"the training questions of {name} can't be read ({error.message})"
    return Finetuning(before.names, recipe.data.template, missing)


def _further(before: Finetuning, data: QuestionData, trained: Iterable[str], name: str) -> Finetuning:
    """What came before and the questions of one more run; name is what a message calls it."""
    trained = list(trained)
    template = data.template or question_template(trained)
    if template is None:
        return Finetuning(before.names, None, f"where names stand in the questions of {name} can't be told")
    names = {found for question in trained if (found := name_in(question, template)) is not None}
    return Finetuning(before.names | names, template, before.missing)


def _text_of(recipe: Recipe) -> tuple[Sequence[str], str]:
    """The documents that a language model is trained on, and their fingerprint as its task has it."""
    if isinstance(recipe.task, SpanTask):
        data = SpanCorruption(recipe).load_data()
        return data.train, data.fingerprints["train"]
    corpus = stream_corpus(expect(recipe.data, CorpusData))
    return list(_documents(corpus.splits["train"])), corpus.facts["train"].fingerprint


def _documents(split: TextSplit) -> Iterable[str]:
    """Whole documents, of the pieces that they are read in."""
    held: list[str] = []
    for piece in split:
        held.append(piece.text)
        if piece.ends:
            yield "".join(held)
            held = []


def _changed(run: RunDir, fingerprint: str) -> bool:
    """Whether what a run was trained on is no longer what it was; a run that is not finished keeps no fingerprint."""
    kept = run.read_metrics().get("data", {}).get("fingerprints", {}) if run.metrics.is_file() else {}
    return bool(kept.get("train", fingerprint) != fingerprint)


def run_of(model: str) -> RunDir | None:
    """The run that a model belongs to, named by its own path or by that of its model folder."""
    path = Path(model)
    return next((RunDir(place) for place in (path, path.parent) if is_run(place)), None)
