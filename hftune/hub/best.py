"""Each best checkpoint to the Hub while training goes on: staged when it is saved, uploaded beside training.

``hftune.hub.publication`` adds ``PushEachBest`` to the trainer. A failure is told and changes nothing else: the run
goes on, and the next best checkpoint is tried again.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hftune.config.hub import HubSection
from hftune.files import read_json, write_text
from hftune.hub.attempt import Foreground, Patience, insist
from hftune.hub.background import NewestFirst, Staged
from hftune.hub.card import Subject, compose, fill_address
from hftune.hub.contents import CARD, MARK, published_files
from hftune.hub.record import MAIN, Record
from hftune.runs.directory import RunDir
from hftune.runs.wording import number, score_name
from hftune.training.callbacks import Clock, scores
from hftune.training.progress import Listener

STAGING = ".hub"
"""Folder of what waits to be uploaded, below the run directory; gone when training is over."""


class PushEachBest(TrainerCallback):  # type: ignore[misc]
    """Stages the model whenever the checkpoint just saved is the best so far, and has it uploaded."""

    def __init__(
        self,
        run: RunDir,
        section: HubSection,
        listener: Listener,
        clock: Clock,
        *,
        repo: str,
        token: str,
        patience: Patience,
        save: Callable[[Path], None],
        known: Mapping[str, Any],
        example: Mapping[str, Any],
    ) -> None:
        """Nothing happens before the first evaluation.

        Args:
            run: The run; its recipe is written.
            section: Where to.
            listener: Who watches.
            clock: Keeps the time of staging apart from training's.
            repo: The repository, checked.
            token: Whose name it is done in.
            patience: How often and how long failures of the Hub are borne.
            save: Writes the publishable model into a folder, and leaves the one in memory as it was.
            known: What metrics.json will hold and is known already.
            example: A row as the model reads it.
        """
        self.run, self.section, self.listener, self.clock = run, section, listener, clock
        self.repo, self.token, self.patience = repo, token, patience
        self.save, self.known, self.example = save, known, example
        self.scores: dict[str, float] = {}
        self.last = 0
        self.staging = run.path / STAGING
        shutil.rmtree(self.staging, ignore_errors=True)  # what a killed run left
        self.uploads = NewestFirst(self._upload)

    # ---- along the way ----

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, float] | None = None,
        **_: Any,
    ) -> None:
        """Keep the scores for the card."""
        self.scores = scores(metrics or {})

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """A checkpoint is in its place: stage the model if it is the best so far."""
        step: int = state.global_step
        if step != state.best_global_step or step == self.last:
            return
        self.last = step
        before = time.perf_counter()
        folder = self.staging / f"step-{step}"
        try:
            staged = self._stage(folder, state, args.metric_for_best_model)
        except Exception as error:  # a full disk must not end the training that a push belongs to
            shutil.rmtree(folder, ignore_errors=True)
            reason = (str(error) or type(error).__name__).splitlines()[0]
            self.listener.warn(f"the best checkpoint of step {step} could not be made ready for the Hub: {reason}")
            return
        finally:
            self.clock.aside += time.perf_counter() - before
        replaced = self.uploads.offer(staged)
        if replaced is not None:
            shutil.rmtree(replaced.folder, ignore_errors=True)
            self.listener.note(f"{replaced.title} was passed over on the Hub: a newer one is there")
        self.tell()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Tell what has become of the uploads."""
        self.tell()

    def tell(self) -> None:
        """Say what there is to say, from the thread that trains."""
        for word in self.uploads.words():
            (self.listener.warn if word.loud else self.listener.note)(word.text)

    def close(self) -> int | None:
        """Call off what is under way, and leave nothing behind; the step whose upload was cut short, if one was."""
        cut_short = self.uploads.close()
        self.tell()
        shutil.rmtree(self.staging, ignore_errors=True)
        return None if cut_short is None else cut_short.step

    # ---- one checkpoint ----

    def _stage(self, folder: Path, state: TrainerState, metric: str) -> Staged:
        """The model as it would be published now, with a card that says that the run is not finished."""
        step, score = state.global_step, float(state.best_metric)
        self.save(folder)
        selection = {"metric": metric, "step": step, "score": score}
        facts = read_json(folder / MARK)
        metrics = {**self.known, "splits": {"validation": self.scores}, "selection": selection}
        if facts.get("labels"):
            metrics["labels"] = facts["labels"]
        unfinished = (
            f"This is the best checkpoint so far of a run that is still training: update {step:,} of "
            f"{state.max_steps:,}, chosen on validation. A better one will take its place, and at the end the "
            "finished model. "
            "It was not scored on test, and not loaded again for comparison."
        )
        subject = Subject(self.run.name, self.run.read_recipe(), metrics, folder, self.example)
        text = fill_address(compose(subject, unfinished), self.repo, self.section.hub_revision)
        write_text(folder / CARD, text)
        title = f"the best checkpoint so far (step {step}, validation {score_name(metric)} {number(score)})"
        return Staged(step, folder, title)

    def _upload(self, staged: Staged, manner: Foreground) -> str:
        """Bring it there; runs in the thread of uploads."""
        try:
            files, _ = published_files(staged.folder)
            revision = self.section.hub_revision or MAIN
            request = {
                "repo": self.repo,
                "revision": revision,
                "private": self.section.hub_private_repo,
                "files": {name: str(path.resolve()) for name, path in files.items()},
                "message": f"Best checkpoint so far of {self.run.name}: step {staged.step}, not finished",
                "beside": True,
            }
            size = sum(path.stat().st_size for path in files.values())
            made = insist("upload", request, self.token, self.patience, size=size, manner=manner)
            Record(self.repo, revision, made["commit"], made["url"], step=staged.step).keep(self.run)
            return f"{staged.title} is on the Hub: {made['url']} (commit {made['commit'][:10]})"
        finally:
            shutil.rmtree(staged.folder, ignore_errors=True)
