"""Compare the behavior of two commits bit for bit, on this machine.

python tests/equivalence.py OLD NEW                                       every task and method, a few minutes
python tests/equivalence.py OLD NEW --only classify --output table.md     cases with classify in their name
python tests/equivalence.py OLD NEW --rename unlabeled=unlabeled --ignore 'metrics/data/notes*'    intended differences

Each commit is checked out into a temporary worktree, where one child process trains every pair of task and method of
the commit's own tests/crash_case.py for a few steps, on one thread of the CPU. What a run leaves is compared value by
value: the batches that reach the model, history.jsonl, every tensor of model/, the predictions and metrics.json; times,
speed and memory are left out, and the split ``dev`` equals ``validation``. Probes compare the order of batches over 1
to 3 processes, masking and span corruption for several seeds, and the exit codes of requests that are refused.

Exit codes: 0 everything is equal, 1 something differs, 2 the comparison could not run, 3 nothing differs, but something
could not be compared.

What runs inside a checkout is equivalence_driver.py, always the one next to this file: it works for commits that have
neither. When it no longer finds something, add the new name to its lists of candidates.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path
from typing import Any

DRIVER = Path(__file__).resolve().with_name("equivalence_driver.py")
Result = dict[str, Any]
"""What the driver found in one case: the exit status and plain values in groups (history, weights, …), or why not."""


class Problem(Exception):
    """The comparison can't run."""


# ---- The comparison ----

NEEDED = ("history", "weights", "metrics")
"""Groups of values without which a training can't count as equal; probes and data have one group."""
GROUPS = ("batches", "history", "weights", "predictions", "metrics", "values")
"""In the order in which training makes them: the first difference is closest to the cause."""
TIMED = re.compile(r"speed|mfu|(.*_)?seconds|.*per_second|.*memory.*|(.*_)?time|(.*_)?runtime")
"""Names in metrics and history that depend on the moment."""
DEV = re.compile(r"(?<![A-Za-z0-9])dev(?![A-Za-z0-9])")
SHOWN = 48
"""Characters of a value in the table."""


@dataclass(frozen=True)
class Row:
    """One case in the table."""

    name: str
    verdict: str
    """equal, DIFFERENT or not comparable."""
    compared: int = 0
    weights: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Intended:
    """Differences that were made on purpose."""

    renames: Sequence[tuple[str, str]] = ()
    """Names of OLD and what they are in NEW: one component of a field or several with / between them."""
    ignored: Sequence[str] = ()
    """Patterns of fields."""
    same_data: bool = False
    """Both trained on the data that OLD wrote."""

    def renamed(self, path: str) -> str:
        for old, new in self.renames:
            path = re.sub(rf"(?<![^/]){re.escape(old)}(?![^/])", lambda _, new=new: new, path)  # type: ignore[misc]
        return path


def compare(old: dict[str, Result], new: dict[str, Result], intended: Intended | None = None) -> list[Row]:
    """All cases of both commits, in the order of the new one."""
    intended = intended or Intended()
    before = {intended.renamed(name): result for name, result in old.items()}
    if len(before) < len(old):
        raise Problem("--rename gives two cases of OLD the same name")
    names = [*new, *(name for name in before if name not in new)]
    return [compare_case(name, before.get(name), new.get(name), intended) for name in names]


def compare_case(name: str, old: Result | None, new: Result | None, intended: Intended) -> Row:
    """One case: equal only if both have all groups of values and each value is the same."""
    if old is None or new is None:
        return Row(name, "not comparable", detail=f"missing in {'OLD' if old is None else 'NEW'}")
    sides = {"OLD": old, "NEW": new}
    reasons = [f"{side}: {one['not comparable']}" for side, one in sides.items() if "not comparable" in one]
    if reasons:
        return Row(name, "not comparable", detail="; ".join(reasons))
    if old["status"] != new["status"]:
        errors = [f"{side}: {one['error']}" for side, one in sides.items() if "error" in one]
        change = f"exit status {old['status']} → {new['status']}"
        return Row(name, "DIFFERENT", detail="; ".join([change, *errors]))
    if old["status"] != 0:
        return Row(name, "not comparable", detail=f"fails in both (exit status {old['status']}): {new['error']}")
    needed = ("values",) if name.startswith(("probe/", "data/")) else NEEDED
    missing = [f"no {group} in {side}" for side, one in sides.items() for group in needed if not one.get(group)]
    if missing:
        return Row(name, "not comparable", detail="; ".join(missing))
    row = compare_values(name, values_of(old, intended, rename=True), values_of(new, intended), intended)
    if name.startswith("data/") and row.verdict == "DIFFERENT":
        row = replace(row, detail=f"{row.detail}; --same-data trains both on the data of OLD")
    return row


