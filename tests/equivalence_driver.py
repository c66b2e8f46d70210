"""The part of equivalence.py that runs inside a checkout: train every case, run every probe, write plain values.

``equivalence.py`` starts it by its path, so that commits without this file can be compared too. It is one file that
imports nothing from its own folder, and it must not rely on names that change: whatever it takes from a commit is
looked up in a list of candidates. When code moves or is renamed, add the new name to the list (``locate``, ``fitted``)
and keep the old one.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import os
import random
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from fnmatch import fnmatch
from functools import partial
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

Result = dict[str, Any]
"""What was found in one case: the exit status and plain values in groups (history, weights, …), or why not."""

CASE_MODULES = ("crash_case", "cases", "training_cases")
CASE_NAMES = ("PAIRS", "write_data", "recipe")
TRAIN = ("hftune.pipeline.train:train", "hftune.pipeline:train", "hftune.api:train", "hftune:train")
VERIFIER = ("hftune.pipeline.verify:verification_server", "hftune.pipeline.verify:standing")
"""Keeps one process for all verifications; without it each case takes some seconds more, and nothing else changes."""
REQUESTS = (
    "--help",
    "--version",
    "classify --help",
    "no-such-command",
    "classify --no-such-flag",
    "classify --data nowhere.csv --model scratch:bert-tiny",
    "classify --batch-size 0",
    "classify --learning-rate -1",
    "classify --recipe no/such/recipe",
    "classify --resume",
    "classify --do-train false --resume --output run",
    "classify --set train.no_such_field=1",
    "classify --bf16 --fp16",
    "recipes ls",
    "recipes validate nowhere.yaml",
    "predict nowhere text",
    "evaluate nowhere",
    "report nowhere",
    "doctor --num_processes 2",
)
"""Command lines that load no model and need no data."""
SEEDS = (0, 1, 42)
EPOCHS = (0, 1, 2)


class Problem(Exception):
    """The commit can't be run at all."""


class NotComparable(Exception):
    """Something that one case or probe needs is not in this commit."""


def drive(request: dict[str, Any]) -> dict[str, Result]:
    """Run every case and probe of the checkout whose name matches.

    Args:
        request: ``root`` of the checkout, ``folder`` for data and runs, ``only`` (patterns), ``label`` for progress.
    """
    root, folder, home = Path(request["root"]), Path(request["folder"]), Path(request["folder"]) / "home"
    cases = load_cases(root)
    train = locate(*TRAIN)
    require_inside(root, train)
    if not home.exists():
        home.mkdir(parents=True)
        cases.write_data(home)
    work: dict[str, Callable[[], Result]] = {
        f"{task}/{method}": partial(train_case, cases, train, task, method, home, folder / "runs")
        for task, method in cases.PAIRS
    }
    work |= {f"probe/{name}": partial(run_probe, probe) for name, probe in PROBES.items()}
    chosen = {name: one for name, one in work.items() if matches(name, request["only"])}
    results: dict[str, Result] = {"data/files": {"status": 0, "values": file_hashes(home)}}
    with one_verifier():
        for number, (name, one) in enumerate(chosen.items(), start=1):
            began = time.perf_counter()
            results[name] = isolated(one, folder / f"{number}.log")
            ended = results[name].get("error") or results[name].get("not comparable") or ""
            progress = f"[{request['label']}] {number}/{len(chosen)} {name} {time.perf_counter() - began:.1f} s {ended}"
            print(progress.rstrip(), file=sys.stderr, flush=True)
    return results


