"""The loopback hub against the real huggingface_hub, which runs in its own process."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loopback_hub import LoopbackHub, serve

# Every script begins with this and fills `seen`, which is printed at the end: values, or what was raised.
PRELUDE = """
import json, os
from pathlib import Path
from huggingface_hub import HfApi

api, seen = HfApi(), {}

def attempt(name, action):
    try:
        action()
        seen[name] = "done"
    except Exception as error:
        response = getattr(error, "response", None)
        seen[name] = [type(error).__name__, None if response is None else response.status_code]
"""


@pytest.fixture
def hub() -> Iterator[LoopbackHub]:
    with serve() as running:
        yield running


def client(hub: LoopbackHub, home: Path, script: str, token: str | None = None) -> dict[str, Any]:
    """Run a script with this hub as its Hub and return its `seen`."""
    home.mkdir(exist_ok=True)
    source = f"{PRELUDE}\n{script}\nprint(json.dumps(seen))"
    done = hub.run([sys.executable, "-c", source], home, token=token)
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


def uploaded(hub: LoopbackHub) -> list[tuple[int, int | None]]:
    """Bytes and status of every upload that reached the storage."""
    return [(len(request.body), request.status) for request in hub.requests if request.method == "PUT"]


ACCOUNTS = """
seen["me"] = api.whoami()["name"]
attempt("create", lambda: api.create_repo("tester/new", private=True))
attempt("again", lambda: api.create_repo("tester/new"))
attempt("again, exist_ok", lambda: api.create_repo("tester/new", exist_ok=True))
attempt("create under another", lambda: api.create_repo("other/new"))
attempt("commit to another", lambda: api.upload_file(
    path_or_fileobj=b"x", path_in_repo="x.txt", repo_id="other/public"))
attempt("another's private", lambda: api.model_info("other/private"))
attempt("missing file", lambda: api.hf_hub_download("other/public", "absent.json"))
attempt("missing branch", lambda: api.hf_hub_download("other/public", "config.json", revision="absent"))
attempt("bad card", lambda: api.upload_file(
    path_or_fileobj=b"---\\nmodel-index:\\n- name: m\\n  results:\\n  - task: {}\\n---\\n",
    path_in_repo="README.md", repo_id="tester/new"))
"""
VISITOR = """
attempt("public", lambda: api.hf_hub_download("other/public", "config.json"))
attempt("private", lambda: api.model_info("tester/new"))
attempt("private file", lambda: api.hf_hub_download("tester/new", ".gitattributes"))
attempt("create", lambda: api.create_repo("tester/newer"))
"""


def test_accounts_and_refusals(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.add_user("other")
    hub.add_model("other/public", {"config.json": b"{}"})
    hub.add_model("other/private", {"config.json": b"{}"}, private=True)

    assert client(hub, tmp_path / "owner", ACCOUNTS, hub.token) == {
        "me": "tester",
        "create": "done",
        "again": ["HfHubHTTPError", 409],
        "again, exist_ok": "done",
        "create under another": ["HfHubHTTPError", 403],
        "commit to another": ["HfHubHTTPError", 403],
        "another's private": ["RepositoryNotFoundError", 404],
        "missing file": ["RemoteEntryNotFoundError", 404],
        "missing branch": ["RevisionNotFoundError", 404],
        "bad card": ["ValueError", None],
    }
    assert hub.repos() == ["other/private", "other/public", "tester/new"]
    assert set(hub.files("other/public")) == {".gitattributes", "config.json"}

    assert client(hub, tmp_path / "visitor", VISITOR) == {
        "public": "done",
        "private": ["RepositoryNotFoundError", 401],
        "private file": ["RepositoryNotFoundError", 401],
        "create": ["HfHubHTTPError", 401],
    }
    refused = {"public": ["HfHubHTTPError", 401], "create": ["HfHubHTTPError", 401]}
    assert refused.items() <= client(hub, tmp_path / "wrong", VISITOR, "hf_wrong").items()
    reader = client(hub, tmp_path / "reader", VISITOR, hub.add_user("tester", role="read"))
    assert (reader["private"], reader["create"]) == ("done", ["HfHubHTTPError", 403])
    assert hub.unrouted == []


FOLDER = """
os.makedirs("run/sub", exist_ok=True)
card = ["---", "license: mit", "tags: [tiny]", "pipeline_tag: text-classification", "---", "hello", ""]
Path("run/README.md").write_text("\\n".join(card))
Path("run/model.safetensors").write_bytes(bytes(range(256)) * 1200)
Path("run/sub/notes.txt").write_text("old")
api.create_repo("tester/run")
api.upload_folder(repo_id="tester/run", folder_path="run")
api.create_branch("tester/run", branch="v1")
Path("run/sub/notes.txt").write_text("new")
api.upload_folder(repo_id="tester/run", folder_path="run", delete_patterns="*.md", ignore_patterns="*.md")
api.delete_folder("sub", repo_id="tester/run", revision="v1")

