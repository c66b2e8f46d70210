"""Whose Python code may run to load a model: none unasked, none at a moving revision, none from anywhere else.

Called by everything in ``hftune.models`` that loads a checkpoint, before it does.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING
from transformers.utils import cached_file

from hftune.config.model import COMMIT, NO_TRUST, ModelSection
from hftune.errors import HftuneError
from hftune.models.containment import strings

CODE_NAMED_IN = ("config.json", "tokenizer_config.json")
OWN_CODE = re.compile(r"\w[\w-]*(/\w[\w-]*)?\.\w+")
"""module.Class or folder/module.Class, of a file in the same repository: as deep as links are looked for."""


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
    if not Path(location).is_dir() and not COMMIT.fullmatch(section.model_revision or ""):
        at = f"{section.model_revision!r}, which can be moved" if section.model_revision else "no revision"
        raise HftuneError(
            f"code that comes with {location} may run, but at {at}: what was read today is not what runs tomorrow",
            hint="name the commit whose code you have read: --set model.model_revision=COMMIT (--revision COMMIT "
            "where there "
            "is that flag), 40 digits",
        )
    elsewhere = sorted(_code_elsewhere(location, section.model_revision))
    if elsewhere:
        raise HftuneError(
            f"the code of {location} is in another place ({', '.join(elsewhere)}), which no revision pins",
            hint="save model and code in one folder, read the code, and give that folder",
        )
    return True


def base_on_hub(adapter: ModelSection, name: str, revision: str | None) -> ModelSection:
    """The base that an adapter names on the Hub, with a consent of its own.

    The author of the adapter chooses the base, so what was allowed for the adapter does not extend to it.

    Args:
        adapter: The adapter, and what was asked for.
        name: Hub id of the base.
        revision: Of the base, as the adapter names it.

    Raises:
        HftuneError: The name is also a path here; or the base needs code of its own, and there is no consent to that.
    """
    if os.path.lexists(name):
        raise HftuneError(
            f"the adapter {adapter.model_name_or_path} names its base {name!r}: a model on the Hub, and also a path "
            "in the current "
            f"folder ({Path(name).absolute()}), which would be read instead",
            hint=f"run the command in another folder, or rename {name}. If that path is the base, put a copy of it "
            "into base/ of the adapter, and name it './base' in adapter_config.json",
        )
    base = adapter.model_copy(update={"model_name_or_path": name, "model_revision": revision, **NO_TRUST})
    pinned = COMMIT.fullmatch(revision or "") is not None
    consent = adapter.trust_base_code
    repo, _, commit = (consent or "").partition("@")
    if repo == name and (commit == revision or not pinned):
        return base.model_copy(update={"model_revision": commit, "trust_remote_code": True})
    needed = _needs_code(name, revision)
    if needed is not None:
        given = f"; consent was given to {consent}" if consent else ""
        raise HftuneError(
            f"the base of the adapter {adapter.model_name_or_path} needs Python code of its own: that of {name} at "
            "the commit "
            f"{needed} would run{given}",
            hint=f"read that code, then pass --trust-base-code {name}@{needed}",
        )
    return base


def _needs_code(location: str, revision: str | None) -> str | None:
    """The commit at which a Hub model brings code without which it can't be loaded; None if it can."""
    values, path = _read(location, "config.json", revision)
    known = str(values.get("model_type")) in CONFIG_MAPPING
    return path.parent.name if path is not None and values.get("auto_map") and not known else None


def _code_elsewhere(location: str, revision: str | None) -> set[str]:
    """Code that transformers would take from another repository or folder than this one."""
    found = set()
    for name in CODE_NAMED_IN:
        # "owner/name--module.Class", in whatever shape auto_map has.
        for reference in strings(_read(location, name, revision)[0].get("auto_map")):
            owner, _, code = reference.rpartition("--")
            if owner not in ("", location) or not OWN_CODE.fullmatch(code):
                found.add(owner or code)
    return found


def _read(location: str, name: str, revision: str | None) -> tuple[dict[str, Any], Path | None]:
    """A JSON file of a checkpoint and its path; nothing of one that can't be had or read: loading it explains that."""
    try:
        found = cached_file(
            location,
            name,
            revision=revision,
            _raise_exceptions_for_gated_repo=False,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
        content = {} if found is None else json.loads(Path(found).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}, None
    return (content if isinstance(content, dict) else {}), None if found is None else Path(found)
