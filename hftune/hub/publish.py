"""A finished run to the Hugging Face Hub: what is published, where to, and the proof that it arrived.

``hftune push`` and ``hftune.hub.publication`` (``--hub-model-id``) call ``push``; the latter calls ``check_access``
before training, so that a wrong token or name is told before hours of work and not after.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils._validators import validate_repo_id

from hftune.config.hub import HubSection
from hftune.config.model import NO_TRUST, Trust
from hftune.errors import HftuneError, RunFailed
from hftune.hub.attempt import LOG_IN, Patience, insist, require_token
from hftune.hub.card import fill_address, write_card
from hftune.hub.contents import CARD, MARK, published_files
from hftune.hub.proof import prove
from hftune.hub.record import MAIN, Record, whats_there
from hftune.runs.directory import RunDir
from hftune.runs.foreign import fitting

if TYPE_CHECKING:
    from hftune.training.progress import Listener  # its package brings torch, which is not needed here

PATIENCE = Patience()


@dataclass(frozen=True)
class Published:
    """What is on the Hub now."""

    repo: str
    revision: str
    commit: str
    url: str
    verified: bool = True
    """The model was loaded from there and said the same as the local one; what does not is no ``Published``."""

    def __str__(self) -> str:
        """One line for whoever watches."""
        return f"{self.url} (commit {self.commit[:10]}) holds the model: loaded from there and checked"


def check_access(section: HubSection, run_name: str, patience: Patience = PATIENCE) -> str:
    """Check that a push to this place would be accepted; changes nothing.

    Args:
        section: Where to.
        run_name: Name of the repository where the section gives none.
        patience: How failures of the Hub are retried.

    Returns:
        The id of the repository, with its owner.

    Raises:
        HftuneError: No token, a wrong one, a name that is not yours or is taken by something else, or no Hub.
    """
    try:
        return _check(section, run_name, require_token(), patience)
    except RunFailed as error:
        # Nothing has begun yet: this is a request that can't be carried out, not a run that failed.
        raise HftuneError(error.message, hint="leave --push-to-hub out, and publish later with `hftune push`") from None


def push(
    run: RunDir,
    section: HubSection,
    listener: Listener,
    *,
    patience: Patience = PATIENCE,
    trust: Trust = NO_TRUST,
) -> Published:
    """Publish a run's model, tokenizer and card, then load it from there and compare.

    Args:
        run: A run that is complete.
        section: Where to; the repository is named after the run where it gives none.
        listener: Who watches.
        patience: How often and how long failures of the Hub are borne.
        trust: Whose code may run when the model is loaded again.

    Raises:
        HftuneError: The run, the name, the token or the card won't do.
        RunFailed: The Hub failed, or holds something else than was sent; the run itself is intact.
    """
    if not run.complete:
        raise HftuneError(
            f"the run {run.path} is not complete, so its model was never checked",
            hint=f"finish it first: --output {run.path} --resume",
        )
    if not (run.model / CARD).is_file():
        with fitting(run.path):
            write_card(run)
    files, left_out = published_files(run.model)
    token = require_token()
    listener.stage("checking access to the Hub")
    repo = _check(section, run.name, token, patience)
    revision = section.hub_revision or MAIN
    if left_out:
        listener.note(f"not published: {', '.join(left_out)}")

    with tempfile.TemporaryDirectory(prefix="hftune-push-") as scratch:
        # The card in the run names no repository: one run may be published in several places.
        card = Path(scratch) / CARD
        text = (run.model / CARD).read_text(encoding="utf-8")
        card.write_text(fill_address(text, repo, section.hub_revision), encoding="utf-8", newline="")
        files[CARD] = card
        size = sum(path.stat().st_size for path in files.values())
        listener.stage(f"uploading {len(files)} files ({size / 1e6:,.1f} MB) to {repo}")
        request = {
            "repo": repo,
            "revision": revision,
            "private": section.hub_private_repo,
            "files": {name: str(path.resolve()) for name, path in files.items()},
            "message": f"Publish {run.name} with hftune",
        }
        try:
            made = insist("upload", request, token, patience, size=size)
        except RunFailed as error:
            raise RunFailed(f"{error.message}; {whats_there(run, repo, revision)}", hint=error.hint) from error
        Record(repo, revision, made["commit"], made["url"]).keep(run)

        listener.stage("loading it from the Hub")
        prove(run, files, repo, made["commit"], token, patience, trust=trust)
    published = Published(repo, revision, made["commit"], made["url"])
    listener.note(str(published))
    return published


def _check(section: HubSection, run_name: str, token: str, patience: Patience) -> str:
    """The repository's id, if this account may publish there."""
    request = {"repo": _repo_id(section, run_name), "revision": section.hub_revision or MAIN}
    found = insist("check", request, token, patience)
    repo: str = found["repo"]
    namespace = repo.split("/")[0]
    if namespace not in found["namespaces"]:
        raise HftuneError(
            f"{repo} is not yours: you are {found['user']} on the Hub",
            hint=f"push to {found['user']}/{repo.split('/')[1]}, or {LOG_IN} for {namespace}",
        )
    if found["role"] == "read":
        raise HftuneError("your Hub token may read but not write", hint=LOG_IN)
    if found["exists"]:
        _check_existing(repo, section, found)
    return repo


def _check_existing(repo: str, section: HubSection, found: dict[str, Any]) -> None:
    foreign = [name for name in found["files"] if name.endswith((".safetensors", ".bin", ".gguf", "config.json"))]
    if foreign and MARK not in found["files"]:
        raise HftuneError(
            f"the name {repo} is taken by a model that hftune did not publish ({', '.join(foreign[:3])})",
            hint="take another name, or put it on a branch of its own with --hub-revision",
        )
    if section.hub_private_repo and not found["private"]:
        raise HftuneError(
            f"a private repository was asked for, but {repo} exists already and is public",
            hint="make it private in its settings on the Hub, take another name, or leave --hub-private-repo out",
        )


def _repo_id(section: HubSection, run_name: str) -> str:
    """The repository as it is named; without an owner it is one of this account."""
    repo = run_name if section.hub_model_id is None else section.hub_model_id
    hint = "write --hub-model-id USER/NAME: letters, digits, - _ and ., such as jane/reviews-tinybert"
    if repo.count("/") > 1:
        raise HftuneError(f"a repository is USER/NAME, got {repo!r}", hint=hint)
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise HftuneError(f"{repo!r} is no name for a repository: {error}", hint=hint) from error
    return repo
