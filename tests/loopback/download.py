"""The loopback hub's routes that read: the account, a repository's description, its tree, its files.

routes.py maps the Hub's paths to these functions.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, unquote

from .call import Call, RefusedError, Reply, json_reply
from .card import card_data
from .store import CONVERSIONS, Blob, Commit

_UNGATED = ("README.md", ".gitattributes")


def whoami(call: Call) -> Reply:
    if call.user is None:
        raise RefusedError(401, "Invalid username or password.")
    token = {"displayName": "loopback", "role": call.user.role}
    account = {
        "type": "user",
        "id": call.user.name,
        "name": call.user.name,
        "fullname": call.user.name,
        "orgs": [],
    }
    return json_reply({**account, "auth": {"type": "access_token", "accessToken": token}})


def _card(commit: Commit) -> dict[str, Any]:
    """The README's metadata; the Hub describes a repository without it when it can't be read."""
    if "README.md" not in commit.files:
        return {}
    try:
        return card_data(commit.files["README.md"].content.decode())
    except ValueError:
        return {}


def repo_info(call: Call) -> Reply:
    repo = call.repo()
    commit = call.commit(repo)
    card = _card(commit)
    siblings: list[dict[str, Any]] = []
    for path, blob in sorted(commit.files.items()):
        siblings.append({"rfilename": path})
        if "blobs" in call.query:
            siblings[-1] |= {"size": len(blob.content), "blobId": blob.git_oid}
            if blob.lfs:
                lfs = {"sha256": blob.sha256, "size": len(blob.content), "pointerSize": len(blob.pointer)}
                siblings[-1]["lfs"] = lfs
    info = {
        **{
            "id": repo.repo_id,
            "author": repo.namespace,
            "sha": commit.oid,
            "private": repo.private,
            "gated": "manual" if repo.gated else False,
        },
        **{
            "disabled": False,
            "downloads": 0,
            "likes": 0,
            "tags": card.get("tags") or [],
            "siblings": siblings,
        },
        **{"createdAt": repo.created, "lastModified": commit.date, "cardData": card},
    }
    for name in ("pipeline_tag", "library_name", "model-index"):
        if name in card:
            info[name] = card[name]
    return json_reply(info)


def _entry(path: str, blob: Blob | None) -> dict[str, Any]:
    if blob is None:
        return {"type": "directory", "oid": "0" * 40, "size": 0, "path": path}
    entry: dict[str, Any] = {"type": "file", "oid": blob.git_oid, "size": len(blob.content), "path": path}
    if blob.lfs:
        entry["lfs"] = {"oid": blob.sha256, "size": len(blob.content), "pointerSize": len(blob.pointer)}
    return entry


def _entries(commit: Commit) -> dict[str, Blob | None]:
    """Every path of a commit; a folder has no blob."""
    found: dict[str, Blob | None] = dict(commit.files)
    for path in commit.files:
        parts = path.split("/")
        found |= {"/".join(parts[:end]): None for end in range(1, len(parts))}
    return found


def tree(call: Call) -> Reply:
    entries = _entries(commit := call.commit(call.repo()))
    folder = unquote(call.named.get("rest") or "")
    if folder and (folder not in entries or entries[folder] is not None):
        raise RefusedError(404, f"{folder} does not exist", "EntryNotFound", {"X-Repo-Commit": commit.oid})
    inside = {path: blob for path, blob in entries.items() if not folder or path.startswith(f"{folder}/")}
    if call.query.get("recursive", ["false"])[0].lower() not in ("true", "1"):
        inside = {path: blob for path, blob in inside.items() if "/" not in path[len(folder) :].strip("/")}
    return json_reply([_entry(path, blob) for path, blob in sorted(inside.items())])


def paths_info(call: Call) -> Reply:
    entries = _entries(call.commit(call.repo()))
    if call.request.headers.get("content-type", "").startswith("application/json"):
        wanted = call.json()["paths"]
    else:
        wanted = parse_qs(call.request.body.decode()).get("paths", [])
    return json_reply([_entry(path, entries[path]) for path in wanted if path in entries])


def refs(call: Call) -> Reply:
    branches, converts, pulls = [], [], []
    for name, commit in call.repo().branches.items():
        if name.startswith(CONVERSIONS):
            converts.append({"name": name.removeprefix(CONVERSIONS), "ref": name, "targetCommit": commit.oid})
        elif name.startswith("refs/pr/"):
            pulls.append({"name": name, "ref": name, "targetCommit": commit.oid})
        else:
            branches.append({"name": name, "ref": f"refs/heads/{name}", "targetCommit": commit.oid})
    asked = {"pullRequests": pulls} if "include_prs" in call.query else {}
    return json_reply({"branches": branches, "converts": converts, "tags": [], **asked})


def commits(call: Call) -> Reply:
    history = call.commit(call.repo()).history()
    return json_reply(
        [
            {
                "id": c.oid,
                "title": c.title,
                "message": c.message,
                "date": c.date,
                "authors": [{"user": c.author}],
            }
            for c in history
        ]
    )


def auth_check(call: Call) -> Reply:
    call.check_gate(call.repo(write=call.named.get("revision") == "write"))
    return json_reply({})


def resolve(call: Call) -> Reply:
    commit = call.commit(repo := call.repo())
    path = unquote(call.named["path"])
    if path not in _UNGATED:
        call.check_gate(repo)
    marks = {"X-Repo-Commit": commit.oid}
    blob = commit.files.get(path)
    if blob is None:
        raise RefusedError(404, "Entry not found", "EntryNotFound", marks)
    if blob.lfs:  # served elsewhere: what the client needs to know about the file is on the redirect itself
        marks |= {"X-Linked-Etag": f'"{blob.sha256}"', "X-Linked-Size": str(len(blob.content))}
        return Reply(status=302, headers={**marks, "Location": call.addresses.storage_object(blob.sha256)})
    return Reply(blob.content, 200, {**marks, "ETag": f'"{blob.etag}"', "Accept-Ranges": "bytes"})
