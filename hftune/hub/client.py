"""Requests to the Hugging Face Hub: each has a time limit and is repeated if its failure may be temporary.

huggingface_hub repeats single HTTP requests of an upload. What it does not repeat is handled here: requests to the
account and the repository, commits (another one may have been made in between), and connections that hang, because its
HTTP client has no timeout.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import TypeVar

from huggingface_hub import (
    CommitInfo,
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    get_session,
    get_token,
    snapshot_download,
)
from huggingface_hub.errors import (
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import (  # type: ignore[attr-defined]
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
)

from hftune.errors import HftuneError, RunFailed
from hftune.hub.contents import is_published, refuse_secret

logger = logging.getLogger(__name__)
T = TypeVar("T")

LOG_IN = "log in with `hf auth login`, or set HF_TOKEN, with a token that may write (hf.co/settings/tokens)"
PUSH_LATER = "the run is intact: push it again later with `hftune push RUN USER/NAME`"
MAIN = "main"

# Overloaded or broken, or (409, 412) another commit was made in between: another attempt may succeed.
TEMPORARY_STATUS = frozenset({408, 409, 412, 425, 429, 500, 502, 503, 504, 520, 522, 524})
# Network errors by class name, because the HTTP library below huggingface_hub differs between its versions.
TEMPORARY_ERRORS = frozenset({"TransportError", "TimeoutException", "ConnectionError", "TimeoutError"})


@dataclass(frozen=True)
class RetryPolicy:
    """How often a request is attempted and how long an attempt may take."""

    attempts: int = 5
    first_wait: float = 2.0
    """Seconds before the second attempt; the wait doubles each time."""
    longest_wait: float = 60.0
    """Longest wait, unless the Hub's Retry-After is longer."""
    read_timeout: float = 60.0
    """Seconds without a byte until a connection is given up."""
    slowest: float = 50_000.0
    """Bytes per second below which an attempt is given up."""

    def wait(self, failures: int, retry_after: float = 0.0) -> float:
        """Seconds before the next attempt, with jitter so that many clients do not retry at the same moment."""
        growing = min(self.first_wait * 2.0 ** (failures - 1), self.longest_wait)
        return max(growing * random.uniform(0.75, 1.25), min(retry_after, 10 * self.longest_wait))

    def limit(self, size: int) -> float:
        """Time limit of an attempt to transfer ``size`` bytes, in seconds."""
        return 5 * self.read_timeout + size / self.slowest


class Cancelled(Exception):
    """The request is no longer needed."""


@dataclass(frozen=True)
class RepoState:
    """An account's view of a repository."""

    repo: str
    user: str
    namespaces: tuple[str, ...]
    """The account and its organizations."""
    role: str | None
    """Of the token: read, write, fineGrained."""
    private: bool | None
    """None if the repository does not exist."""
    files: tuple[str, ...]


def require_token() -> str:
    """The token from HF_TOKEN or the login.

    Raises:
        HftuneError: There is none, or it contains characters that no token has.
    """
    token = get_token()
    if not token:
        raise HftuneError("publishing needs a Hub token, and there is none", hint=LOG_IN)
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise HftuneError("the Hub token has characters in it that no token has", hint=LOG_IN)
    return token


