"""The commit of the checkout around a folder, read from git's own files.

The program git is not called: a repository's configuration names programs that git runs (``core.fsmonitor``, filters,
hooks, pagers), and the current folder may be an untrusted repository. Only regular files are read, up to a limit, and
what they contain is checked: a malicious repository can only give a wrong commit. A bare repository, whose
files can be in any dataset, is not taken for a checkout.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import struct
import zlib
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path

COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
REFERENCE = re.compile(r"refs/[\w./+@#=,~-]+")
MOST_TEXT = 1 << 24
"""Bytes of HEAD, a reference or packed-refs."""
MOST_INDEX = 1 << 26
MOST_FOLDERS = 1 << 24
"""Bytes of the names of all folders in the checkout: names of files that are nested deeply have many of them."""
LONGEST_NAME = 4096
MOST_HASHED = 1 << 28
"""Bytes of files with a new time stamp that are compared with the index by their content."""
ENTRY = struct.Struct(">10I20sH")
LOOSE_START = 512
"""Bytes of an object that hold the first line of a commit."""


class Unknown(Exception):
    """Git's files are missing, damaged, or in a form that is not read here."""


@dataclass(frozen=True)
class Checkout:
    """A working tree with the folders that hold its repository."""

    tree: Path
    own: Path
    """HEAD and index: ``.git``, or in a further worktree the folder that its ``.git`` file names."""
    shared: Path
    """References and objects."""

    def commit(self) -> str:
        """The commit that is checked out, as hexadecimal digits."""
        head = _text(self.own / "HEAD").strip()
        for _ in range(5):  # a reference can name another one
            if not head.startswith("ref:"):
                break
            head = self._reference(head.removeprefix("ref:").strip())
        if not COMMIT.fullmatch(head):
            raise Unknown("no commit")
        return head

    def changed(self, commit: str) -> bool:
        """Whether tracked files, or the files staged for the next commit, differ from the commit."""
        if len(commit) != 40:
            raise Unknown("SHA-256 repositories")
        index = _bytes(self.own / "index", MOST_INDEX)
        try:
            entries = _read_index(index)
            return self._differs(entries) or _tree(entries) != self._tree_of(commit)
        except (struct.error, IndexError, ValueError, OSError, zlib.error) as error:
            raise Unknown(str(error)) from error

    def _reference(self, name: str) -> str:
        if not REFERENCE.fullmatch(name) or ".." in name:
            raise Unknown("not the name of a reference")
        for folder in dict.fromkeys((self.own, self.shared)):
            if (folder / name).is_file():
                return _text(folder / name).strip()
        for line in _text(self.shared / "packed-refs").splitlines():
            commit, _, packed = line.partition(" ")
            if packed == name:
                return commit
        raise Unknown("no such reference")

    def _differs(self, entries: list[IndexEntry]) -> bool:
        written = (self.own / "index").stat().st_mtime
        left = MOST_HASHED
        for entry in entries:
            kind = stat.S_IFMT(entry.mode)
            if entry.unchecked or kind not in (stat.S_IFREG, stat.S_IFLNK):
                continue  # submodules have a repository of their own
            path = self.tree / os.fsdecode(entry.name)
            try:
                found = path.lstat()
            except OSError:
                return True
            if entry.conflict or found.st_size & 0xFFFFFFFF != entry.size or stat.S_IFMT(found.st_mode) != kind:
                return True
            seconds, part = divmod(found.st_mtime_ns, 10**9)
            same_time = seconds & 0xFFFFFFFF == entry.seconds and entry.part in (0, part)
            if same_time and found.st_mtime < written:
                continue  # git's own test; a file as young as the index may have changed since
            left -= found.st_size
            if left < 0:
                raise Unknown("too much to compare")
            content = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
            if hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).digest() != entry.digest:
                return True
        return False

    def _tree_of(self, commit: str) -> bytes:
        """The tree of a commit, from its own file or from a pack."""
        loose = self.shared / "objects" / commit[:2] / commit[2:]
        start = _inflated(_bytes(loose, LOOSE_START, cut=True)) if loose.is_file() else self._packed(commit)
        found = re.match(rb"(?:commit \d+\0)?tree ([0-9a-f]{40})\n", start)
        if found is None:
            raise Unknown("not a commit")
        return bytes.fromhex(found[1].decode())

    def _packed(self, commit: str) -> bytes:
        for listing in sorted((self.shared / "objects" / "pack").glob("*.idx")):
            offset = _offset(listing, bytes.fromhex(commit))
            if offset is not None:
                with _opened(listing.with_suffix(".pack")).open("rb") as pack:
                    pack.seek(offset)
                    content = pack.read(LOOSE_START)
                # The first byte has the object's type (1: a commit, 6 and 7: a delta) in three bits, and like all
                # bytes of the size after it has in its highest bit whether the size continues.
                if content[0] >> 4 & 7 != 1:
                    raise Unknown("a commit stored as a difference to another")
                begin = next(place for place, byte in enumerate(content) if not byte & 0x80) + 1
                return _inflated(content[begin:])
        raise Unknown("no such object")