def values_of(result: Result, intended: Intended, *, rename: bool = False) -> dict[str, str]:
    """Every value of a case by its path, such as history/3/loss; as JSON, which tells 1 from 1.0 and from true."""
    found: dict[str, str] = {}
    for group in filter(result.__contains__, GROUPS):
        for path, value in flatten(result[group], group):
            if group in ("metrics", "history") and any(TIMED.fullmatch(part) for part in path.split("/")):
                continue
            name = DEV.sub("validation", intended.renamed(path) if rename else path)
            while name in found:  # both spellings in one commit: neither hides the other
                name += " (again)"
            shown = dict(intended.renames).get(value, value) if rename and isinstance(value, str) else value
            found[name] = DEV.sub("validation", json.dumps(shown, ensure_ascii=False))
    return found


def flatten(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not parts or not value:
        yield path, value
        return
    for key, part in parts:
        yield from flatten(part, f"{path}/{key}")


def compare_values(name: str, old: dict[str, str], new: dict[str, str], intended: Intended) -> Row:
    """Count the values that differ in each group, and show the first one."""
    paths = [path for path in dict.fromkeys([*old, *new]) if not any(fnmatch(path, one) for one in intended.ignored)]
    differing = sorted((path for path in paths if old.get(path) != new.get(path)), key=_group_rank)
    if not paths:
        return Row(name, "not comparable", detail="every value is ignored")
    weights = checksums(old)
    if not differing:
        return Row(name, "equal", len(paths), weights)
    counts = Counter(_section(path) for path in differing)
    totals = Counter(_section(path) for path in paths)
    counted = [f"{section}: {count} of {totals[section]}" for section, count in counts.items()]
    first = differing[0]
    shown = " → ".join(_short(side.get(first, "(missing)")) for side in (old, new))
    changed = weights if checksums(new) == weights else f"{weights} → {checksums(new)}"
    return Row(name, "DIFFERENT", len(paths), changed, f"{', '.join(counted)}; first: {first}: {shown}")


def checksums(values: dict[str, str]) -> str:
    """One checksum for each file of weights, over the names and hashes of its tensors."""
    files: dict[str, list[tuple[str, str]]] = {}
    for path, value in values.items():
        if path.startswith("weights/") and ".safetensors/" in path:
            file, _, tensor = path.removeprefix("weights/").partition(".safetensors/")
            files.setdefault(file.removeprefix("model/"), []).append((tensor, value))
    return ", ".join(f"{file} {_sha256(sorted(found))[:12]}" for file, found in sorted(files.items()))


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def _section(path: str) -> str:
    """What differences are counted by: the group, and for weights the file."""
    return path.partition(".safetensors/")[0] if path.startswith("weights/") else path.partition("/")[0]


def _group_rank(path: str) -> int:
    return GROUPS.index(path.partition("/")[0]) if path.partition("/")[0] in GROUPS else len(GROUPS)


def _short(value: str) -> str:
    return value if len(value) <= SHOWN else f"{value[: SHOWN - 1]}…"


def table(rows: Sequence[Row], commits: Sequence[str], intended: Intended) -> str:
    """The whole comparison in Markdown."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "transformers", "peft"))
    counts = Counter(row.verdict for row in rows)
    lines = [
        f"OLD: {commits[0]}  ",
        f"NEW: {commits[1]}  ",
        f"On: {platform.system()} {platform.machine()}, Python {platform.python_version()}, {versions}  ",
        f"Renamed on purpose: {', '.join(f'{old} to {new}' for old, new in intended.renames) or 'nothing'}  ",
        f"Ignored: {', '.join(intended.ignored) or 'nothing'}  ",
        f"Data: {'written by OLD for both' if intended.same_data else 'written by each commit for itself'}  ",
        f"Result: {', '.join(f'{counts[verdict]} {verdict}' for verdict in ('equal', 'DIFFERENT', 'not comparable'))}",
        "",
        "| task | method | result | values | weights | difference |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        task, _, method = row.name.partition("/")
        cells = [task, method, row.verdict, str(row.compared or ""), row.weights, row.detail]
        lines.append("| " + " | ".join(re.sub(r"\s+", " ", cell).replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def exit_code(rows: Sequence[Row]) -> int:
    verdicts = {row.verdict for row in rows}
    return 1 if "DIFFERENT" in verdicts else 3 if "not comparable" in verdicts else 0


# ---- Both commits ----


def git(repository: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=repository, capture_output=True, encoding="utf-8", errors="replace", check=False
    )
    if done.returncode != 0:
        raise Problem(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


@contextmanager
def checkout(repository: Path, commit: str, path: Path) -> Iterator[Path]:
    """A worktree that is removed at the end."""
    git(repository, "worktree", "add", "--quiet", "--detach", str(path), commit)
    try:
        yield path
    finally:
        git(repository, "worktree", "remove", "--force", str(path))


def environment(root: Path, folder: Path) -> dict[str, str]:
    """Nothing of the user's settings, one thread, no GPU, no network, and the checkout before anything installed."""
    hidden = ("HF_", "HFTUNE_", "ACCELERATE_", "TRANSFORMERS_", "PYTHON")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    return {
        # Muon takes bf16 where a timing finds it faster. Two timings can disagree; up to AVX2 bf16 is always slower.
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        **kept,
        "PYTHONPATH": os.pathsep.join([str(root), str(root / "tests")]),
        "PYTHONUTF8": "1",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TQDM_DISABLE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "hf"),
        "HFTUNE_CACHE": str(folder / "cache"),
    }


