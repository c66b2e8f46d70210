"""The loopback hub's routes that write: new repositories and branches, large objects, commits.

An upload is the Hub's own sequence: `preupload` says how each file travels, `lfs_batch` hands out signed
storage addresses, `put_object` takes the bytes, `lfs_verify` confirms them, and only `commit` changes a
repository, as a whole or not at all. routes.py maps the Hub's paths to these functions.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from typing import Any
from urllib.parse import unquote

from .call import Call, RefusedError, Reply, json_reply
from .card import card_problems
from .store import Blob, Repo, RepoKind, goes_to_lfs


def validate_yaml(call: Call) -> Reply:
    errors, warnings = card_problems(call.json()["content"])
    problems = {
        "errors": [{"message": text} for text in errors],
        "warnings": [{"message": text} for text in warnings],
    }
    return json_reply(problems, 400 if errors else 200)


def create_repo(call: Call) -> Reply:
    wanted = call.json()
    user = call.check_write(wanted.get("organization") or (call.user.name if call.user else ""))
    kind: RepoKind = wanted.get("type") or "model"
    repo_id = f"{user.name}/{wanted['name']}"
    taken = (kind, repo_id) in call.store.repos
    repo = call.store.repos.get((kind, repo_id)) or Repo(repo_id, kind, private=wanted.get("visibility") == "private")
    call.store.repos[kind, repo_id] = repo
    made = {"url": f"{call.addresses.hub}/{repo.url_path}", "name": repo_id, "id": repo_id}
    # The address comes with the refusal too: the client reads it there with exist_ok.
    return json_reply({"error": f"You already created this {kind} repo", **made}, 409) if taken else json_reply(made)


def create_branch(call: Call) -> Reply:
    repo = call.repo(write=True)
    name = unquote(call.named["revision"])
    if name in repo.branches:
        raise RefusedError(409, f"Reference already exists: {name}")
    start = str(call.json().get("startingPoint") or "main")
    found = repo.resolve(start)
    if found is None:
        raise RefusedError(404, f"Invalid rev id: {start}", "RevisionNotFound")
    repo.branches[name] = found
    return json_reply({})


def preupload(call: Call) -> Reply:
    repo = call.repo(write=True)
    commit = call.commit(repo)
    wanted = call.json()
    if "gitIgnore" in wanted:
        raise RefusedError(501, "the loopback hub does not apply .gitignore")
    files = []
    for file in wanted["files"]:
        lfs = goes_to_lfs(file["path"], file["size"])
        known = commit.files.get(file["path"])
        mode = {"path": file["path"], "uploadMode": "lfs" if lfs else "regular", "shouldIgnore": False}
        files.append(mode | ({"oid": known.etag} if known is not None else {}))
    return json_reply({"files": files, "commitOid": commit.oid})


def lfs_batch(call: Call) -> Reply:
    repo = call.repo(write=True)
    verify = f"{call.addresses.hub}/{repo.url_path}.git/info/lfs/objects/verify"
    objects = []
    for item in call.json()["objects"]:
        entry: dict[str, Any] = {"oid": item["oid"], "size": item["size"]}
        if item["oid"] not in call.store.objects:  # no actions: the client need not send what is already here
            entry["actions"] = {
                "upload": {"href": call.addresses.storage_object(item["oid"])},
                "verify": {"href": verify},
            }
        objects.append(entry)
    return json_reply({"transfer": "basic", "objects": objects})


def lfs_verify(call: Call) -> Reply:
    call.repo(write=True)
    wanted = call.json()
    content = call.store.objects.get(wanted["oid"])
    if content is None or len(content) != wanted["size"]:
        raise RefusedError(404, f"object {wanted['oid']} of {wanted['size']} bytes was not uploaded")
    return json_reply({})


def put_object(call: Call) -> Reply:
    content = call.request.body
    if hashlib.sha256(content).hexdigest() != call.named["oid"]:
        raise RefusedError(400, "the content does not have the checksum of its address")
    call.store.objects[call.named["oid"]] = content
    return Reply(headers={"ETag": f'"{call.named["oid"]}"'})


def get_object(call: Call) -> Reply:
    content = call.store.objects.get(call.named["oid"])
    if content is None:
        raise RefusedError(404, "no such object")
    return Reply(content, 200, {"ETag": f'"{call.named["oid"]}"', "Accept-Ranges": "bytes"})


def commit(call: Call) -> Reply:
    repo = call.repo(write=True)
    if "create_pr" in call.query:
        raise RefusedError(501, "the loopback hub has no pull requests")
    branch = unquote(call.named["revision"]).removeprefix("refs/heads/")
    if branch not in repo.branches:
        raise RefusedError(404, f"Invalid rev id: {branch}", "RevisionNotFound")
    lines = [json.loads(line) for line in call.request.body.splitlines() if line.strip()]
    headers = [line["value"] for line in lines if line["key"] == "header"]
    if len(headers) != 1 or not headers[0].get("summary"):
        raise RefusedError(400, "a commit needs exactly one header with a summary")
    parent = headers[0].get("parentCommit")
    if parent is not None and not repo.branches[branch].oid.startswith(parent):
        raise RefusedError(412, f"A commit has happened since {parent}. Please refresh and try again.")
    files = dict(repo.branches[branch].files)
    for line in lines:
        _apply(call, files, line["key"], line["value"])
    author = call.check_write(repo.namespace).name
    made = repo.commit(branch, files, headers[0]["summary"], headers[0].get("description", ""), author)
    url = f"{call.addresses.hub}/{repo.url_path}/commit/{made.oid}"
    return json_reply({"success": True, "commitOid": made.oid, "commitUrl": url, "hookOutput": ""})


def _apply(call: Call, files: dict[str, Blob], key: str, value: dict[str, Any]) -> None:
    """Carry out one line of a commit on `files`."""
    path = str(value.get("path", ""))
    if key == "file":
        try:
            files[path] = Blob(base64.b64decode(value["content"], validate=True), lfs=False)
        except binascii.Error as error:
            raise RefusedError(400, f"{path} is not base64: {error}") from error
    elif key == "lfsFile":
        if value["oid"] not in call.store.objects:
            raise RefusedError(400, f"{path} points to object {value['oid']}, which was not uploaded")
        files[path] = Blob(call.store.objects[value["oid"]], lfs=True)
    elif key in ("deletedFile", "deletedFolder"):
        gone = [name for name in files if name == path or name.startswith(path.rstrip("/") + "/")]
        if key == "deletedFile":
            gone = [name for name in gone if name == path]
        if not gone:
            raise RefusedError(404, f"A file with this name doesn't exist: {path}", "EntryNotFound")
        for name in gone:
            del files[name]
    elif key != "header":
        raise RefusedError(400, f"unknown operation in a commit: {key}")