@dataclass(frozen=True)
class IndexEntry:
    """A tracked file as git last saw it."""

    name: bytes
    seconds: int
    part: int
    """Nanoseconds; 0 where git does not record them."""
    mode: int
    size: int
    digest: bytes
    conflict: bool
    """A merge is not finished, or the file is announced and not added yet."""
    unchecked: bool
    """Excluded from the comparison with ``git update-index --assume-unchanged``."""


def find_checkout(folder: Path) -> Checkout | None:
    """The checkout that a folder is in; None outside of one."""
    for tree in (folder, *folder.parents):
        git = tree / ".git"
        try:
            own = _named_folder(git, "gitdir:") if git.is_file() else git
            if own.is_dir() and (own / "HEAD").is_file():
                common = own / "commondir"
                return Checkout(tree, own, _named_folder(common, "") if common.is_file() else own)
        except (OSError, Unknown):
            return None
    return None


def _named_folder(file: Path, prefix: str) -> Path:
    """The folder that a one-line file names, relative to its own; no other machine is asked for it."""
    text = _text(file).strip()
    name = text.removeprefix(prefix).strip()
    if not text.startswith(prefix) or not name or "\0" in name or name.startswith(("//", "\\\\")):
        raise Unknown("no folder")
    return file.parent / name


def _opened(path: Path) -> Path:
    """The path, if it is a regular file: reading a pipe would never end, and a link can lead to a private file."""
    if path.is_symlink() or not path.is_file():
        raise Unknown(f"{path.name} is not a file")
    return path


def _bytes(path: Path, limit: int, *, cut: bool = False) -> bytes:
    with _opened(path).open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit and not cut:
        raise Unknown(f"{path.name} is too large")
    return content[:limit]


def _text(path: Path) -> str:
    return _bytes(path, MOST_TEXT).decode("utf-8", errors="replace")


def _inflated(content: bytes) -> bytes:
    return zlib.decompressobj().decompress(content, 128)


def _offset(listing: Path, wanted: bytes) -> int | None:
    """Where an object begins in a pack, from the pack's index (version 2)."""
    # https://git-scm.com/docs/gitformat-pack: 8 bytes of magic, 256 counts by first byte of the hash, of which the last
    # is the number of objects, their sorted hashes (20 bytes each), their checksums and their offsets (4 bytes each).
    with _opened(listing).open("rb") as file:
        if file.read(8) != b"\xfftOc\0\0\0\2":
            raise Unknown("a pack of another version")

        def read(place: int, size: int) -> bytes:
            file.seek(place)
            return file.read(size)

        (count,) = struct.unpack(">I", read(8 + 4 * 255, 4))
        found = bisect_left(range(count), wanted, key=lambda number: read(1032 + 20 * number, 20))
        if found == count or read(1032 + 20 * found, 20) != wanted:
            return None
        (offset,) = struct.unpack(">I", read(1032 + 24 * count + 4 * found, 4))
        if offset >> 31:
            raise Unknown("a pack of over 2 GB")
        return int(offset)


