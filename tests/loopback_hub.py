"""A Hugging Face Hub on 127.0.0.1 for tests: the real huggingface_hub client talks to it over real HTTP.

    with serve() as hub:
        hub.add_model("huawei-noah/TinyBERT_General_4L_312D", folder)
        hub.fail(r"/commit/", status=500)
        hub.run([sys.executable, "-c", script], tmp_path, token=hub.token)
        assert set(hub.files("tester/mine")) == {...}
        assert hub.leaks() == []

huggingface_hub reads HF_ENDPOINT, HF_HOME and HF_HUB_OFFLINE when it is imported, so what is tested runs in a
process of its own with `hub.environment(...)`. Large files travel as they do on the real Hub: through signed
addresses on another origin, which refuses a token. Everything that arrives is in `hub.requests`.
A pull request is a revision named refs/pr/N. Discussions, tags, .gitignore and the xet protocol are not served; what
has no route is in `hub.unrouted`.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from loopback.faults import Fault, Request
from loopback.server import Backend, LoopbackServer
from loopback.store import Commit, Repo, RepoKind, Role

# Variables that would lead a client elsewhere, to another account, or to no network at all.
_UNSET = (
    *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HUB_DISABLE_IMPLICIT_TOKEN"),
    *("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "HF_EVALUATE_OFFLINE"),
    *("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_ASSETS_CACHE", "HF_XET_CACHE", "HF_DATASETS_CACHE"),
    *("HF_MODULES_CACHE", "HF_EVALUATE_CACHE", "TRANSFORMERS_CACHE", "HUGGINGFACE_CO_STAGING"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"),
)


class LoopbackHub:
    """A running hub; made by `serve`.

    Attributes:
        url: what HF_ENDPOINT must be.
        storage_url: the origin that takes and serves large files.
        user: the account that `token` belongs to.
        token: a token that may write under `user`.
    """

    def __init__(self, backend: Backend, url: str, storage_url: str) -> None:
        self._backend = backend
        self.url = url
        self.storage_url = storage_url
        self.user = "tester"
        self.token = self.add_user(self.user)

    def add_user(self, name: str, role: Role = "write") -> str:
        """Open an account and return its token; a `read` token may download only."""
        with self._backend.lock:
            return self._backend.store.add_user(name, role).token

    def add_model(
        self,
        repo_id: str,
        folder: Path | Mapping[str, bytes],
        *,
        private: bool = False,
        revision: str = "main",
    ) -> str:
        """Put a folder, or a mapping of path to content, into a model repository; the commit's hash."""
        return self._add("model", repo_id, folder, private, revision)

    def add_dataset(
        self,
        repo_id: str,
        folder: Path | Mapping[str, bytes],
        *,
        private: bool = False,
        revision: str = "main",
    ) -> str:
        """Put a folder, or a mapping of path to content, into a dataset repository; the commit's hash."""
        return self._add("dataset", repo_id, folder, private, revision)

    def _add(
        self, kind: RepoKind, repo_id: str, folder: Path | Mapping[str, bytes], private: bool, revision: str
    ) -> str:
        with self._backend.lock:
            store = self._backend.store
            repo = store.repos.get((kind, repo_id)) or Repo(repo_id, kind, private=private)
            made = store.add_folder(repo, folder, revision, repo.namespace)
            store.repos[kind, repo_id] = repo
            return made.oid

    def rename(self, old: str, new: str, kind: RepoKind = "model") -> None:
        """Give a repository another id; requests for the old one are redirected, as on the Hub."""
        with self._backend.lock:
            store = self._backend.store
            repo = store.repos.pop((kind, old))
            repo.repo_id = new
            store.repos[kind, new] = repo
            store.renamed[kind, old] = new

    def gate(self, repo_id: str, kind: RepoKind = "model", *, members: Sequence[str] = ()) -> None:
        """Restrict the files of a repository to its owner and some other accounts."""
        with self._backend.lock:
            repo = self._backend.store.repos[kind, repo_id]
            repo.gated, repo.members = True, set(members)

    def repo(self, repo_id: str, kind: RepoKind = "model") -> Repo:
        """The repository itself: branches, commits, whether it is private. KeyError if there is none."""
        with self._backend.lock:
            return self._backend.store.repos[kind, repo_id]

    def repos(self) -> list[str]:
        """The ids of all repositories, sorted; a dataset's begins with "datasets/"."""
        with self._backend.lock:
            return sorted(repo.url_path for repo in self._backend.store.repos.values())

    def commits(self, repo_id: str, revision: str = "main", kind: RepoKind = "model") -> list[Commit]:
        """The history of a branch or commit, newest first. KeyError if there is no such revision."""
        found = self.repo(repo_id, kind).resolve(revision)
        if found is None:
            raise KeyError(f"{repo_id} has no revision {revision}")
        return found.history()

    def files(self, repo_id: str, revision: str = "main", kind: RepoKind = "model") -> dict[str, bytes]:
        """What a revision holds, by path, with the .gitattributes that every repository starts with."""
        return {path: blob.content for path, blob in self.commits(repo_id, revision, kind)[0].files.items()}

    def fail(
        self,
        pattern: str,
        *,
        status: int = 500,
        times: int = 1,
        method: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Answer the next `times` requests whose target matches `pattern` with `status`, and do no more."""
        self._backend.plan.add(Fault(re.compile(pattern), method, times, status=status, headers=headers or {}))

    def stall(self, pattern: str, seconds: float, *, times: int = 1, method: str | None = None) -> None:
        """Wait before answering as usual, whether the client still listens or not."""
        self._backend.plan.add(Fault(re.compile(pattern), method, times, stall=seconds))

    def cut(self, pattern: str, *, after: int = 0, times: int = 1, method: str | None = None) -> None:
        """Break the connection after this many bytes of the request's body; of the answer's, if it has none."""
        self._backend.plan.add(Fault(re.compile(pattern), method, times, cut_after=after))

    def lose_answer(self, pattern: str, *, times: int = 1, method: str | None = None) -> None:
        """Do what is asked, then break the connection instead of answering."""
        self._backend.plan.add(Fault(re.compile(pattern), method, times, lose_answer=True))

    def pending_faults(self) -> int:
        """How many of the planned faults have not happened: 0 proves that a test met them all."""
        return self._backend.plan.pending()

    def clear_faults(self) -> None:
        """Forget the planned faults that have not happened."""
        self._backend.plan.clear()

    @property
    def requests(self) -> list[Request]:
        """Every request so far, to both origins, in the order they came in."""
        return list(self._backend.requests)

    @property
    def unrouted(self) -> list[str]:
        """Requests this hub has no route for, as "METHOD path"."""
        return list(self._backend.unrouted)

    @property
    def errors(self) -> list[str]:
        """Tracebacks of this hub's own failures; `serve` raises at its end if there are any."""
        return list(self._backend.errors)

    def leaks(self, secret: str | None = None) -> list[str]:
        """Where `secret` (the token, unless given) shows up other than in the hub's authorization header.

        Requests are searched as they came over the wire, and so are the contents of all commits and uploads:
        a commit carries its small files in base64, in which a search of the request alone finds nothing.
        """
        needle = (secret or self.token).encode()
        found = [
            f"{request.method} {request.path}: {place}"
            for request in self.requests
            for place, content in request.places()
            if needle in content
        ]
        with self._backend.lock:
            for repo in self._backend.store.repos.values():
                for commit in repo.commits.values():
                    texts = {"commit message": f"{commit.title}\n{commit.message}".encode()}
                    texts |= {path: blob.content for path, blob in commit.files.items()}
                    found += [f"{repo.url_path}@{commit.oid}: {at}" for at, text in texts.items() if needle in text]
            found += [f"object {oid}" for oid, content in self._backend.store.objects.items() if needle in content]
        return found

    def environment(self, home: Path, *, token: str | None = None) -> dict[str, str]:
        """The environment of a process whose Hub is this one, caches under `home`, and no user logged in.

        Args:
            home: a directory of the test's own; HF_HOME is made in it.
            token: put into HF_TOKEN; None leaves the process without a token.
        """
        env = {name: value for name, value in os.environ.items() if name not in _UNSET}
        env |= {"HF_ENDPOINT": self.url, "HF_HOME": str(home / "huggingface"), "HF_HUB_DISABLE_XET": "1"}
        env |= {"HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        return env if token is None else env | {"HF_TOKEN": token}

    def run(
        self, command: Sequence[str], home: Path, *, token: str | None = None, **extra: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in `home` with `environment(home, token=token)`, more variables in `extra`."""
        env = self.environment(home, token=token) | extra
        return subprocess.run(command, env=env, cwd=home, capture_output=True, text=True, timeout=280)


@contextmanager
def serve() -> Iterator[LoopbackHub]:
    """Run a hub, empty but for one account, until the block ends.

    Raises:
        AssertionError: at the end, if the hub itself broke on a request, for then the test proved nothing.
    """
    backend = Backend()
    servers = [LoopbackServer(backend, "hub"), LoopbackServer(backend, "storage")]
    backend.addresses.hub, backend.addresses.storage = (server.url for server in servers)
    threads = [threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield LoopbackHub(backend, backend.addresses.hub, backend.addresses.storage)
    finally:
        backend.closing.set()
        for server in servers:
            server.shutdown()
            server.server_close()
        for thread in threads:
            thread.join()
    assert not backend.errors, "the loopback hub failed:\n" + "\n".join(backend.errors)
