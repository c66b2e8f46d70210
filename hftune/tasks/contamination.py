"""Whether a model has seen the name that a question asks about: in pretraining, or in fine-tuning.

The texts and questions are found through the recipes of the runs that the weights come from, and count only if they are
still what those runs were trained on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hftune.config.section import expect
from hftune.data.corpus import stream_corpus
from hftune.data.questions import load_questions
from hftune.data.settings import CorpusData, DataSection, QuestionData
from hftune.errors import HftuneError
from hftune.evaluation.knowledge import SEEN, name_in, names_in_text, question_template
from hftune.models.hub_files import ModelFiles, load_metadata, locate
from hftune.models.load import load_config, load_tokenizer
from hftune.models.qa import TASK
from hftune.models.settings import NO_TRUST, ModelSection
from hftune.runs.directory import RunDir, public_name
from hftune.tasks.corruption import Corruption, encoded
from hftune.tasks.settings import ClmTask, SpanTask, TaskSection, TaskSettings
from hftune.tasks.span_corruption import load_documents
from hftune.tasks.task import run_of


@dataclass(frozen=True)
class Contamination:
    """Training data of a model, over all runs that its weights come from; empty for random weights."""

    corpus: str = "none"
    """Names of the corpora of pretraining, or why its text is not known."""
    texts: tuple[str, ...] | None = ()
    """The documents of pretraining, as far as training saw them; None if they are not known."""
    names: frozenset[str] = frozenset()
    """Names that the questions of fine-tuning ask about."""
    missing: str | None = None
    """Why there may be other names; None if these are all."""
    template: str | None = None
    """The form of the latest questions, with {} for the name; None if they have none, or are not known."""

    def with_questions(self, data: QuestionData, questions: Iterable[str], run: str) -> Contamination:
        """Add the data of one more fine-tuning run."""
        questions = list(questions)
        template = data.template or question_template(questions)
        if template is None:
            missing = f"the questions of {run} have no common form that shows the names"
            return replace(self, missing=missing, template=None)
        names = {found for question in questions if (found := name_in(question, template)) is not None}
        return replace(self, names=self.names | names, template=template)

    @property
    def notes(self) -> list[str]:
        """What is unknown, and why."""
        if self.template is None:
            return [
                "which part of a question is the name is not known, because the questions do not begin or end alike: "
                "set it when the model is trained, with `hftune finetune --set data.template='Where was {} born?'`"
            ]
        found = []
        if self.missing:
            found.append(f"not all names seen in fine-tuning are known: {self.missing}")
        if self.texts is None:
            found.append(f"which names were seen in pretraining is not known: {self.corpus}")
        return found

    def where(self, questions: Sequence[str]) -> list[dict[str, bool | None]]:
        """For each question whether its name was seen in pretraining and in fine-tuning; None if it is not known."""
        names = [name_in(question, self.template) for question in questions]
        read = None if self.texts is None else names_in_text({name for name in names if name is not None}, self.texts)

        def seen(name: str | None) -> tuple[bool | None, bool | None]:
            if name is None:
                return None, None
            asked = True if name in self.names else None if self.missing else False
            return None if read is None else name in read, asked

        return [dict(zip(SEEN, seen(name), strict=True)) for name in names]

    def as_dict(self) -> dict[str, Any]:
        """As it is written to metrics.json."""
        documents = None if self.texts is None else len(self.texts)
        return {"corpus": self.corpus, "documents": documents, "template": self.template}


def contamination_of(model: ModelSection, asked: Sequence[str] = ()) -> Contamination:
    """Follow the recipes of all runs that the weights of a model come from.

    Args:
        model: A run, any other model, or one from scratch.
        asked: Questions from which the template is recognized if the runs have none.
    """
    seen = _seen_by(model)
    return seen if seen.template else replace(seen, template=question_template(asked))


def _seen_by(model: ModelSection) -> Contamination:
    if model.from_scratch:
        return Contamination()
    run, name = run_of(model.model_name_or_path), public_name(model.model_name_or_path)
    if run is None:
        missing = _why_names_are_missing(model, name)
        return Contamination(f"{name} is not a run", texts=None, missing=missing)
    task, data = run.read_section("task", TaskSection), run.read_section("data", DataSection)
    parent = run.read_section("model", ModelSection)
    before = _seen_by(parent)
    # Fine-tuning adds names, pretraining adds text. What is unknown of an earlier run stays unknown: a later one
    # can't show that a name was not there.
    if isinstance(data, QuestionData):
        return _finetuned(before, run, name, data)
    if before.texts is None:
        return before
    if not isinstance(task, SpanTask | ClmTask):
        return replace(before, corpus=f"{name} was not trained on a corpus", texts=None)
    try:
        texts, fingerprint = _documents_of(task, expect(data, CorpusData))
        if _changed(run, fingerprint):
            return replace(before, corpus=f"the corpus of {name} has changed since", texts=None)
        texts = seen_parts(task, parent, texts, run.model)
    except HftuneError as error:
        return replace(before, corpus=f"the corpus of {name} can't be read ({error.message})", texts=None)
    corpus = public_name(data.dataset_name)
    if not parent.from_scratch:
        corpus = f"{before.corpus}, then {corpus}"
    return replace(before, corpus=corpus, texts=(*before.texts, *texts))


def _finetuned(before: Contamination, run: RunDir, name: str, data: QuestionData) -> Contamination:
    try:
        trained = load_questions(data).train
        if not _changed(run, trained.fingerprint()):
            return before.with_questions(data, trained.questions, name)
        missing = f"the training questions of {name} have changed since"
    except HftuneError as error:
        missing = f"the training questions of {name} can't be read ({error.message})"
    return replace(before, missing=missing, template=data.template)


def _why_names_are_missing(model: ModelSection, name: str) -> str | None:
    try:
        files = ModelFiles(locate(model.model_name_or_path), model.model_revision)
        answers = load_metadata(files).get("task") == TASK
    except HftuneError as error:  # the model that a run started from may be missing: the run works without it
        return f"{name} can't be read ({error.message})"
    return f"{name} is not a run" if answers else None


def seen_parts(
    task: TaskSettings, model: ModelSection, texts: Sequence[str], saved: Path | None = None
) -> Sequence[str]:
    """The part of each document that training can see: span corruption may truncate it.

    ``saved`` is the trained model, which has the tokenizer; without it the tokenizer is trained again.
    """
    if not isinstance(task, SpanTask) or task.crop == "random":
        return texts
    # The consent in the run's recipe is not that of the user who reads the run now.
    model = model.model_copy(update={**NO_TRUST})
    if model.from_scratch and model.tokenizer_name is None and saved is not None and saved.is_dir():
        model = model.model_copy(update={"tokenizer_name": str(saved)})
    tokenizer = load_tokenizer(model, texts)
    if not tokenizer.is_fast:
        raise HftuneError(
            f"the tokenizer of {model.model_name_or_path} gives no offsets of its tokens",
            hint="use a checkpoint that has a fast tokenizer",
        )
    longest = Corruption.of(task, int(load_config(model, tokenizer).max_position_embeddings)).longest
    return [
        text if len(places) <= longest else text[: places[longest - 1][1]]
        for part, batch in encoded(texts, tokenizer, return_offsets_mapping=True)
        for text, places in zip(part, batch["offset_mapping"], strict=True)
    ]


def _documents_of(task: TaskSettings, data: CorpusData) -> tuple[Sequence[str], str]:
    """The documents that a language model is trained on, and their fingerprint in metrics.json."""
    if isinstance(task, SpanTask):
        documents = load_documents(task, data)
        return documents.train, documents.fingerprints["train"]
    corpus = stream_corpus(data)
    return [text for text, _ in corpus.named["train"].documents()], corpus.facts["train"].fingerprint


def _changed(run: RunDir, fingerprint: str) -> bool:
    """Whether the training data differ from what a run was trained on; an unfinished run has no fingerprint."""
    known = run.read_metrics().get("data", {}).get("fingerprints", {}) if run.metrics.is_file() else {}
    return bool(known.get("train", fingerprint) != fingerprint)
