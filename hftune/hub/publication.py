"""One run's dealings with the Hub, from before its first update to its last word. Used by ``hftune.pipeline``.

Asked for or not, the pipeline goes through the same four calls; where nothing is to be published they do nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from hftune.config.recipe import Recipe
from hftune.errors import HftuneError
from hftune.hub.attempt import Patience, require_token
from hftune.hub.best import PushEachBest
from hftune.hub.publish import PATIENCE, check_access, push
from hftune.hub.record import MAIN, whats_there
from hftune.runs.directory import RunDir
from hftune.training.launch import is_main_process
from hftune.training.progress import Listener

if TYPE_CHECKING:
    from hftune.pipeline import Job  # which imports this


class Publication:
    """Where a run is published, if anywhere; a context that ends with the run."""

    def __init__(self, recipe: Recipe, run: RunDir, listener: Listener, patience: Patience = PATIENCE) -> None:
        """Nothing is asked of the Hub yet."""
        self.section, self.run, self.listener, self.patience = recipe.hub, run, listener, patience
        self._trust = recipe.model.trust_in_saved
        self._asked = self.section.pushes and is_main_process()
        self._best: PushEachBest | None = None

    def __enter__(self) -> Publication:
        """A name that is not yours is better known before training than after."""
        if self._asked:
            repo = check_access(self.section, self.run.name, self.patience)
            self.section = self.section.model_copy(update={"hub_model_id": repo})
        return self

    def follow(self, job: Job, probe: Sequence[Mapping[str, Any]]) -> None:
        """Push each best checkpoint of a training that is about to begin, where that was asked for.

        Args:
            job: What is trained.
            probe: Rows as the model reads them; the card shows how the first is asked.
        """
        if self.section.hub_strategy != "best":
            return
        if job.trainer.sharding:
            raise HftuneError(
                "hub.hub_strategy best needs the whole model in one process, and this launch shards its weights",
                hint="leave --hub-strategy best out; the finished model is pushed with --push-to-hub",
            )
        if not self._asked:
            return
        assert self.section.hub_model_id is not None, "check_access has named it"
        self._best = PushEachBest(
            self.run,
            self.section,
            self.listener,
            job.trainer.clock,
            repo=self.section.hub_model_id,
            token=require_token(),
            patience=self.patience,
            save=lambda folder: job.task.save(job.applied.so_far(), job.tokenizer, job.data, folder),
            known=job.known,
            example=next(iter(probe), {}),
        )
        job.trainer.add_callback(self._best)

    def finish(self) -> None:
        """The run is complete: publish its model in place of whatever was there."""
        if self._asked:
            self._stop()
            self.listener.stage("publishing")
            push(
                self.run,
                self.section,
                self.listener,
                patience=self.patience,
                trust=self._trust,
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """A run that ends early says what of it is on the Hub."""
        followed = self._best is not None
        cut_short = self._stop()
        if error is not None and followed:
            may_be = f"; that of step {cut_short} was on its way and may have arrived" if cut_short is not None else ""
            there = whats_there(self.run, str(self.section.hub_model_id), self.section.hub_revision or MAIN)
            self.listener.note(f"{there}{may_be}")

    def _stop(self) -> int | None:
        """End the uploads beside training; the step of one that was under way."""
        best, self._best = self._best, None
        return None if best is None else best.close()
