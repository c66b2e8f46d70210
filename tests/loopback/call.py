"""A request on its way to a route of the loopback hub: who asks, for which repository, and how to refuse.

The refusals are the Hub's own: an unknown token is 401, another's namespace 403, and another's private
repository 404 as if it were not there. The routes are in download.py and upload.py, their table in routes.py.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from .faults import Request
from .store import Commit, Repo, RepoKind, Store, User

_KINDS: dict[str, RepoKind] = {"models": "model", "datasets": "dataset", "spaces": "space"}


@dataclass
class Reply:
    """An answer before ranges and HEAD are taken into account."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


class RefusedError(Exception):
    """Ends a route with an error in the Hub's form."""

    def __init__(self, status: int, message: str, code: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        marks = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {}) | dict(headers or {})
        body = json.dumps({"error": message}).encode()
        self.reply = Reply(body, status, {"Content-Type": "application/json", **marks})


@dataclass
class Addresses:
    """Where the two servers listen; `signature` is what makes a storage address valid."""

    hub: str = ""
    storage: str = ""
    signature: str = field(default_factory=lambda: secrets.token_hex(16))

    def storage_object(self, sha256: str) -> str:
        """A signed address to put or get one large object, with no token."""
        return f"{self.storage}/objects/{sha256}?X-Amz-Signature={self.signature}"


@dataclass
class Call:
    """One request with what its path named; `user` is None without an authorization header."""

    store: Store
    addresses: Addresses
    request: Request
    query: dict[str, list[str]]
    named: dict[str, str]
    user: User | None

    def json(self) -> dict[str, Any]:
        """The body, which must be a JSON object."""
        value = json.loads(self.request.body or b"{}")
        if not isinstance(value, dict):
            raise RefusedError(400, "a JSON object was expected")
        return value

    def repo(self, *, write: bool = False) -> Repo:
        """The repository the path names, if this user may see it and, for `write`, change it."""
        kind: RepoKind = _KINDS[self.named.get("kind") or "models"]
        if renamed := self.store.renamed.get((kind, self.named["repo"])):
            # As the Hub does: a temporary redirect to the same path under the new name.
            path = self.request.path.replace(f"/{self.named['repo']}", f"/{renamed}", 1)
            raise RefusedError(307, f"Repository was renamed to {renamed}", headers={"Location": path})
        found = self.store.repos.get((kind, self.named["repo"]))
        mine = found is not None and self.user is not None and self.user.name == found.namespace
        if found is None or (found.private and not mine):
            raise RefusedError(404 if self.user else 401, "Repository not found", "RepoNotFound")
        if write:
            self.check_write(found.namespace)
        return found

    def check_gate(self, repo: Repo) -> None:
        """Refuse the files of a gated repository to an account without access; its description is public."""
        mine = self.user is not None and self.user.name in (repo.namespace, *repo.members)
        if not repo.gated or mine:
            return
        restricted = f"Access to {repo.kind} {repo.repo_id} is restricted"
        if self.user is None:
            raise RefusedError(401, f"{restricted}. You must have access to it and be authenticated.", "GatedRepo")
        raise RefusedError(403, f"{restricted} and you are not in the authorized list.", "GatedRepo")

    def check_write(self, namespace: str) -> User:
        """The user, if their token may write under `namespace`."""
        if self.user is None:
            raise RefusedError(401, "Invalid username or password.")
        if self.user.name != namespace or self.user.role != "write":
            raise RefusedError(403, f'You don\'t have the rights to write under the namespace "{namespace}"')
        return self.user

    def commit(self, repo: Repo) -> Commit:
        """The commit of the revision in the path, main where the path has none."""
        revision = unquote(self.named.get("revision") or "main")
        found = repo.resolve(revision)
        if found is None:
            raise RefusedError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return found


def json_reply(value: object, status: int = 200) -> Reply:
    """An answer that is JSON."""
    return Reply(json.dumps(value).encode(), status, {"Content-Type": "application/json"})
