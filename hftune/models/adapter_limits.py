"""Limits for an adapter's configuration: bounded time and memory, checked before peft reads it.

An adapter_config.json from the Hub is not trusted. Its regular expressions are matched with the name of every module of
the base, its sizes are allocated and its layers are copied, so one line could keep a machine busy for years.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from itertools import chain
from pathlib import Path
from typing import Any

from hftune.errors import HftuneError

Fault = tuple[str, Any, str, str]
"""A field, its value, what is wrong with it and what to do."""
Size = tuple[str, Any, int]
"""A field, its value, and the largest that it may be."""

PROMPTS = ("PREFIX_TUNING", "PROMPT_TUNING", "P_TUNING")
SIZED_BY_WEIGHTS = ("LORA", "IA3")
"""Types whose ranks are found again as a size of their weights."""
TYPES = (
    *SIZED_BY_WEIGHTS,
    *PROMPTS,
    *("ADAMSS", "BEFT", "BOFT", "C3A", "DEFT", "DELORA", "FOURIERFT", "FROD", "GLORA", "GRALORA", "HIRA", "HRA"),
    *("LILY", "LN_TUNING", "LOHA", "LOKR", "MISS", "OFT", "OSF", "PEANUT", "PSOFT", "PVERA", "RANDLORA", "ROAD"),
    *("SHIRA", "SUPERTUNING", "TINYLORA", "UNILORA", "VBLORA", "VERA", "WAVEFT"),
)
"""Types of adapters that are loaded: those whose settings are bounded here."""
PATTERNS = {
    *("target_modules", "exclude_modules", "feedforward_modules", "modules_to_save", "target_parameters"),
    *("layers_pattern", "rank_pattern", "alpha_pattern"),
    *("lambda_pattern", "block_size_pattern", "n_frequency_pattern"),
}
"""Regular expressions, or lists of names of which peft makes some."""
LISTS = {*PATTERNS, "layer_replication", "layers_to_transform"}
SIZES = {"r", "num_virtual_tokens", "num_transformer_submodules", "token_dim", "num_layers"}
MOST = {
    **dict.fromkeys(("r", "subspace_rank", "hybrid_r", "mini_r", "effective_rank", "topk"), 1024),
    **dict.fromkeys(("u", "num_subspaces", "num_vectors", "vector_length", "theta_d_length"), 4096),
    # A block or a group of numbers divides a size of the layer, and a frequency is one of its weights: peft checks it.
    **dict.fromkeys(("boft_block_size", "boft_block_num", "oft_block_size", "block_size", "group_size"), 1 << 16),
    "n_frequency": 1 << 24,
    **dict.fromkeys(("num_cayley_neumann_terms", "psoft_svd_lowrank_niter", "stride_A"), 99),
    **dict.fromkeys(("num_B", "depth", "gralora_k"), 16),
    "boft_n_butterfly_factor": 8,
}
"""The largest values of settings that are sizes or numbers of repetitions, of all types but LoRA and the prompts."""
MOST_OF = {
    ("TINYLORA", "r"): 64,
    ("TINYLORA", "u"): 1024,
    ("PEANUT", "r"): 256,
    ("VBLORA", "r"): 32,
    ("VBLORA", "num_vectors"): 1024,
}
"""Where sizes are multiplied: TinyLoRA has u·r² numbers per layer, PEANuT depth·r², VB-LoRA up to r·d·num_vectors."""
FREE = {
    *("auto_mapping", "base_model_name_or_path", "revision", "peft_type", "peft_version", "task_type"),
    *("inference_mode", "megatron_core", "lora_alpha", "bias", "num_attention_heads", "init_weights"),
    *("encoder_hidden_size", "encoder_num_layers", "encoder_reparameterization_type", "prompt_tuning_init"),
    *("prompt_tuning_init_text", "tokenizer_name_or_path", "tokenizer_kwargs"),
    # factors
    *("alpha", "psoft_alpha", "randlora_alpha", "delora_lambda", "decompose_factor"),
    # seeds
    *("random_seed", "random_loc_seed", "projection_prng_key", "projection_seed", "proj_seed", "generator_seed"),
    # names that peft compares with its own
    *("decomposition_method", "config_A_B", "config_C", "config_D_E", "act_fn", "ab_svd_init", "psoft_svd"),
    *("variant", "mask_type", "wavelet_family"),
}
"""Names, factors, and what peft reads only where an adapter is made to be trained."""
KNOWN = {*LISTS, *SIZES, *MOST, *FREE, "init_lora_weights"}
PROMPT = "prompt_embeddings"
AGAIN = "get the adapter again from where it was made; don't use it if you don't trust its author"

LONGEST_SHOWN = 80
LONGEST_PATTERN = 1000
MOST_ENTRIES = 500
"""Of a list or a mapping: each is matched with each module."""
MOST_SAVED = 50
"""Entries of modules_to_save, which peft compiles again and again."""
MOST_LAYERS = 100
"""That the base has after layer_replication."""
USUAL_RANK = 1024
"""Up to this rank, one dimension of that size in the weights is enough. A layer of BERT takes 6 MB for it."""
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
    """Refuse a configuration that costs more than its weights account for, or has settings that are not known here.

    ``folder`` has the weights; ``name`` is what the user gave.
    """
    for field, value, reason, hint in chain(config_faults(config), _large(config, folder)):  # lazy: a fault ends it
        shown = str(value) if len(str(value)) <= LONGEST_SHOWN else f"{str(value)[:LONGEST_SHOWN]}…"
        raise HftuneError(f"{field} of the adapter {name} is {shown!r}: {reason}", hint=hint)


def config_faults(config: Mapping[str, Any]) -> Iterator[Fault]:
    """What is wrong with a configuration, apart from its weights; later checks rely on the earlier ones."""
    for faults in (_unknown, _slow, _too_many):
        yield from faults(config)


def _unknown(config: Mapping[str, Any]) -> Iterator[Fault]:
    """A type or a field whose cost is not known."""
    from peft import PEFT_TYPE_TO_CONFIG_MAPPING

    kind = config.get("peft_type")
    if kind not in TYPES:
        hint = "merge it into its base with peft (merge_and_unload), and use the merged model"
        yield (
            "peft_type",
            kind,
            f"its cost is not bounded; {len(TYPES)} types can be loaded, such as {', '.join(TYPES[:6])}",
            hint,
        )
        return
    for field in fields(PEFT_TYPE_TO_CONFIG_MAPPING[kind]):  # peft drops what it does not know itself
        value = config.get(field.name)
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        if field.name not in KNOWN and value and not isinstance(value, bool | float) and value != default:
            hint = f"remove {field.name} from its adapter_config.json if it was there for training only"
            yield field.name, value, "no bound is known for this setting, which may take any time or memory", hint


def _slow(config: Mapping[str, Any]) -> Iterator[Fault]:
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


def _too_many(config: Mapping[str, Any]) -> Iterator[Fault]:
    """Sizes and repetitions of the types whose weights do not show them."""
    kind = config["peft_type"]
    if kind in PROMPTS or kind in SIZED_BY_WEIGHTS:
        return
    for field, most in MOST.items():
        most = MOST_OF.get((kind, field), most)
        stated = [(field, config.get(field))]
        for name in (f"{field}_pattern", *(("rank_pattern",) if field in ("r", "effective_rank") else ())):
            stated += [(name, value) for value in _table(config.get(name)).values()]
        for name, value in stated:
            if value is not None and not (isinstance(value, int | float) and -1 <= value <= most):
                yield name, value, f"expected a number of at most {most}", AGAIN


def _large(config: Mapping[str, Any], folder: Path) -> Iterator[Fault]:
    """What takes memory: sizes that are larger than those in the weights file."""
    if config["peft_type"] not in (*PROMPTS, *SIZED_BY_WEIGHTS):
        return
    for field, size, most in _prompt(config, folder) if config["peft_type"] in PROMPTS else _ranks(config, folder):
        if not isinstance(size, int) or not 0 < size <= most:
            yield field, size, f"expected a number from 1 to {most}, as in its weights", AGAIN


def _ranks(config: Mapping[str, Any], folder: Path) -> Iterator[Size]:
    """Ranks: of a matrix in the file, which has as many rows or columns, and both where the rank is an unusual one."""
    ranks = [("rank_pattern", rank) for rank in _table(config.get("rank_pattern")).values()]
    if "r" in config:
        ranks.append(("r", config["r"]))
    shapes = [shape for shape in adapter_shapes(folder).values() if len(shape) > 1 and 0 not in shape] if ranks else []
    # lora_A is (r, in) and lora_B (out, r), so a true rank is a dimension of some weight. The largest dimension alone
    # would allow r = 30,000 for a file with one embedding of a large vocabulary, and peft allocates (r, in) for every
    # module. Above the usual rank both dimensions must be as large: the file then is as large as what it allocates.
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
    import torch
    from safetensors import safe_open

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
        token = _PIECE.match(pattern, at)
        if token is None:
            return float("inf")
        at, kind, found = token.end(), token.lastgroup, 1.0
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
            found = LENGTHS if times["many"] else found + 1  # x? is every way to match x, or nothing
        ways *= found
    return float("inf") if outer else total + ways


def _layers(replication: Any) -> float:
    """Number of layers after a replication; infinite if the value is invalid."""
    try:
        return float(sum(max(0, end - start) for start, end in replication or ()))
    except (TypeError, ValueError, OverflowError):
        return float("inf")
