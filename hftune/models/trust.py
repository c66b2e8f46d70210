"""What of a model folder or repository may be believed: no code unasked or at a moving revision, nothing outside it.

Called by everything in ``hftune.models`` that loads a checkpoint, before it does.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from transformers.utils import cached_file

from hftune.config.model import ModelSection
from hftune.errors import HftuneError

COMMIT = re.compile(r"[0-9a-f]{40}")
CODE_NAMED_IN = ("config.json", "tokenizer_config.json")
SHARDS = "*.index.json"
CACHED = "models--"
"""How the folder of a repository in the Hub's cache begins; its snapshots are made of links into it."""


def trusted(location: str, section: ModelSection) -> bool:
    """Whether Python code that comes with a checkpoint may run.

    Args:
        location: A folder or a Hub id.
        section: What was asked for.

    Raises:
        HftuneError: It was asked for, but of code that can change: a Hub model at no commit, or code that lies in
            another repository than the model.
    """
    if not section.trust_remote_code or section.from_scratch:
        return False
    if not Path(location).is_dir() and not COMMIT.fullmatch(section.revision or ""):
        at = f"{section.revision!r}, which can be moved" if section.revision else "no revision"
        raise HftuneError(
            f"code that comes with {location} may run, but at {at}: what was read today is not what runs tomorrow",
            hint="name the commit whose code you have read: --set model.revision=COMMIT (--revision COMMIT where there "
            "is that flag), 40 digits",
        )
    elsewhere = sorted(_code_elsewhere(location, section.revision))
    if elsewhere:
        raise HftuneError(
            f"the code of {location} lies in another repository ({', '.join(elsewhere)}), which no revision pins",
            hint="save model and code in one folder, read the code, and give that folder",
        )
    return True


def refuse_leading_out(folder: Path) -> None:
    """Nothing outside a model folder is read through it: no link, and no shard whose name climbs out.

    What were read would be saved with the next model, and published with it.
    """
    real = folder.resolve()
    # A snapshot in the Hub's cache links to the files of its repository.
    within = next((parent for parent in real.parents if parent.name.startswith(CACHED)), real)
    for path in (*folder.glob("*"), *folder.glob("*/*")):
        if path.is_symlink() and not path.resolve().is_relative_to(within):
            raise _leads_out(folder, path.name)
    for index in (*folder.glob(SHARDS), *folder.glob(f"*/{SHARDS}")):
        for shard in _shards(index):
            if Path(shard).name != shard:
                raise _leads_out(folder, f"{index.name} ({shard!r})")


def _leads_out(folder: Path, what: str) -> HftuneError:
    return HftuneError(
        f"{what} leads out of the model folder {folder}",
        hint="put the file itself there; nothing outside the folder is read through it",
    )


def _shards(index: Path) -> set[str]:
    """The files that an index names; one that can't be read names none, and fails where it is used."""
    try:
        found = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {str(name) for name in found.values()}
    except (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError):
        return set()


def _code_elsewhere(location: str, revision: str | None) -> set[str]:
    """Repositories other than this one from which transformers would fetch code."""
    found = set()
    for name in CODE_NAMED_IN:
        path = cached_file(
            location,
            name,
            revision=revision,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8")) if path is not None else {}
        except (OSError, ValueError, RecursionError):
            continue  # what can't be read can't be loaded either, and is told there
        # "owner/name--module.Class", in whatever shape auto_map has.
        code = json.dumps(content.get("auto_map")) if isinstance(content, dict) else ""
        found |= {owner for owner in re.findall(r'"([^"]*?)--', code) if owner != location}
    return found
