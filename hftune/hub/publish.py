"""Publish a finished run on the Hugging Face Hub, download it again, and verify it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from hftune.errors import HftuneError, RunFailed
from hftune.files import read_json, sha256
from hftune.hub.card import fill_address, write_card
from hftune.hub.client import LOG_IN, MAIN, HubClient, RepoState, RetryPolicy, require_token
from hftune.hub.contents import CARD, MARK, published_files
from hftune.models.settings import NO_TRUST, Trust
from hftune.pipeline.verify import compare, fresh_outputs
from hftune.progress import ProgressReporter
from hftune.recipe import HubSection, read_recipe
from hftune.runs.directory import RunDir
from hftune.runs.schema import PushRecord, consistent

RETRY = RetryPolicy()
PROBE_ROWS = 8
# Inputs for the verification of a run without predictions: only the two outputs are compared, so any text will do.
PROBE_TEXTS = ("the food was great but we will never come back", "Where was it, and when?")
INPUT_COLUMNS = ("text", "text_pair")
"""Columns of predictions/*.jsonl that are inputs of the model."""


@dataclass(frozen=True)
class PublishedModel:
    """A model on the Hub that was downloaded again and verified."""

    repo: str
    revision: str
    commit: str
    url: str
    verified: bool = True

    def __str__(self) -> str:
        return f"published and verified: {self.url} (commit {self.commit[:10]})"


def describe_last_push(run: RunDir, repo: str, revision: str) -> str:
    """What the repository has of this run, according to the run."""
    known = run.read_published()
    if known is None or (known.repo, known.revision) != (repo, revision):
        return f"{repo} on the Hub has nothing of this run"
    where = f"{known.url} (commit {known.commit[:10]})"
    if known.step is None:
        return f"{where} holds the finished model"
    return f"{where} holds the best checkpoint of step {known.step}; its card marks the run as not finished"


def check_access(section: HubSection, run_name: str, retry: RetryPolicy = RETRY) -> str:
    """Check that a push to this repository would be accepted; changes nothing.

    Args:
        section: The repository and its settings.
        run_name: Name of the repository if the section has none.
        retry: How often and how long failing requests are repeated.

    Returns:
        The repository id with its owner.

    Raises:
        HftuneError: No token, a wrong one, a repository of somebody else or of something else, or no connection.
    """
    repo = _valid_repo_id(section, run_name)
    try:
        return _writable_repo(HubClient(require_token(), retry), section, repo)
    except RunFailed as error:
        # Nothing has started yet, so this is a bad request and not a failed run.
        raise HftuneError(error.message, hint="leave out --push-to-hub and publish later with `hftune push`") from None


def push(
    run: RunDir,
    section: HubSection,
    progress: ProgressReporter,
    *,
    retry: RetryPolicy = RETRY,
    trust: Trust = NO_TRUST,
) -> PublishedModel:
    """Publish a run's model, tokenizer and card, then download the commit and verify it.

    Args:
        run: A complete run.
        section: The repository and its settings; by default it is named after the run.
        progress: Receives the progress.
        retry: How often and how long failing requests are repeated.
        trust: Consent to code that the model needs when it is loaded again.

    Raises:
        HftuneError: The run, the repository, the token or the card is not acceptable.
        RunFailed: The Hub failed, or holds other files than were sent; the run itself is intact.
    """
    repo = _valid_repo_id(section, run.name)
    if not run.complete:
        raise HftuneError(
            f"the run {run.path} is not complete, so its model was not verified",
            hint=f"finish it first: --output {run.path} --resume",
        )
    if not (run.model / CARD).is_file():
        with consistent(run.path):
            write_card(run)
    files, skipped = published_files(run.model)
    client = HubClient(require_token(), retry)
    progress.stage("checking access to the Hub")
    repo = _writable_repo(client, section, repo)
    revision = section.hub_revision or MAIN
    if skipped:
        progress.note(f"not published: {', '.join(skipped)}")

    with tempfile.TemporaryDirectory(prefix="hftune-push-") as scratch:
        # The card in the run names no repository, because one run may be published in several places.
        card = Path(scratch) / CARD
        text = (run.model / CARD).read_text(encoding="utf-8")
        card.write_text(fill_address(text, repo, section.hub_revision), encoding="utf-8", newline="")
        files[CARD] = card
        size = sum(path.stat().st_size for path in files.values())
        progress.stage(f"uploading {len(files)} files ({size / 1e6:,.1f} MB) to {repo}")
        message = f"Publish {run.name} with hftune"
        try:
            commit = client.upload(
                repo, files, revision=revision, private=section.hub_private_repo, message=message
            ).oid
        except RunFailed as error:
            raise RunFailed(f"{error.message}; {describe_last_push(run, repo, revision)}", hint=error.hint) from error
        published = PublishedModel(repo, revision, commit, client.url(repo, revision))
        run.write_published(PushRecord(repo=repo, revision=revision, commit=commit, url=published.url))

        progress.stage("verifying the model on the Hub")
        verify_published(client, run, files, repo, commit, trust=trust)
    progress.note(str(published))
    return published


def verify_published(
    client: HubClient, run: RunDir, files: Mapping[str, Path], repo: str, commit: str, *, trust: Trust
) -> None:
    """Download a commit, and compare its files with those that were sent and the outputs of both models."""
    size = sum(path.stat().st_size for path in files.values())
    with tempfile.TemporaryDirectory(prefix="hftune-verify-") as cache:
        fetched = client.download(repo, commit, Path(cache), size)
        for name, path in files.items():
            if not (fetched / name).is_file() or sha256(fetched / name) != sha256(path):
                raise _differs(f"{name} on the Hub ({repo}, commit {commit[:10]})", "its content is different")
        try:
            got, expected = fresh_outputs(
                [fetched, run.model], read_recipe(run).task.kind, _probe_rows(run), trust=trust
            )
            compare(fetched, got, expected)
        except RunFailed as error:
            raise _differs(f"the model on the Hub ({repo}, commit {commit[:10]})", error.message) from error


def _differs(what: str, how: str) -> RunFailed:
    return RunFailed(f"{what} differs from what was sent: {how}", hint="push again; the run itself is intact")


def _probe_rows(run: RunDir) -> list[dict[str, Any]]:
    """Inputs for both models: the first rows that the run has predicted."""
    for split in ("validation", "test"):
        rows = run.read_predictions(split)[:PROBE_ROWS]
        if rows and "text" in rows[0]:  # those of plain text are losses alone
            return [{name: row[name] for name in INPUT_COLUMNS if name in row} for row in rows]
    pairs = read_json(run.model / MARK).get("pairs")
    return [{"text": text, "text_pair": text} if pairs else {"text": text} for text in PROBE_TEXTS]


def _writable_repo(client: HubClient, section: HubSection, repo: str) -> str:
    """The repository's id with its owner, if this account may publish there."""
    state = client.look_up(repo, section.hub_revision or MAIN)
    owner, name = state.repo.split("/")
    if owner not in state.namespaces:
        raise HftuneError(
            f"{state.repo} is not yours: the account of this token is {state.user}",
            hint=f"push to {state.user}/{name}, or {LOG_IN} for {owner}",
        )
    if state.role == "read":
        raise HftuneError("the Hub token may only read, not write", hint=LOG_IN)
    if state.private is not None:
        _check_existing(state, section)
    return state.repo


def _check_existing(state: RepoState, section: HubSection) -> None:
    models = [name for name in state.files if name.endswith((".safetensors", ".bin", ".gguf", "config.json"))]
    if models and MARK not in state.files:
        raise HftuneError(
            f"{state.repo} holds a model that hftune did not publish ({', '.join(models[:3])})",
            hint="choose another name, or publish it on a branch with --hub-revision",
        )
    if section.hub_private_repo and not state.private:
        raise HftuneError(
            f"a private repository was requested, but {state.repo} exists and is public",
            hint="make it private in its settings on the Hub, choose another name, or leave out --hub-private-repo",
        )


def _valid_repo_id(section: HubSection, run_name: str) -> str:
    repo = run_name if section.hub_model_id is None else section.hub_model_id
    hint = "a repository is USER/NAME: letters, digits, - _ and ., such as jane/reviews-tinybert"
    if repo.count("/") > 1:
        raise HftuneError(f"expected a repository USER/NAME, got {repo!r}", hint=hint)
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise HftuneError(f"{repo!r} is not a valid repository name: {error}", hint=hint) from error
    return repo