def _read_index(content: bytes) -> list[IndexEntry]:
    """Tracked files."""
    # https://git-scm.com/docs/gitformat-index: a header, the entries, extensions, and a hash of 20 bytes. An entry has
    # 62 bytes, two more with extended flags, then its name; up to version 3 it is padded to a multiple of 8.
    magic, version, count = struct.unpack_from(">4s2I", content)
    if magic != b"DIRC" or version not in (2, 3, 4):
        raise Unknown("an index of another version")
    place, name, entries, letters = 12, b"", [], 0
    for _ in range(count):
        begin = place
        fields = ENTRY.unpack_from(content, place)
        flags, extended = fields[11], 0
        place += ENTRY.size
        if flags & 0x4000:
            (extended,) = struct.unpack_from(">H", content, place)
            place += 2
        cut = len(name)
        if version == 4:  # names are stored as the difference to the one before
            cut, place = _varint(content, place)
        end = content.index(b"\0", place)
        name = name[: len(name) - cut] + content[place:end]
        place = end + 1 if version == 4 else begin + (end - begin + 8) // 8 * 8
        letters += len(name)
        if letters > MOST_INDEX or not _is_inside(name):
            raise Unknown("not the names of files in the checkout")
        conflict = bool(flags & 0x3000 or extended & 0x2000)
        unchecked = bool(flags & 0x8000 or extended & 0x4000)
        entries.append(IndexEntry(name, fields[2], fields[3], fields[6], fields[9], fields[10], conflict, unchecked))
    # Extensions only speed git up, except for "link": the other entries are in a file that is shared.
    while place + 8 <= len(content) - 20:
        extension, size = struct.unpack_from(">4sI", content, place)
        if extension == b"link":
            raise Unknown("an index in two files")
        place += 8 + size
    return entries


def _is_inside(name: bytes) -> bool:
    """Whether a tracked file is below the checkout, which a hostile index need not state."""
    parts = name.rstrip(b"/").split(b"/")
    return len(name) <= LONGEST_NAME and not {b"", b".", b".."} & set(parts)


def _varint(content: bytes, place: int) -> tuple[int, int]:
    value = content[place] & 0x7F
    while content[place] & 0x80:
        place += 1
        value = (value + 1 << 7) | content[place] & 0x7F
    return value, place + 1


def _tree(entries: list[IndexEntry]) -> bytes:
    """The hash of the tree that a commit of these files would have."""
    # A tree lists its entries as "mode name\\0hash", sorted as if the names of folders ended in a slash. A folder's own
    # entry holds the hash of its tree, so the deepest folders come first.
    folders: dict[bytes, list[tuple[bytes, bytes]]] = {b"": []}
    left = MOST_FOLDERS
    for entry in entries:
        folder, _, leaf = entry.name.rstrip(b"/").rpartition(b"/")
        is_folder = stat.S_ISDIR(entry.mode)
        folders.setdefault(folder, []).append((leaf + b"/" * is_folder, b"%o %s\0" % (entry.mode, leaf) + entry.digest))
        while folder and (folder := folder.rpartition(b"/")[0]) not in folders:
            folders[folder] = []
            left -= len(folder)
            if left < 0:
                raise Unknown("folders nested too deeply")
    for folder in sorted(folders, key=lambda name: name.count(b"/") if name else -1, reverse=True):
        body = b"".join(line for _, line in sorted(folders[folder]))
        digest = hashlib.sha1(b"tree %d\0" % len(body) + body, usedforsecurity=False).digest()
        if folder:
            parent, _, leaf = folder.rpartition(b"/")
            folders[parent].append((leaf + b"/", b"40000 %s\0" % leaf + digest))
    return digest
