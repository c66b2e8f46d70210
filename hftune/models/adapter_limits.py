"""What an adapter's configuration may ask for: bounded time and memory, checked before peft reads it.

Anybody can write an adapter_config.json. Its regular expressions are matched with the name of every module of the base,
its sizes are allocated and its layers are copied, so that one line could keep a machine busy for years. Called by
``hftune.models.adapter``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from peft import PEFT_TYPE_TO_CONFIG_MAPPING
from safetensors import safe_open

from hftune.errors import HftuneError

Fault = tuple[str, Any, str, str]
"""A field, its value, what is wrong with it and what to do."""
Size = tuple[str, Any, int]
"""A field, its value, and the largest that it may be."""

PROMPTS = ("PREFIX_TUNING", "PROMPT_TUNING", "P_TUNING")
KINDS = ("LORA", "IA3", *PROMPTS)
"""What hftune trains. The others have settings of their own, which nothing here bounds."""
PATTERNS = {
    *("target_modules", "exclude_modules", "feedforward_modules", "modules_to_save", "target_parameters"),
    *("layers_pattern", "rank_pattern", "alpha_pattern"),
}
"""Regular expressions, or lists of names of which peft makes some."""
LISTS = {*PATTERNS, "layer_replication", "layers_to_transform"}
SIZES = {"r", "num_virtual_tokens", "num_transformer_submodules", "token_dim", "num_layers"}
FREE = {
    *("auto_mapping", "base_model_name_or_path", "revision", "peft_type", "peft_version", "task_type"),
    *("inference_mode", "megatron_core", "lora_alpha", "bias", "num_attention_heads", "init_weights"),
    *("encoder_hidden_size", "encoder_num_layers", "encoder_reparameterization_type", "prompt_tuning_init"),
    *("prompt_tuning_init_text", "tokenizer_name_or_path", "tokenizer_kwargs"),
}
"""Names, factors, and what peft reads only where an adapter is made to be trained."""
KNOWN = {*LISTS, *SIZES, *FREE, "init_lora_weights"}
PROMPT = "prompt_embeddings"
AGAIN = "take the adapter again from where it was made; if that is a stranger's, don't use it"

LONGEST_SHOWN = 80
LONGEST_PATTERN = 1000
MOST_ENTRIES = 500
"""Of a list or a mapping: each is matched with each module."""
MOST_SAVED = 50
"""Entries of modules_to_save, which peft compiles again and again."""
MOST_LAYERS = 100
"""That the base has after layer_replication."""
USUAL_RANK = 1024
"""Up to here a rank needs no other proof than a weight of that size. A layer of BERT takes 6 MB for it."""
LENGTHS = 25
"""That a repetition is taken to have. Names have 60 characters or so, which the repetitions of a pattern share."""
MOST_WAYS = 4 * LENGTHS**3
"""In which all patterns together can be matched with one name: three ``.*`` and a few alternatives. It takes 0.03 s."""

_PIECE = re.compile(
    r"(?P<open>\((?:\?[:=!])?)"
    r"|(?P<close>\))"
    r"|(?P<bar>\|)"
    r"|(?P<anchor>[\^$]|\\b)"
    r"|(?P<character>\\[.dwDW-]|\[\^?(?:[\w.-]|\\[.dw])+\]|[\w.-])"
)
_TIMES = re.compile(r"(?P<many>[*+]|\{\d{1,3}(?:,\d{0,3})?\})\??|\?\??")
_FEW_ITERATIONS = re.compile(r"[a-z]+_niter_[0-9]{1,2}")


def check_adapter_config(config: Mapping[str, Any], folder: Path, name: str) -> None:
    """Refuse a configuration that costs more than its weights file accounts for, or that sets what is not known here.

    Args:
        config: The content of adapter_config.json.
        folder: Where the weights are.
        name: What the user named.

    Raises:
        HftuneError: Names the field and its value.
    """
    for faults in (_unknown, _slow, _large):
        for field, value, reason, hint in faults(config, folder):
            shown = str(value) if len(str(value)) <= LONGEST_SHOWN else f"{str(value)[:LONGEST_SHOWN]}…"
            raise HftuneError(f"{field} of the adapter {name} is {shown!r}: {reason}", hint=hint)


def _unknown(config: Mapping[str, Any], folder: Path) -> Iterator[Fault]:
    """A kind or a field of which nothing here knows what it costs."""
    kind = config.get("peft_type")
    if kind not in KINDS:
        hint = "put it into the weights of its base with peft (merge_and_unload), and use the model that you save then"
        yield "peft_type", kind, f"adapters of the kinds {', '.join(KINDS)} can be loaded", hint
        return
    defaults = PEFT_TYPE_TO_CONFIG_MAPPING[kind]().to_dict()
    for field, value in config.items():
        # peft drops what it does not know itself.
        known = field in KNOWN or field not in defaults
        if not known and value and not isinstance(value, bool | float) and value != defaults[field]:
            hint = f"remove {field} from its adapter_config.json if it was there for training only"
            yield field, value, "hftune does not know this setting, which may take any amount of time or memory", hint


def _slow(config: Mapping[str, Any], folder: Path) -> Iterator[Fault]:
    """What takes time: long lists, patterns, copies of layers, iterations."""
    for field in sorted(LISTS & config.keys()):
        if not isinstance(config[field], str | list | dict | None):
            yield field, config[field], "expected a list or a pattern", AGAIN
            return
        most = MOST_SAVED if field == "modules_to_save" else MOST_ENTRIES
        if isinstance(config[field], list | dict) and len(config[field]) > most:
            yield field, config[field], f"{len(config[field])} entries, at most {most} are allowed", AGAIN
    ways = 0.0
    for field in sorted(PATTERNS & config.keys()):
        value = config[field]
        for pattern in [value] if isinstance(value, str) else value or ():
            ways += ways_to_match(str(pattern))
            if ways > MOST_WAYS:
                hint = f"list the names of the modules in {field} of its adapter_config.json"
                yield field, pattern, "as a regular expression it may take hours to match", hint
    replication = config.get("layer_replication")
    if _layers(replication) > MOST_LAYERS:
        yield "layer_replication", replication, f"at most {MOST_LAYERS} layers are allowed", AGAIN
    start = str(config.get("init_lora_weights"))
    if "niter" in start.lower() and not _FEW_ITERATIONS.fullmatch(start):
        yield "init_lora_weights", start, "at most 99 iterations are allowed", AGAIN


def _large(config: Mapping[str, Any], folder: Path) -> Iterator[Fault]:
    """What takes memory: sizes that are larger than those in the weights file."""
    for field, size, most in _prompt(config, folder) if config["peft_type"] in PROMPTS else _ranks(config, folder):
        if not isinstance(size, int) or not 0 < size <= most:
            yield field, size, f"expected a number from 1 to {most}, as in its weights", AGAIN


def _ranks(config: Mapping[str, Any], folder: Path) -> Iterator[Size]:
    """Ranks: of a matrix in the file, which has as many rows or columns, and both where the rank is an unusual one."""
    ranks = [("rank_pattern", rank) for rank in _table(config.get("rank_pattern")).values()]
    if "r" in config:
        ranks.append(("r", config["r"]))
    shapes = [shape for shape in adapter_shapes(folder).values() if len(shape) > 1 and 0 not in shape] if ranks else []
    most = min(max(map(max, shapes)), max(USUAL_RANK, *map(min, shapes))) if shapes else 0
    yield from ((field, rank, most) for field, rank in ranks)


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _prompt(config: Mapping[str, Any], folder: Path) -> Iterator[Size]:
    tokens, width = (*adapter_shapes(folder).get(PROMPT, ()), 0, 0)[:2]
    dim = config.get("token_dim")
    yield "num_virtual_tokens", config.get("num_virtual_tokens"), tokens
    yield "num_transformer_submodules", config.get("num_transformer_submodules") or 1, 2
    yield "token_dim", dim, width
    if config["peft_type"] == "PREFIX_TUNING" and isinstance(dim, int):  # keys and values of each layer
        yield "num_layers", config.get("num_layers"), width // (2 * dim or 1)


def adapter_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes in the weights file of an adapter, without their data."""
    safe = folder / "adapter_model.safetensors"
    if safe.is_file():
        with safe_open(safe, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    found = torch.load(folder / "adapter_model.bin", map_location="meta", weights_only=True)
    return {name: tuple(value.shape) for name, value in found.items() if isinstance(value, torch.Tensor)}


def ways_to_match(pattern: str) -> float:
    """In how many ways Python's matcher can try a pattern on one name, at most; infinite for what is not understood.

    A matcher that goes back tries, in the worst case, every way to choose an alternative of each group and a length
    for each repetition. Repeated groups and back references, with which these ways can't be counted, are not
    understood.
    """
    if len(pattern) > LONGEST_PATTERN:
        return float("inf")
    at, outer, total, ways = 0, [], 0.0, 1.0  # ways: of the alternative that is read; total: of those before it
    while at < len(pattern):
        piece = _PIECE.match(pattern, at)
        if piece is None:
            return float("inf")
        at, kind, found = piece.end(), piece.lastgroup, 1.0
        if kind == "open":
            outer.append((total, ways))
            total, ways = 0.0, 1.0
            continue
        if kind == "bar":
            total, ways = total + ways, 1.0
            continue
        if kind == "close":
            if not outer:
                return float("inf")
            found = total + ways
            total, ways = outer.pop()
        times = _TIMES.match(pattern, at) if kind != "anchor" else None
        if times is not None:
            at = times.end()
            if times["many"] and kind == "close":
                return float("inf")
            found = LENGTHS if times["many"] else found + 1
        ways *= found
    return float("inf") if outer else total + ways


def _layers(replication: Any) -> float:
    """How many layers a replication makes; infinite if it is none."""
    try:
        return float(sum(max(0, end - start) for start, end in replication or ()))
    except (TypeError, ValueError, OverflowError):
        return float("inf")