@dataclass(frozen=True)
class HubClient:
    """The Hub for one token.

    Attributes:
        token: Sent to the Hub and nowhere else.
        retry: How often and how long.
        report: Receives a line for each failed attempt that is repeated.
        sleep: Waits before the next attempt; may raise Cancelled.
        is_cancelled: Checked before a commit is made.
    """

    token: str
    retry: RetryPolicy = RetryPolicy()
    report: Callable[[str], None] = lambda line: logger.warning("the Hub: %s", line)
    sleep: Callable[[float], None] = time.sleep
    is_cancelled: Callable[[], bool] = lambda: False

    def look_up(self, repo: str, revision: str) -> RepoState:
        """The account and what the repository holds at a revision; changes nothing."""

        def action(api: HfApi) -> RepoState:
            account = api.whoami()
            user = account["name"]
            # As with Trainer, a name without an owner is a repository of this account.
            name = repo if "/" in repo else f"{user}/{repo}"
            private, files = None, []
            with suppress(RepositoryNotFoundError, RevisionNotFoundError):
                private = bool(api.model_info(name).private)
                files = api.list_repo_files(name, revision=revision)
            return RepoState(
                repo=name,
                user=user,
                namespaces=(user, *(org["name"] for org in account["orgs"])),
                role=account.get("auth", {}).get("accessToken", {}).get("role"),
                private=private,
                files=tuple(files),
            )

        return self._call(action, repo)

    def upload(
        self, repo: str, files: Mapping[str, Path], *, revision: str, private: bool | None, message: str
    ) -> CommitInfo:
        """Create repository and branch if necessary and upload the files in one commit.

        A repeated attempt does not send again what has arrived, and makes no second commit if the first one did.
        """

        def action(api: HfApi) -> CommitInfo:
            api.create_repo(repo, private=private, exist_ok=True)
            if revision != MAIN:
                api.create_branch(repo, branch=revision, exist_ok=True)
            head = api.model_info(repo, revision=revision)
            # The order matters. A thread that hangs can't be killed, so an upload that timed out, or was cancelled
            # because a newer model is ready, may continue. First the head is read, then the flag: if a newer upload was
            # committed before, the flag is set and this one stops; if it is committed after, the head has moved on
            # and the Hub refuses this commit (412), because its parent is not the head any more.
            if self.is_cancelled():
                raise Cancelled
            there = [sibling.rfilename for sibling in head.siblings or []]
            # A file that only the previous push had would be loaded with the new ones: an adapter, a shard.
            stale = [name for name in there if is_published(name) and name not in files]
            # One commit for all of it: no one can load new weights with an old configuration. upload_folder ends
            # in the same call, but takes the card of the folder, which names no repository yet.
            add = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=path) for name, path in files.items()]
            delete = [CommitOperationDelete(path_in_repo=name) for name in stale]
            return api.create_commit(
                repo, [*add, *delete], commit_message=message, revision=revision, parent_commit=head.sha
            )

        refuse_secret(files, self.token)
        return self._call(action, repo, sum(path.stat().st_size for path in files.values()))

    def download(self, repo: str, commit: str, cache: Path, size: int) -> Path:
        """Download a commit into an empty cache."""
        return self._call(
            lambda api: Path(snapshot_download(repo, revision=commit, cache_dir=cache, token=api.token)), repo, size
        )

    def url(self, repo: str, revision: str) -> str:
        """Address of the repository at a branch."""
        return f"{HfApi().endpoint}/{repo}" + (f"/tree/{revision}" if revision != MAIN else "")

    def _call(self, action: Callable[[HfApi], T], repo: str, size: int = 0) -> T:
        """Run an action until it succeeds, is refused, or the attempts are used up."""
        for failures in range(1, self.retry.attempts + 1):
            try:
                return self._attempt(action, self.retry.limit(size))
            except (HftuneError, Cancelled):
                raise
            except Exception as error:
                text = " ".join(f"{type(error).__name__}: {error}".replace(self.token, "[token]").split())
                if not _is_temporary(error):
                    raise _refused(error, text, repo) from None
                if failures == self.retry.attempts:
                    raise RunFailed(
                        f"the Hub did not answer in {failures} attempts; the last error: {text}", hint=PUSH_LATER
                    ) from None
                wait = self.retry.wait(failures, _retry_after(error))
                self.report(f"{text}; trying again in {wait:.0f} s ({failures + 1} of {self.retry.attempts})")
                self.sleep(wait)
        raise AssertionError("attempts must be at least 1")

    def _attempt(self, action: Callable[[HfApi], T], limit: float) -> T:
        """Run an action in a daemon thread: one that hangs blocks neither hftune nor the end of the process."""
        result: Future[T] = Future()

        def work() -> None:
            try:
                # huggingface_hub has no timeout of its own; its session is shared, so this one stays set.
                get_session().timeout = self.retry.read_timeout
                with _no_progress_bars():
                    result.set_result(action(HfApi(token=self.token)))
            except BaseException as error:  # every failure is passed on to the thread that waits
                result.set_exception(error)

        Thread(target=work, name="hftune-hub", daemon=True).start()
        try:
            return result.result(limit)
        except TimeoutError as error:
            raise TimeoutError(str(error) or f"not finished within {limit:.0f} s") from None


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    if are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def _status(error: BaseException) -> int | None:
    response = error.response if isinstance(error, HfHubHTTPError) else None
    return None if response is None else int(response.status_code)


def _is_temporary(error: BaseException) -> bool:
    status = _status(error)
    if status is not None:
        return status in TEMPORARY_STATUS
    return bool({cls.__name__ for cls in type(error).__mro__} & TEMPORARY_ERRORS) and not isinstance(
        error, OfflineModeIsEnabled
    )


def _retry_after(error: BaseException) -> float:
    response = error.response if isinstance(error, HfHubHTTPError) else None
    seconds = response.headers.get("Retry-After", "") if response is not None else ""
    return float(seconds) if seconds.isdigit() else 0.0


def _refused(error: BaseException, text: str, repo: str) -> HftuneError:
    """The error that a user sees for a failure that is not temporary."""
    status = _status(error)
    if isinstance(error, OfflineModeIsEnabled):
        return HftuneError("HF_HUB_OFFLINE turns the Hub off", hint="unset HF_HUB_OFFLINE to publish")
    if status == 401:
        return HftuneError("the Hub does not accept this token (401)", hint=LOG_IN)
    if status == 403:
        return HftuneError(
            f"this token may not write to {repo} (403)", hint=f"choose a repository of your own, or {LOG_IN}"
        )
    if isinstance(error, ValueError) and "metadata" in str(error):
        return HftuneError(f"the Hub rejects the model card: {text}", hint="fix README.md in the model folder")
    return RunFailed(f"the Hub refuses to publish {repo}: {text}", hint=PUSH_LATER)
