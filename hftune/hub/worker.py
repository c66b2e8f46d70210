"""One attempt to reach the Hub, in a process of its own: ``python -m hftune.hub.worker``.

``hftune.hub.attempt`` starts it, hands it a request on standard input and the token in HF_TOKEN, reads one line of
JSON, and can end it when the Hub falls silent: the client itself waits for ever while it uploads. Whatever goes wrong
comes back as a kind and a text without the token.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    set_client_factory,
    snapshot_download,
)
from huggingface_hub.errors import (
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils._http import default_client_factory

from hftune.errors import HftuneError
from hftune.hub.contents import is_published, refuse_secret
from hftune.portability import lower_priority

TRANSIENT_STATUS = frozenset({408, 409, 412, 425, 429, 500, 502, 503, 504, 520, 522, 524})
"""Overloaded, broken, or somebody else has just committed: another try may do."""
TRANSIENT_NAMES = frozenset({"TransportError", "TimeoutException", "ConnectionError", "TimeoutError"})
"""Network errors, by the names of their classes: the client's HTTP library is not ours to import."""


BESIDE = 10
"""How much an upload beside training gives way to it, as nice has it."""


def check(request: Mapping[str, Any]) -> dict[str, Any]:
    """Who we are, and what the repository holds already; nothing is changed."""
    api = HfApi()
    account = api.whoami()
    known = {"user": account["name"], "namespaces": [account["name"], *(org["name"] for org in account["orgs"])]}
    known["role"] = account.get("auth", {}).get("accessToken", {}).get("role")
    # A name without an owner is one of this account, as for Trainer.
    known["repo"] = request["repo"] if "/" in request["repo"] else f"{account['name']}/{request['repo']}"
    try:
        repo = api.model_info(known["repo"])
    except RepositoryNotFoundError:
        return {**known, "exists": False}
    return {
        **known,
        "exists": True,
        "private": bool(repo.private),
        "files": _files(api, {**request, "repo": known["repo"]}),
    }


def upload(request: Mapping[str, Any]) -> dict[str, Any]:
    """Make repository and branch where they are not there yet, and put the files there in one commit.

    What an earlier attempt has brought there already is not sent again: a commit whose answer got lost is found to
    be done, and no second one is made.
    """
    files: dict[str, str] = request["files"]
    refuse_secret({name: Path(path) for name, path in files.items()}, os.environ["HF_TOKEN"])
    if request.get("beside"):
        lower_priority(BESIDE)
    api, repo, branch = HfApi(), request["repo"], request["revision"]
    api.create_repo(repo, private=request["private"], exist_ok=True)
    if branch != "main":
        api.create_branch(repo, branch=branch, exist_ok=True)
    head = api.model_info(repo, revision=branch)
    there = [sibling.rfilename for sibling in head.siblings or []]
    # What an older push left behind and the new one lacks would be loaded together with it: an adapter, a shard.
    stale = [name for name in there if is_published(name) and name not in files]
    info = api.create_commit(
        repo,
        [
            *(CommitOperationAdd(path_in_repo=name, path_or_fileobj=path) for name, path in files.items()),
            *(CommitOperationDelete(path_in_repo=name) for name in stale),
        ],
        commit_message=request["message"],
        revision=branch,
        # An attempt that was given up may still reach the Hub: it must not land on top of the one that replaced it.
        parent_commit=head.sha,
    )
    return {"commit": info.oid, "url": f"{api.endpoint}/{repo}" + (f"/tree/{branch}" if branch != "main" else "")}


def download(request: Mapping[str, Any]) -> dict[str, Any]:
    """Fetch a commit into an empty cache, so that what is looked at did come from the Hub."""
    folder = snapshot_download(request["repo"], revision=request["revision"], cache_dir=request["cache"])
    return {"folder": folder}


ACTIONS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "check": check,
    "upload": upload,
    "download": download,
}


def explain(error: BaseException, token: str) -> dict[str, Any]:
    """An error as its kind, what the Hub said, and how long it asked us to wait."""
    if isinstance(error, HftuneError):
        return {"kind": "ours", "text": error.message, "hint": error.hint, "wait": 0.0}
    response = error.response if isinstance(error, HfHubHTTPError) else None
    status = response.status_code if response is not None else None
    text = f"{type(error).__name__}: {error}".replace(token, "[token]") if token else str(error)
    wait = response.headers.get("Retry-After", "") if response is not None else ""
    return {
        "kind": _kind(error, status),
        "status": status,
        "text": " ".join(text.split()),
        "wait": float(wait) if wait.isdigit() else 0.0,
    }


def _kind(error: BaseException, status: int | None) -> str:
    if isinstance(error, OfflineModeIsEnabled):
        return "offline"
    if status in TRANSIENT_STATUS:
        return "transient"
    if status is not None:
        return {401: "unauthorised", 403: "forbidden"}.get(status, "refused")
    names = {cls.__name__ for cls in type(error).__mro__}
    if names & TRANSIENT_NAMES:
        return "transient"
    return "card" if isinstance(error, ValueError) and "metadata" in str(error) else "other"


def _files(api: HfApi, request: Mapping[str, Any]) -> list[str]:
    """The names at the revision; none where there is no such branch yet."""
    try:
        return api.list_repo_files(request["repo"], revision=request["revision"])
    except RevisionNotFoundError:
        return []


def _limit_silence(seconds: float) -> None:
    """Give up on a connection over which nothing has moved for so long."""

    def factory() -> Any:
        client = default_client_factory()
        client.timeout = seconds
        return client

    set_client_factory(factory)


def main() -> None:
    """Carry out the request on standard input."""
    request = json.loads(sys.stdin.read())
    # The client's own words go to standard error, which nobody reads; the answer is all that counts.
    answer, sys.stdout = sys.stdout, sys.stderr
    try:
        _limit_silence(request["silence"])
        result = {"result": ACTIONS[request["action"]](request)}
    except Exception as error:  # every failure is an answer: the parent decides what becomes of it
        result = {"error": explain(error, os.environ.get("HF_TOKEN", ""))}
    answer.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
