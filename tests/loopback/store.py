"""What the loopback hub holds: users, repositories, their commits and the large objects behind them.

Plain state with git's rules (content addresses, branches, parents) and no HTTP. download.py and upload.py
read and change it for the client's requests, tests/loopback_hub.py for the test's own calls.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Literal

RepoKind = Literal["model", "dataset", "space"]
Role = Literal["read", "write"]

# The suffixes a new Hub repository sends to large file storage, whatever their size.
LFS_PATTERNS = (
    "*.7z",
    "*.arrow",
    "*.bin",
    "*.bz2",
    "*.ckpt",
    "*.ftz",
    "*.gz",
    "*.h5",
    "*.joblib",
    "*.lfs.*",
    "*.mlmodel",
    "*.model",
    "*.msgpack",
    "*.npy",
    "*.npz",
    "*.onnx",
    "*.ot",
    "*.parquet",
    "*.pb",
    "*.pickle",
    "*.pkl",
    "*.pt",
    "*.pth",
    "*.rar",
    "*.safetensors",
    "*.tar.*",
    "*.tar",
    "*.tflite",
    "*.tgz",
    "*.wasm",
    "*.xz",
    "*.zip",
    "*.zst",
    "saved_model/**/*",
    "*tfevents*",
)
CONVERSIONS = "refs/convert/"
LFS_SIZE = 10 * 1024 * 1024
_ATTRIBUTES = "".join(f"{pattern} filter=lfs diff=lfs merge=lfs -text\n" for pattern in LFS_PATTERNS).encode()


def goes_to_lfs(path: str, size: int) -> bool:
    """Whether the Hub stores a file of this name and size as a large object."""
    name = path.rsplit("/", 1)[-1]
    return size > LFS_SIZE or any(fnmatch(name, pattern) or fnmatch(path, pattern) for pattern in LFS_PATTERNS)


@dataclass(frozen=True)
class User:
    """An account with one access token; `role` is what that token may do."""

    name: str
    token: str
    role: Role


@dataclass(frozen=True)
class Blob:
    """One file's content; a large object is addressed by SHA-256 and a regular file by git's SHA-1."""

    content: bytes
    lfs: bool

    @cached_property
    def sha256(self) -> str:
        """The large object's address."""
        return hashlib.sha256(self.content).hexdigest()

    @cached_property
    def pointer(self) -> bytes:
        """The text that git itself keeps in place of a large object."""
        version = "version https://git-lfs.github.com/spec/v1"
        return f"{version}\noid sha256:{self.sha256}\nsize {len(self.content)}\n".encode()

    @cached_property
    def git_oid(self) -> str:
        """The object name in git: of the pointer when the content is a large object."""
        kept = self.pointer if self.lfs else self.content
        return hashlib.sha1(b"blob %d\0" % len(kept) + kept).hexdigest()

    @property
    def etag(self) -> str:
        """What a download is checked against and named after in the client's cache."""
        return self.sha256 if self.lfs else self.git_oid


@dataclass(frozen=True)
class Commit:
    """One state of a repository."""

    oid: str
    title: str
    message: str
    author: str
    date: str
    files: Mapping[str, Blob]
    parent: Commit | None

    def history(self) -> list[Commit]:
        """This commit and its ancestors, newest first."""
        found: list[Commit] = []
        current: Commit | None = self
        while current is not None:
            found.append(current)
            current = current.parent
        return found


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


@dataclass
class Repo:
    """A repository; it starts, as on the Hub, with one commit that holds .gitattributes."""

    repo_id: str
    kind: RepoKind
    private: bool
    gated: bool = False
    members: set[str] = field(default_factory=set)  # accounts that have access to a gated repository
    created: str = field(default_factory=_now)
    branches: dict[str, Commit] = field(default_factory=dict)
    commits: dict[str, Commit] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.commit("main", {".gitattributes": Blob(_ATTRIBUTES, lfs=False)}, "initial commit", "", self.namespace)

    @property
    def namespace(self) -> str:
        """The owner's name; empty for the old ids of one part, such as roberta-base."""
        return self.repo_id.split("/")[0] if "/" in self.repo_id else ""

    @property
    def url_path(self) -> str:
        """Where the repository lives under the hub's address."""
        return self.repo_id if self.kind == "model" else f"{self.kind}s/{self.repo_id}"

    def resolve(self, revision: str) -> Commit | None:
        """The commit that a branch name, refs/heads/name, refs/pr/number or commit hash means."""
        return self.branches.get(revision.removeprefix("refs/heads/")) or self.commits.get(revision)

    def commit(self, branch: str, files: Mapping[str, Blob], title: str, message: str, author: str) -> Commit:
        """Make `files` the whole content of `branch`."""
        parent = self.branches.get(branch)
        listing = "\n".join(f"{path} {blob.git_oid}" for path, blob in sorted(files.items()))
        # The count keeps two commits of one content in one second apart, as git's timestamps would.
        named = f"{self.url_path}\n{len(self.commits)}\n{parent.oid if parent else ''}\n{title}\n{listing}"
        oid = hashlib.sha1(named.encode()).hexdigest()
        made = Commit(oid, title, message, author, _now(), dict(files), parent)
        self.branches[branch] = made
        self.commits[oid] = made
        return made


@dataclass
class Store:
    """Everything on one hub."""

    users: dict[str, User] = field(default_factory=dict)  # by token
    repos: dict[tuple[RepoKind, str], Repo] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)  # large objects by SHA-256
    renamed: dict[tuple[RepoKind, str], str] = field(default_factory=dict)  # old id to new id

    def add_user(self, name: str, role: Role) -> User:
        """A new account; its token looks like a real one and is different in every hub."""
        user = User(name, "hf_" + secrets.token_hex(17), role)
        self.users[user.token] = user
        return user

    def add_folder(self, repo: Repo, folder: Path | Mapping[str, bytes], branch: str, author: str) -> Commit:
        """Commit the files of a folder (or of a mapping of path to content) over what the branch holds."""
        if isinstance(folder, Path):
            paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
            contents = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
        else:
            contents = dict(folder)
        if not contents:
            raise ValueError(f"nothing to put into {repo.repo_id}: {folder} holds no file")
        # The Hub's own conversions share no history and no files with main.
        head = repo.branches.get(branch) or (None if branch.startswith(CONVERSIONS) else repo.branches["main"])
        files = dict(head.files) if head is not None else {".gitattributes": Blob(_ATTRIBUTES, lfs=False)}
        for path, content in contents.items():
            files[path] = Blob(content, lfs=goes_to_lfs(path, len(content)))
            if files[path].lfs:
                self.objects[files[path].sha256] = content
        return repo.commit(branch, files, "Add files", "", author)