def matches(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(pattern in name or fnmatch(name, pattern) for pattern in patterns)


def load_cases(root: Path) -> ModuleType:
    """The module of the commit's tests that makes data and recipes."""
    errors = []
    for name in CASE_MODULES:
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            errors.append(f"{name}: {error}")
            continue
        missing = [wanted for wanted in CASE_NAMES if not hasattr(module, wanted)]
        if missing:
            raise Problem(f"tests/{name}.py has no {', '.join(missing)}; the driver needs {', '.join(CASE_NAMES)}")
        require_inside(root, module)
        return module
    raise Problem(f"no module with the training cases can be imported from tests/ ({'; '.join(errors)})")


def require_inside(root: Path, found: Any) -> None:
    """An installed package, or the tests of another checkout, must not be compared instead of the commit."""
    file = Path(inspect.getfile(found)).resolve()
    if not file.is_relative_to(root.resolve()):
        raise Problem(f"{found.__name__} was imported from {file}, which is not in the checkout {root}")


def train_case(
    cases: ModuleType, train: Callable[..., Any], task: str, method: str, home: Path, runs: Path, **changes: Any
) -> Result:
    """Train one case and read what it leaves. ``changes`` are settings that differ from those of the commit."""
    run = runs / f"{task}-{method}"
    with recorded_batches() as batches:
        train(cases.recipe(home, task, method, **changes), run)
    return {
        "batches": batches,
        "history": read_rows(run / "history.jsonl"),
        "weights": {str(path.relative_to(run)): tensors(path) for path in sorted(run.glob("model/**/*.safetensors"))},
        "predictions": {path.stem: read_rows(path) for path in sorted(run.glob("predictions/*.jsonl"))},
        "metrics": json.loads((run / "metrics.json").read_text(encoding="utf-8")),
    }


@contextmanager
def recorded_batches() -> Iterator[list[dict[str, str]]]:
    """Hash every batch that reaches ``transformers.Trainer.training_step``, whatever the package does before that."""
    seen: list[dict[str, str]] = []
    trainer = getattr(sys.modules.get("transformers"), "Trainer", None)
    if trainer is None:
        yield seen
        return
    plain = trainer.training_step

    def recorded(self: Any, model: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
        seen.append({name: digest(_plain(value)) for name, value in inputs.items()})
        return plain(self, model, inputs, *rest, **named)

    trainer.training_step = recorded
    try:
        yield seen
    finally:
        trainer.training_step = plain


def _plain(value: Any) -> Any:
    return [str(value.dtype), value.tolist()] if hasattr(value, "tolist") else value


def read_rows(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def tensors(path: Path) -> dict[str, str]:
    """Name → SHA-256 of type, shape and bytes."""
    from safetensors import deserialize

    return {
        name: hashlib.sha256(f"{one['dtype']} {one['shape']} ".encode() + bytes(one["data"])).hexdigest()
        for name, one in deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
    }


def file_hashes(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def digest(value: Any) -> str:
    """SHA-256 of plain values, NumPy numbers and arrays among them."""
    return hashlib.sha256(json.dumps(value, default=lambda one: one.tolist()).encode()).hexdigest()


def isolated(work: Callable[[], Result], log: Path) -> Result:
    """Run in a fork: no case sees what another left in memory, and one that crashes ends alone.

    Forking after torch was imported is safe on Linux only; elsewhere everything runs in this process.
    """
    if sys.platform != "linux":
        return outcome(work)
    answer = log.with_suffix(".json")
    child = os.fork()
    if child == 0:
        try:
            with log.open("w", encoding="utf-8") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            answer.write_text(json.dumps(outcome(work)), encoding="utf-8")
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    if answer.is_file():
        found: Result = json.loads(answer.read_text(encoding="utf-8"))
        return found
    last = (log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no output"])[-1]
    return {"status": os.waitstatus_to_exitcode(status) or 1, "error": f"ended without a result: {last}"}


def outcome(work: Callable[[], Result]) -> Result:
    """The values with exit status 0, or the status and the error."""
    try:
        return {"status": 0, **work()}
    except NotComparable as error:
        return {"status": 0, "not comparable": str(error)}
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        codes = [getattr(error, name, None) for name in ("exit_code", "code")]
        status = next((code for code in codes if isinstance(code, int)), 1)
        return {"status": status, "error": f"{type(error).__name__}: {error}".splitlines()[0]}


@contextmanager
def one_verifier() -> Iterator[None]:
    """Verify all saved models from one process, in commits that can."""
    try:
        keep = locate(*VERIFIER)
    except NotComparable:
        keep = nullcontext
    with keep():
        yield


def locate(*candidates: str) -> Any:
    """The first of ``module:name`` that exists; after that, any module of the package that defines one of the names."""
    for module, name in (candidate.split(":") for candidate in candidates):
        try:
            found = getattr(importlib.import_module(module), name, None)
        except ModuleNotFoundError as error:
            if not module.startswith(str(error.name)):
                raise  # the module is there, but what it imports is not
            found = None
        if found is not None:
            return found
    names = list(dict.fromkeys(candidate.split(":")[1] for candidate in candidates))
    defined = [(module, name) for name in names for module in defining_modules(name)]
    if len(defined) != 1:
        places = f"; defined in {', '.join(module for module, _ in defined)}" if defined else ""
        raise NotComparable(f"none of {', '.join(candidates)}{places}")
    return getattr(importlib.import_module(defined[0][0]), defined[0][1])


def defining_modules(name: str) -> list[str]:
    root = Path(inspect.getfile(importlib.import_module("hftune"))).parent
    definition = re.compile(rf"^(class|def) {name}\b", re.MULTILINE)
    files = [path for path in root.rglob("*.py") if definition.search(path.read_text(encoding="utf-8"))]
    return [".".join(path.relative_to(root.parent).with_suffix("").parts) for path in sorted(files)]


def fitted(function: Any, values: dict[str, Any]) -> Any:
    """Call with keywords: each value goes under whichever of its names ``a|b|c`` the function has.

    A value whose names start with ``?`` is left out where the function has none of them.
    """
    makers = [vars(base)["__init__"] for base in getattr(function, "__mro__", ()) if "__init__" in vars(base)]
    known = {name for maker in makers or [function] for name in inspect.signature(maker).parameters}
    keywords = {}
    for names, value in values.items():
        name = next((name for name in names.lstrip("?").split("|") if name in known), None)
        if name is not None:
            keywords[name] = value
        elif not names.startswith("?"):
            raise NotComparable(f"{function.__name__} has the parameters {sorted(known)}, and none of {names}")
    return function(**keywords)


# ---- Probes: what depends on seeds and on the number of processes ----


def run_probe(probe: Callable[[], dict[str, str]]) -> Result:
    try:
        return {"values": probe()}
    except (TypeError, AttributeError) as error:  # it is there, but is called in another way
        raise NotComparable(f"the probe does not fit this commit: {error}") from error


def batch_orders() -> dict[str, str]:
    sampler = locate(
        "hftune.training.inputs:RankBatches",
        "hftune.training.sampler:RankBatches",
        "hftune.training.samplers:RankBatches",
    )
    return {**orders(sampler, {}, "by length"), **orders(sampler, {"lengths": None}, "shuffled")}


def token_budget_orders() -> dict[str, str]:
    sampler = locate(
        "hftune.training.inputs:TokenBatches",
        "hftune.training.sampler:TokenBatches",
        "hftune.training.budget:BudgetBatches",
    )
    return orders(sampler, {"tokens|max_tokens|max_tokens_per_batch": 300}, "token budget")


def auxiliary_orders() -> dict[str, str]:
    """The batches of joint training: labeled examples and unlabeled ones."""
    sampler = locate(
        "hftune.training.inputs:PairedBatches",
        "hftune.training.sampler:PairedBatches",
        "hftune.training.companion:PairedBatches",
    )
    auxiliary = locate(
        "hftune.training.inputs:AuxiliaryData",
        "hftune.training.sampler:AuxiliaryData",
        "hftune.training.companion:Companion",
    )
    unlabeled = fitted(
        auxiliary,
        {
            "lengths": _lengths(61, 2),
            "batch_size": 5,
            "?weight": float,
            "?labels": "labels",
            "?items": "items",
            "?weight_as": "weight",
        },
    )
    return orders(sampler, {"companion|auxiliary": unlabeled, "?bucketed": True}, "auxiliary")


def orders(sampler: Any, extra: dict[str, Any], label: str) -> dict[str, str]:
    """Hashes of the batches of all processes in some epochs, for each seed and number of processes."""
    found = {}
    for seed, processes in product(SEEDS, (1, 2, 3)):
        batches = []
        for rank in range(processes):
            settings = {
                "rows|examples|num_examples|num_samples": 103,
                "batch_size|per_device_train_batch_size": 4,
                "accumulation|gradient_accumulation_steps": 2,
                "world_size|num_processes|num_replicas": processes,
                "rank|process_index": rank,
                "seed|data_seed": seed,
                "lengths": _lengths(103, 1),
            }
            one = fitted(sampler, {**settings, **extra})
            for epoch in EPOCHS:
                one.set_epoch(epoch)
                batches.append(list(one))
        found[f"{label}, seed {seed}, {processes} processes"] = digest(batches)
    return found


def masks() -> dict[str, str]:
    """MLM masks of random token ids, for single tokens and for whole words."""
    import numpy as np

    masking = locate("hftune.tasks.masking:Masking")
    draw = random.Random(0)
    rows = [[2, *(draw.randrange(5, 300) for _ in range(length)), 3] for length in _lengths(40, 3)]
    found = {}
    for seed, whole in product(SEEDS, (False, True)):
        mask = masking(seed, 0.15, 4, frozenset(range(5)), np.arange(5, 300))
        words = [[-1, *(place // 2 for place in range(len(row) - 2)), -1] if whole else None for row in rows]
        masked = [mask(row, epoch, number, words[number]) for epoch in EPOCHS for number, row in enumerate(rows)]
        found[f"seed {seed}, {'words' if whole else 'tokens'}"] = digest(masked)
    return found


def masked_texts() -> dict[str, str]:
    """Texts as a masked language model is trained on them: tokenized, one by one or in blocks, then masked."""
    make = locate("hftune.tasks.masking:make_examples")
    dataset = locate("hftune.tasks.masking:MaskedRows")
    masking_for = locate("hftune.tasks.masking:masking_for")
    tokenizer, draw = letter_tokenizer(), random.Random(1)
    texts = [" ".join("".join(draw.choices("abcdefgh", k=4)) for _ in range(length)) for length in _lengths(30, 4)]
    found = {}
    for seed, block, whole in product(SEEDS, (None, 24), (False, True)):
        sizes = {"max_length": 32, "block_size": block, "words|whole_words|whole_word_mask": whole}
        examples = fitted(partial_named(make, tokenizer, texts), sizes)
        rows = dataset(examples, masking_for(tokenizer, 0.15, seed))
        masked = [sorted(rows[epoch, row].items()) for epoch in EPOCHS for row in range(len(rows))]
        found[f"seed {seed}, blocks of {block}, {'words' if whole else 'tokens'}"] = digest(masked)
    return found


def partial_named(function: Any, *values: Any) -> Any:
    """A partial that has a name for messages."""
    made = partial(function, *values)
    made.__name__ = function.__name__  # type: ignore[attr-defined]
    return made


def letter_tokenizer() -> Any:
    """WordPiece over single letters: every word has several tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    special["mask_token"] = "[MASK]"
    tokens = [*special.values(), *"abcdefgh", *(f"##{letter}" for letter in "abcdefgh")]
    inner = Tokenizer(models.WordPiece({token: number for number, token in enumerate(tokens)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [(name, tokens.index(name)) for name in ("[CLS]", "[SEP]")]
    inner.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return PreTrainedTokenizerFast(tokenizer_object=inner, **special)


def corrupted_spans() -> dict[str, str]:
    """Documents with their spans taken out, in training and (the last epoch) for scoring."""
    import numpy as np

    corruption = locate("hftune.tasks.corruption:Corruption")
    plan, corrupted = (locate(f"hftune.tasks.corruption:{name}") for name in ("plan", "corrupted"))
    sizes = np.array(_lengths(50, 5))
    documents = [np.arange(10, 10 + size) for size in sizes]
    found = {}
    for seed, spans, anywhere in product(SEEDS, (1, 3), (False, True)):
        settings, rows = corruption(4, 40, 0.3, spans, anywhere), []
        for epoch in (*EPOCHS, 2**32 - 1):
            drawn = plan(sizes, settings, seed, epoch)
            rows += [corrupted(document, drawn, row, 1) for row, document in enumerate(documents)]
        found[f"seed {seed}, {spans} spans, {'anywhere' if anywhere else 'start'}"] = digest(rows)
    return found


def exit_codes() -> dict[str, str]:
    """The exit codes of requests that are refused, and of a few that only read."""
    main = locate("hftune.cli:main")
    found = {}
    for line in REQUESTS:
        try:
            main(line.split())
            code: Any = 0
        except SystemExit as ended:
            code = ended.code or 0
        found[f"hftune {line}"] = f"{line}: exit code {code}"
    return found


def _lengths(count: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randint(8, 60) for _ in range(count)]


PROBES: dict[str, Callable[[], dict[str, str]]] = {
    "batch order": batch_orders,
    "batch order, token budget": token_budget_orders,
    "batch order, auxiliary": auxiliary_orders,
    "MLM masks": masks,
    "MLM texts": masked_texts,
    "span corruption": corrupted_spans,
    "exit codes": exit_codes,
}


def main(request_file: str) -> int:
    """Read a request, write the answer. Exit code 2: this commit can't be run."""
    request = json.loads(Path(request_file).read_text(encoding="utf-8"))
    try:
        results = drive(request)
    except (Problem, NotComparable) as error:
        print(f"error: {request['label']}: {error}", file=sys.stderr)
        return 2
    Path(request["answer"]).write_text(json.dumps(results), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
