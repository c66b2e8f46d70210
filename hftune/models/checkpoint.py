"""Finding a checkpoint, and explaining why one can't be loaded: unknown, unreachable, gated, or in another format.

Used by everything in ``hftune.models`` that loads; the exceptions of three libraries end here as one HftuneError.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub import constants, try_to_load_from_cache
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from hftune.config.model import ModelSection
from hftune.errors import HftuneError
from hftune.models.containment import refuse_leading_out
from hftune.models.trust import trusted
from hftune.models.weight_files import ask_hub, check_weights, refuse_bad_bin, report_bin, request_no_conversion
from hftune.portability import is_link
from hftune.suggest import did_you_mean

LONGEST_REASON = 400


class Wanted(NamedTuple):
    """What is looked for, for the messages."""

    what: str
    offline: str
    """What to do without a network."""


STARTED_FROM = Wanted(
    "model", "use --model scratch:bert-tiny (fresh weights, no network), or a folder that holds the checkpoint"
)
USED = Wanted("model", "name a run, or a folder that holds the model")
TOKENIZER = Wanted("tokenizer", "name a run, or a folder that holds the tokenizer")


def locate(name: str) -> str:
    """What ``from_pretrained`` should be given: a run stands for its model folder, all else for itself."""
    folder = Path(name)
    if not _is_possible(folder):
        raise HftuneError(f"{name[:100]!r}… is no name of a folder, and no model on the Hub", hint=STARTED_FROM.offline)
    if (folder / "recipe.yaml").is_file() and (folder / "model").is_dir():
        if is_link(folder / "model"):
            raise HftuneError(
                f"{folder / 'model'} is a link, which leads out of the run {folder}",
                hint="put the files themselves there; nothing outside a run is read through it",
            )
        return str(folder / "model")
    seeds = sorted(str(run.parent) for run in folder.glob("seed-*/recipe.yaml")) if folder.is_dir() else []
    if seeds:
        many = f"{len(seeds)} runs" if len(seeds) > 1 else "one run"
        raise HftuneError(f"{name} is a group of seeds ({many}), not a run", hint=f"name a run in it: {seeds[0]}")
    if folder.is_dir() and not (folder / "config.json").is_file() and not (folder / "adapter_config.json").is_file():
        raise HftuneError(
            f"the folder {name} holds no model: there is no config.json in it",
            hint="give the folder that save_pretrained wrote, or an hftune run that has finished",
        )
    beside_runs = name.count("/") == 1 and any(folder.parent.glob("*/recipe.yaml"))
    looks_like_path = name.startswith((".", "/", "~")) or name.count("/") > 1 or beside_runs
    if looks_like_path and not folder.exists():
        siblings = [str(folder.parent / entry.name) for entry in folder.parent.glob("*")]
        raise HftuneError(
            f"there is no folder {name}",
            hint=did_you_mean(name, siblings) or "check the path; a Hub id has the form user/name",
        )
    return name


def how_to_load(location: str, section: ModelSection) -> dict[str, Any]:
    """Arguments of every ``from_pretrained`` that loads weights.

    In fp32, also from a checkpoint in half precision, which transformers would otherwise train in half precision. From
    safetensors, or else from .bin with ``weights_only=True``, which is reported.
    """
    request_no_conversion()
    check_weights(section.model_name_or_path, location, section.model_revision)
    report_bin(section.model_name_or_path, location, section.model_revision)
    return {**whose_code(location, section), "weights_only": True, "dtype": torch.float32}


def whose_code(location: str, section: ModelSection) -> dict[str, Any]:
    """Arguments of every other ``from_pretrained``: which revision, and whether its code may run."""
    return {"revision": section.model_revision, "trust_remote_code": trusted(location, section)}


def locate_tokenizer(name: str) -> str:
    """The same for a tokenizer, which may lie in a folder of its own, with no model beside it."""
    own = any((Path(name) / file).is_file() for file in ("tokenizer.json", "tokenizer_config.json"))
    return name if own else locate(name)


def ask_first(location: str, section: ModelSection, wanted: Wanted = STARTED_FROM) -> None:
    """One quick question before the loaders ask theirs: each would try for long where the Hub does not answer."""
    if Path(location).is_dir() or constants.HF_HUB_OFFLINE:
        return
    with explained(section, wanted):
        try:
            ask_hub(location, section.model_revision)
        except Exception as error:
            cached = try_to_load_from_cache(location, "config.json", revision=section.model_revision)
            if not isinstance(cached, str):
                raise OSError(f"no answer about {location}") from error


def _is_possible(path: Path) -> bool:
    """Whether the system takes it as a path at all; one that is too long is refused with an OSError."""
    try:
        path.exists()
    except OSError:
        return False
    return True


def refuse_unsafe(location: str, section: ModelSection) -> None:
    """Refuse a checkpoint that leads out of itself, and one whose weights are in another format."""
    with explained(section):
        refuse_leading_out(location, section.model_revision)
    check_weights(section.model_name_or_path, location, section.model_revision)


@contextmanager
def explained(section: ModelSection, wanted: Wanted = STARTED_FROM) -> Iterator[None]:
    """Turn whatever a loader raises into one error that names the cause and the way out."""
    try:
        yield
    except HftuneError:
        raise
    except Exception as error:  # whatever a stranger's files make the loaders raise
        refuse_bad_bin(locate(section.model_name_or_path), section.model_revision)
        raise _explain(error, section, wanted) from error


def _explain(error: BaseException, section: ModelSection, wanted: Wanted) -> HftuneError:
    name, what, chain = section.model_name_or_path, wanted.what, list(_chain(error))
    text = " ".join(str(link) for link in chain)
    if any(isinstance(link, GatedRepoError) for link in chain):
        return HftuneError(
            f"the {what} {name} is gated", hint="accept its terms on the Hub, then log in with `hf auth login`"
        )
    if any(isinstance(link, RevisionNotFoundError) for link in chain):
        return HftuneError(
            f"the {what} {name} has no revision {section.model_revision!r}",
            hint="leave model.model_revision out, or name a branch, tag or commit that exists",
        )
    if any(isinstance(link, (RepositoryNotFoundError, HFValidationError)) for link in chain):
        return HftuneError(
            f"no {what} {name!r}: not a folder here, and not a {what} on the Hub that you can see",
            hint=f"check the spelling (user/name); a private {what} needs `hf auth login`. Offline: {wanted.offline}",
        )
    if any(isinstance(link, pickle.UnpicklingError) for link in chain):  # torch's own text suggests weights_only=False
        return HftuneError(
            f"a .bin file of {name} can't be loaded safely: it holds more than tensors. hftune loads pickles only with "
            "torch.load(weights_only=True), which runs no code from the file",
            hint="take the checkpoint from its author again, or choose one with .safetensors weights",
        )
    if "trust_remote_code" in text:
        return HftuneError(
            f"{name} comes with Python code of its own, which is not run unasked",
            hint="read that code, then pass --trust-remote-code, with model.model_revision set to the commit you "
            "read; for "
            "the base of an adapter, --trust-base-code REPO@COMMIT",
        )
    if any(isinstance(link, ImportError) for link in chain) and ("tiktoken" in text or "sentencepiece" in text):
        return HftuneError(
            f"the tokenizer of {name} is a SentencePiece model, which needs the packages sentencepiece and protobuf",
            hint="pip install 'hftune[sentencepiece]'",
        )
    if any(isinstance(link, EntryNotFoundError) and not isinstance(link, LocalEntryNotFoundError) for link in chain):
        return HftuneError(
            f"{name} lacks a file that a model needs: {error}",
            hint="check that it is a transformers checkpoint",
        )
    if _unreachable(chain):
        return HftuneError(
            f"can't get the {what} {name!r}: the Hugging Face Hub can't be reached, and it is not in the local cache",
            hint=f"check the network (and HF_ENDPOINT, HF_HUB_OFFLINE); offline, {wanted.offline}",
        )
    reason = (str(error).strip() or type(error).__name__)[:LONGEST_REASON]
    return HftuneError(
        f"can't load the {what} {name!r}: {reason}",
        hint="check that it is a checkpoint transformers can load; `hftune doctor` shows the installed versions",
    )


def _unreachable(chain: list[BaseException]) -> bool:
    """Whether the root of the trouble is the network; the client libraries name these errors differently."""
    names = {cls.__name__ for link in chain for cls in type(link).__mro__}
    return bool(
        names
        & {
            "LocalEntryNotFoundError",
            "OfflineModeIsEnabled",
            "ConnectError",
            "ConnectionError",
            "TimeoutException",
            "TransportError",
            "HfHubHTTPError",
        }
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and everything it was raised from."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__
