"""What a training run publishes: its best checkpoints while it trains, and the finished model.

Best checkpoints are uploaded by a background thread, one at a time. A failure there is reported as a warning and never
ends the run; the next best checkpoint is tried again.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hftune.errors import HftuneError
from hftune.files import read_json, write_text
from hftune.hub.card import fill_address, render_card
from hftune.hub.client import MAIN, Cancelled, HubClient, RetryPolicy, require_token
from hftune.hub.contents import CARD, MARK, published_files
from hftune.hub.publish import RETRY, check_access, describe_last_push, push
from hftune.progress import ProgressReporter
from hftune.recipe import HubSection, Recipe, read_recipe
from hftune.runs.directory import RunDir
from hftune.runs.formatting import number, score_name
from hftune.runs.schema import PushRecord
from hftune.training.callbacks import scores
from hftune.training.launch import is_main_process

if TYPE_CHECKING:
    from hftune.pipeline.train import TrainingJob  # whose caller imports this module

STAGING = ".hub"  # folder in the run directory for models that wait for their upload; removed when training ends


class Publication(TrainerCallback):  # type: ignore[misc]
    """Publishes a run as its ``hub`` section requests: a context around training.

    With hub_strategy ``best`` it is also a callback of the trainer, which saves the model for the Hub whenever a
    checkpoint is the best so far, and queues its upload.
    """

    def __init__(self, recipe: Recipe, run: RunDir, progress: ProgressReporter, retry: RetryPolicy = RETRY) -> None:
        self.recipe, self.section, self.run, self.progress, self.retry = recipe, recipe.hub, run, progress, retry
        self.staging = run.path / STAGING
        self.uploads: UploadQueue | None = None
        self.scores: dict[str, float] = {}
        self.last_step = 0

    def __enter__(self) -> Publication:
        """Check token and repository before hours of training, not after."""
        if is_main_process():
            repo = check_access(self.section, self.run.name, self.retry)
            self.section = self.section.model_copy(update={"hub_model_id": repo})
        return self

    def follow(self, job: TrainingJob, probe: Sequence[Mapping[str, Any]]) -> None:
        """Publish the best checkpoints of a training run that is about to start, if hub_strategy is ``best``.

        Args:
            job: What is trained.
            probe: Examples as the model reads them; the card's code uses the first.
        """
        if self.section.hub_strategy != "best":
            return
        if job.trainer.sharding:
            raise HftuneError(
                "hub.hub_strategy best needs the whole model in one process, and this launch shards its weights",
                hint="leave --hub-strategy best out; the finished model is pushed with --push-to-hub",
            )
        if is_main_process():
            self.job, self.example = job, next(iter(probe), {})
            shutil.rmtree(self.staging, ignore_errors=True)  # left by a run that was killed
            self.uploads = UploadQueue(self.run, self.section, HubClient(require_token(), self.retry))
            job.trainer.add_callback(self)

    def finish(self) -> None:
        """Publish the model of the complete run in place of the best checkpoint."""
        if is_main_process():
            self._stop()
            self.progress.stage("publishing")
            push(self.run, self.section, self.progress, retry=self.retry, trust=self.recipe.model.trust_in_saved)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Report what is on the Hub if the run ends early."""
        if self.uploads is None:
            return
        cancelled = self._stop()
        if error is not None:
            maybe = f"; the upload of step {cancelled.step} was cancelled and may have arrived" if cancelled else ""
            there = describe_last_push(self.run, str(self.section.hub_model_id), self.section.hub_revision or MAIN)
            self.progress.note(f"{there}{maybe}")

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
        """Stage the model if the checkpoint that was just saved is the best so far."""
        step: int = state.global_step
        if step != state.best_global_step or step == self.last_step:
            return
        self.last_step = step
        before = time.perf_counter()
        folder = self.staging / f"step-{step}"
        try:
            staged = self._stage(folder, state, args.metric_for_best_model)
        except Exception as error:  # a full disk, for example, must not end the training run
            shutil.rmtree(folder, ignore_errors=True)
            reason = (str(error) or type(error).__name__).splitlines()[0]
            self.progress.warn(f"could not prepare the best checkpoint of step {step} for the Hub: {reason}")
            return
        finally:
            self.job.trainer.clock.other_seconds += time.perf_counter() - before
        assert self.uploads is not None, "the queue is there as long as the trainer has this callback"
        self.uploads.offer(staged)
        self.report()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Report finished uploads."""
        self.report()

    def report(self) -> None:
        """Pass on what the uploads reported, from the thread that trains."""
        for text, is_warning in self.uploads.messages() if self.uploads else ():
            (self.progress.warn if is_warning else self.progress.note)(text)

    def _stop(self) -> Staged | None:
        """Cancel the uploads and remove the staged models; the one whose upload was cancelled."""
        if self.uploads is None:
            return None
        cancelled = self.uploads.close()
        self.report()
        self.uploads = None
        shutil.rmtree(self.staging, ignore_errors=True)
        return cancelled

    def _stage(self, folder: Path, state: TrainerState, metric: str) -> Staged:
        """Save the model as it would be published now, with a card that marks it as not finished."""
        step, score = state.global_step, float(state.best_metric)
        job = self.job
        job.task.save(job.applied.so_far(), job.tokenizer, job.data, folder)
        selection = {"metric": metric, "step": step, "score": score}
        metrics = {**job.known, "splits": {"validation": self.scores}, "selection": selection}
        labels = read_json(folder / MARK).get("labels")
        if labels:
            metrics["labels"] = labels
        unfinished = (
            f"This is the best checkpoint so far of a run that is still training: step {step:,} of "
            f"{state.max_steps:,}, selected on validation. A better one, and at the end the finished model, will "
            "replace it. It was not scored on test, and not reloaded and verified."
        )
        card = render_card(self.run.name, read_recipe(self.run), metrics, folder, self.example, unfinished)
        write_text(folder / CARD, fill_address(card, str(self.section.hub_model_id), self.section.hub_revision))
        title = f"the best checkpoint so far (step {step}, validation {score_name(metric)} {number(score)})"
        return Staged(step, folder, title)


@dataclass(frozen=True)
class Staged:
    """A model that is ready to be uploaded."""

    step: int
    folder: Path
    title: str
    """Its name in messages."""


class UploadQueue:
    """Uploads staged models in a background thread, one at a time; of those that wait only the newest is kept."""

    def __init__(self, run: RunDir, section: HubSection, client: HubClient) -> None:
        self.run, self.section = run, section
        self._client = replace(client, report=self._note, sleep=self._sleep, is_cancelled=lambda: self._closed)
        self._changed = threading.Condition()
        self._next: Staged | None = None
        self._current: Staged | None = None
        self._closed = False
        self._messages: SimpleQueue[tuple[str, bool]] = SimpleQueue()
        # A daemon, because an upload that hangs must not keep the process from ending.
        threading.Thread(target=self._work, name="hftune-uploads", daemon=True).start()

    # ---- called by the thread that trains ----

    def offer(self, staged: Staged) -> None:
        """Upload this model next, in place of one that still waits."""
        with self._changed:
            replaced, self._next = self._next, staged
            self._changed.notify_all()
        if replaced is not None:
            self._skipped(replaced)

    def messages(self) -> list[tuple[str, bool]]:
        """Messages since the last call, and whether each is a warning."""
        found = []
        while True:
            try:
                found.append(self._messages.get_nowait())
            except Empty:
                return found

    def is_idle(self) -> bool:
        """Whether no model waits or is being uploaded."""
        with self._changed:
            return self._next is None and self._current is None

    def close(self) -> Staged | None:
        """Stop; the model whose upload was cancelled, if any. It may still arrive, but never after a later commit."""
        with self._changed:
            cancelled = self._current
            self._closed = True
            self._changed.notify_all()
        return cancelled

    # ---- called by the background thread ----

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._next is not None)
                if self._closed:
                    return
                staged, self._next = self._next, None
                self._current = staged
            assert staged is not None, "wait_for returned because there is one"
            try:
                self._upload(staged)
            except Cancelled:
                if not self._closed:
                    self._skipped(staged)
            except Exception as error:  # no failure of an upload may reach training
                reason = error.message if isinstance(error, HftuneError) else f"{type(error).__name__}: {error}"
                self._warn(f"{staged.title} was not uploaded: {reason}; training continues")
            finally:
                shutil.rmtree(staged.folder, ignore_errors=True)
                with self._changed:
                    self._current = None

    def _upload(self, staged: Staged) -> None:
        files, _ = published_files(staged.folder)
        repo, revision = str(self.section.hub_model_id), self.section.hub_revision or MAIN
        message = f"Best checkpoint so far of {self.run.name}: step {staged.step}, not finished"
        private = self.section.hub_private_repo
        commit = self._client.upload(repo, files, revision=revision, private=private, message=message).oid
        url = self._client.url(repo, revision)
        with self._changed:
            if self._closed:
                raise Cancelled  # hub.json may name a later push by now
            self.run.write_published(PushRecord(repo=repo, revision=revision, commit=commit, url=url, step=staged.step))
        self._note(f"uploaded {staged.title}: {url} (commit {commit[:10]})")

    def _sleep(self, seconds: float) -> None:
        """Wait before the next attempt, unless a newer model arrives."""
        with self._changed:
            if self._changed.wait_for(lambda: self._closed or self._next is not None, timeout=seconds):
                raise Cancelled

    def _skipped(self, staged: Staged) -> None:
        shutil.rmtree(staged.folder, ignore_errors=True)
        self._note(f"{staged.title} was not uploaded: a newer one replaced it")

    def _note(self, text: str) -> None:
        self._messages.put((text, False))

    def _warn(self, text: str) -> None:
        self._messages.put((text, True))