info = api.model_info("tester/run", revision="v1", files_metadata=True)
seen["card"] = [info.card_data.license, info.tags, info.pipeline_tag]
seen["sizes"] = {file.rfilename: [file.size, file.lfs is not None] for file in info.siblings}
seen["tree"] = [entry.path for entry in api.list_repo_tree("tester/run")]
paths = api.get_paths_info("tester/run", ["sub", "sub/notes.txt", "none"])
seen["paths"] = [type(entry).__name__ for entry in paths]
seen["branches"] = [branch.name for branch in api.list_repo_refs("tester/run").branches]
folder = Path(api.snapshot_download("tester/run"))
seen["notes"] = (folder / "sub/notes.txt").read_text()
seen["weights"] = (folder / "model.safetensors").read_bytes() == Path("run/model.safetensors").read_bytes()
attempt("stale parent", lambda: api.upload_file(
    path_or_fileobj=b"x", path_in_repo="x", repo_id="tester/run", parent_commit=info.sha))
"""


def test_upload_folder(hub: LoopbackHub, tmp_path: Path) -> None:
    seen = client(hub, tmp_path, FOLDER, hub.token)

    assert seen["card"] == ["mit", ["tiny"], "text-classification"]
    assert seen["sizes"].pop(".gitattributes")[1] is False
    assert seen["sizes"] == {"README.md": [74, False], "model.safetensors": [307200, True]}
    assert seen["tree"] == [".gitattributes", "model.safetensors", "sub"]
    assert seen["paths"] == ["RepoFolder", "RepoFile"]
    assert seen["branches"] == ["main", "v1"]
    assert (seen["notes"], seen["weights"]) == ("new", True)
    assert seen["stale parent"] == ["HfHubHTTPError", 412]
    assert hub.files("tester/run")["sub/notes.txt"] == b"new"
    assert "sub/notes.txt" not in hub.files("tester/run", "v1")
    assert uploaded(hub) == [(307200, 200)]  # the second push knows that the weights are already there
    assert (hub.unrouted, hub.leaks()) == ([], [])


FAULTS = """
weights = bytes(range(256)) * 4000
push = lambda name, data: api.upload_file(path_or_fileobj=data, path_in_repo=name, repo_id="tester/run")
api.create_repo("tester/run")
attempt("500 then well, cut upload then well", lambda: push("model.safetensors", weights))
attempt("commit 500", lambda: push("a.txt", b"a"))
attempt("commit cut", lambda: push("b.txt", b"b"))
attempt("answer lost", lambda: push("c.txt", b"c"))
attempt("stalled", lambda: push("d.txt", b"d"))
attempt("gave up", lambda: api.model_info("tester/run", timeout=0.2))
got = api.hf_hub_download("tester/run", "model.safetensors")
seen["download"] = Path(got).read_bytes() == weights
"""


def test_faults(hub: LoopbackHub, tmp_path: Path) -> None:
    commit = "/api/models/tester/run/commit/main"
    hub.fail("/preupload/")
    hub.cut("^/objects/", after=300_000, method="PUT")
    hub.stall(commit, 0.3)  # the first commit: late, but it comes
    hub.fail(commit, status=500)
    hub.cut(commit, after=10)
    hub.lose_answer(commit)
    hub.stall(commit, 0.3)
    hub.stall("^/api/models/tester/run$", 60)
    hub.cut("^/objects/", after=200_000, method="GET")

    seen = client(hub, tmp_path, FAULTS, hub.token)

    assert seen["500 then well, cut upload then well"] == "done"
    assert seen["commit 500"] == ["HfHubHTTPError", 500]
    assert seen["commit cut"][0] in {"RemoteProtocolError", "ReadError", "WriteError"}
    assert seen["answer lost"][0] in {"RemoteProtocolError", "ReadError"}
    assert seen["stalled"] == "done"
    assert seen["gave up"] == ["ReadTimeout", None]
    assert seen["download"] is True
    assert hub.pending_faults() == 0
    # Nothing of what failed is there; what was done before its answer got lost is.
    assert set(hub.files("tester/run")) == {".gitattributes", "model.safetensors", "c.txt", "d.txt"}
    assert uploaded(hub) == [(300_000, None), (1_024_000, 200)]
    preuploads = [request.status for request in hub.requests if "/preupload/" in request.path]
    assert preuploads == [500, 200, 200, 200, 200, 200]
    downloads = [request for request in hub.requests if request.method == "GET" and request.origin == "storage"]
    assert len(downloads) == 2  # the cut one, and the client's second try
    assert (hub.unrouted, hub.leaks()) == ([], [])


LEAK = """
token = os.environ["HF_TOKEN"]
api.create_repo("tester/leaky")
push = lambda name, data: api.upload_file(path_or_fileobj=data, path_in_repo=name, repo_id="tester/leaky")
push("notes.txt", f"my token is {token}".encode())
push("training_args.bin", b"pickled" + token.encode())
"""


def test_leaks_are_found(hub: LoopbackHub, tmp_path: Path) -> None:
    client(hub, tmp_path, LEAK, hub.token)
    found = " ".join(hub.leaks())
    assert "notes.txt" in found  # base64 inside its commit
    assert "PUT /objects/" in found and "training_args.bin" in found
    assert hub.leaks("hf_" + "0" * 34) == []


def test_storage_takes_signed_requests_without_token(hub: LoopbackHub, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "model.safetensors").write_bytes(b"0123456789")
    (tmp_path / "sub" / "notes.txt").write_bytes(b"notes")
    made = hub.add_model("tester/m", tmp_path)
    assert hub.files("tester/m", made).keys() == {".gitattributes", "model.safetensors", "sub/notes.txt"}
    opener = urllib.request.build_opener()
    with pytest.raises(urllib.error.HTTPError) as unsigned:
        opener.open(f"{hub.storage_url}/objects/{'0' * 64}")
    assert unsigned.value.code == 403

    address = f"{hub.url}/tester/m/resolve/main/model.safetensors"
    with opener.open(urllib.request.Request(address, headers={"Range": "bytes=-3"})) as answer:
        assert (answer.status, answer.read()) == (206, b"789")
        assert answer.headers["Content-Range"] == "bytes 7-9/10"
    # Unlike the Hub's client, urllib carries the header over to the other origin: the storage must refuse it.
    with pytest.raises(urllib.error.HTTPError) as with_token:
        opener.open(urllib.request.Request(address, headers={"Authorization": f"Bearer {hub.token}"}))
    assert with_token.value.code == 400
    assert any("header authorization" in leak for leak in hub.leaks())


def test_its_own_failure_is_not_hidden() -> None:
    with pytest.raises(AssertionError, match="loopback hub failed"), serve() as hub:
        request = urllib.request.Request(f"{hub.url}/api/validate-yaml", data=b"not json")
        with pytest.raises(urllib.error.HTTPError) as broken:
            urllib.request.urlopen(request)
        assert broken.value.code == 500