def run_commit(repository: Path, commit: str, folder: Path, label: str, only: Sequence[str]) -> dict[str, Result]:
    """Run the driver on one commit. The folder has the same path for both: paths are among the compared values."""
    root, request, answer = folder / "checkout", folder / "request.json", folder / "answer.json"
    (folder / "empty").mkdir(parents=True, exist_ok=True)
    asked = {"root": str(root), "folder": str(folder), "only": list(only), "label": label, "answer": str(answer)}
    request.write_text(json.dumps(asked), encoding="utf-8")
    with checkout(repository, commit, root):
        # -P: the folder of the driver has a crash_case.py of its own, which must not be imported.
        command = [sys.executable, "-P", str(DRIVER), str(request)]
        status = run_driver(command, folder / "empty", environment(root, folder))
    if status != 0:
        raise Problem(f"the driver ended with exit status {status} on {label}")
    results: dict[str, Result] = json.loads(answer.read_text(encoding="utf-8"))
    if len(results) == 1:  # the data alone
        raise Problem(f"no case of {label} matches --only {' '.join(only)}")
    return results


def run_driver(command: Sequence[str], folder: Path, variables: dict[str, str]) -> int:
    """The exit status. In a process group of its own, so that a training ends when this process is interrupted."""
    group: dict[str, Any] = {} if sys.platform == "win32" else {"process_group": 0}
    with subprocess.Popen(command, cwd=folder, env=variables, stdin=subprocess.DEVNULL, **group) as process:
        try:
            return process.wait()
        except BaseException:
            if sys.platform == "win32":
                process.kill()
            else:
                os.killpg(process.pid, signal.SIGKILL)
            raise


def compare_commits(wanted: argparse.Namespace, intended: Intended) -> int:
    repository = Path(git(Path.cwd(), "rev-parse", "--show-toplevel"))
    named = {"OLD": wanted.old, "NEW": wanted.new}
    hashes = {side: git(repository, "rev-parse", "--verify", f"{one}^{{commit}}") for side, one in named.items()}
    subjects = [git(repository, "log", "-1", "--format=%h %s", commit) for commit in hashes.values()]
    results = []
    with tempfile.TemporaryDirectory(prefix="hftune-equivalence-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary).resolve() / "run"
        for side, commit in hashes.items():
            results.append(run_commit(repository, commit, folder, f"{side} {commit[:9]}", wanted.only))
            for path in folder.iterdir():
                if not (intended.same_data and path.name == "home"):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
    rows = compare(results[0], results[1], intended)
    text = table(rows, subjects, intended)
    print(text)
    if wanted.output is not None:
        wanted.output.write_text(text, encoding="utf-8")
    return exit_code(rows)


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare the behavior of two commits bit for bit.")
    parser.add_argument("old", metavar="OLD", help="a commit")
    parser.add_argument("new", metavar="NEW", help="a commit")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PATTERN",
        help="cases whose TASK/METHOD contains this, or matches it with *; repeatable",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the table to this file too")
    parser.add_argument(
        "--rename", action="append", default=[], metavar="OLD=NEW", help="a name that changed on purpose; repeatable"
    )
    parser.add_argument(
        "--ignore", action="append", default=[], metavar="FIELD", help="fields not to compare, with *; repeatable"
    )
    parser.add_argument("--same-data", action="store_true", help="train NEW on the data that OLD wrote")
    wanted = parser.parse_args(arguments)
    wrong = [one for one in wanted.rename if not re.fullmatch(r"[^=]+=[^=]+", one)]
    if wrong:
        parser.error(f"--rename takes OLD=NEW, not {wrong[0]}")
    return wanted


def main(arguments: Sequence[str]) -> int:
    wanted = parsed(arguments)
    renames = [one.split("=") for one in wanted.rename]
    intended = Intended([(old, new) for old, new in renames], wanted.ignore, wanted.same_data)
    # Worktrees are removed when a batch system ends this process, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return compare_commits(wanted, intended)
    except Problem as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
