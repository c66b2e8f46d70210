"""Every task and tuning method as a recipe that trains in a second, and what is left of a run as plain values.

Used by the resume matrix (``test_resume_matrix.py``) and other tests of crashes, in this process or in others.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from tiny import rows, write_csv
from tiny_teacher import write_teacher
from training_case import SignalAt

from hftune.errors import Interrupted
from hftune.files import read_json, read_jsonl
from hftune.methods import METHODS as TABLE
from hftune.pipeline.train import assemble
from hftune.portability import WARNING_SIGNAL
from hftune.progress import ProgressReporter
from hftune.recipe import Recipe, load_recipe
from hftune.runs.directory import RunDir
from hftune.training.checkpoints import WEIGHTS, save_weights
from hftune.training.fit import fit
from hftune.training.launch import is_main_process

WORDS = ("the", "cat", "dog", "sat", "ran", "on", "under", "mat", "tree", "and", "slept", "barked", "all", "day")
BERT = {"model.vocab_size": 300}
GPT = {
    "model.model_name_or_path": "scratch:mingpt",
    "model.num_hidden_layers": 1,
    "model.num_attention_heads": 2,
    "model.hidden_size": 16,
    "model.dropout": 0.1,
}
FEW = {"method.num_virtual_tokens": 4}
TRAINING: dict[str, Any] = {
    "train.num_train_epochs": 2,
    "train.per_device_train_batch_size": 8,
    "train.learning_rate": 5e-3,
    "train.logging_steps": 2,
    "train.save_total_limit": 99,
}
"""43 rows: 6 steps per epoch, the last of 3 rows; 12 in all."""
TASKS: dict[str, dict[str, Any]] = {
    "classify": {"data.dataset_name": "labeled", "data.max_seq_length": 16, **BERT},
    "joint": {"data.dataset_name": "labeled", "data.max_seq_length": 16, "data.unlabeled": "lines.txt", **BERT},
    "mlm": {"data.corpus": "lines.txt", "data.validation_size": 0.2, "task.max_seq_length": 16, **BERT},
    "distill_encoder": {
        **{"data.corpus": "lines.txt", "data.validation_size": 0.2, "task.max_seq_length": 16},
        **{"task.teacher": "teacher", "task.max_words": 6, **BERT},
    },
    "span": {"data.corpus": "lines.txt", "data.validation_size": 0.2, "model.block_size": 32, **GPT},
    "clm": {"data.corpus": "text", "model.block_size": 16, "model.vocab_size": 300, "task.max_new_tokens": 4, **GPT},
    "answer": {"data.dataset_name": "questions", "model.block_size": 48, **GPT},
}
PATHS = ("data.dataset_name", "data.corpus", "data.unlabeled", "task.teacher")
"""Settings that name what ``write_data`` writes."""
METHODS: dict[str, dict[str, Any]] = {
    "full": {},
    "muon": {"train.optim": "muon"},
    "head": {"method.kind": "head"},
    "head-uncached": {"method.kind": "head", "method.cache_features": False},
    "prefix": {"method.kind": "prefix", **FEW},
    "prefix-projected": {"method.kind": "prefix", "method.prefix_projection": True, **FEW},
    "prompt": {"method.kind": "prompt", **FEW},
    "ptuning": {"method.kind": "ptuning", **FEW},
    "lora": {"method.kind": "lora"},
    "ia3": {"method.kind": "ia3"},
    "bitfit": {"method.kind": "bitfit"},
}
METHODS |= {kind: {"method.kind": kind} for kind in TABLE if kind not in METHODS}
EVERY_TASK = ("full", "muon")
MORE = {"classify": tuple(name for name in METHODS if name not in EVERY_TASK), "clm": ("lora", "ia3", "bitfit")}
"""Further methods; a task refuses those that are not named here."""
RESTORED = "restored"
"""Where a session that comes to the end leaves the best weights."""
PAIRS = [(task, method) for task in TASKS for method in (*EVERY_TASK, *MORE.get(task, ()))]


def sentences(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(4, 9))) for _ in range(count)]


def write_data(home: Path) -> Path:
    """What the recipes read, once for all."""
    (home / "labeled").mkdir()
    for seed, split in enumerate(("train", "validation", "test")):
        write_csv(home / "labeled" / f"{split}.csv", list(rows(43 if seed == 0 else 16, seed)), ("label", "text"))
    (home / "lines.txt").write_text("\n".join(sentences(54, 1)) + "\n")
    write_teacher(home / "teacher")
    (home / "text").mkdir()
    for split, count in (("train", 80), ("valid", 20), ("test", 20)):
        (home / "text" / f"{split}.txt").write_text("\n".join(sentences(count, len(split))) + "\n")
    (home / "questions").mkdir()
    for split, count, seed in (("train", 43, 5), ("validation", 10, 3), ("test", 10, 4)):
        draw = random.Random(seed)
        asked = [f"Where was {draw.choice(WORDS)} {number} born?\t{draw.choice(WORDS)}" for number in range(count)]
        (home / "questions" / f"{split}.tsv").write_text("\n".join(asked) + "\n")
    return home


def recipe(home: Path, task: str, method: str = "full", **changes: Any) -> Recipe:
    settings = {**TASKS[task], **TRAINING, **METHODS[method], **changes}
    for key in PATHS:
        if key in settings:
            settings[key] = str(home / settings[key])
    if "data.corpus" in settings:
        settings["data.dataset_name"] = settings.pop("data.corpus")
    return load_recipe(None, settings, task=task)


def train_session(
    wanted: Recipe, folder: Path, *, stop: int | None = None, resume: bool = False, lost: str = ""
) -> None:
    """Train from the beginning or from the last checkpoint, to the end or until a signal in one step.

    Args:
        wanted: The recipe.
        folder: Of the run.
        stop: The step in which the signal comes, to the last process where there are several.
        resume: Whether to resume.
        lost: What the resumed run forgets: rng or optimizer. For negative controls.
    """
    folder.mkdir(parents=True, exist_ok=True)
    trainer = assemble(wanted, RunDir(folder), ProgressReporter()).trainer
    if stop is not None and trainer.args.process_index == trainer.args.world_size - 1:
        trainer.add_callback(SignalAt(stop, WARNING_SIGNAL))
    if lost == "rng":
        trainer._load_rng_state = lambda checkpoint: None
    if lost == "optimizer":
        trainer._load_optimizer_and_scheduler = lambda checkpoint: None
    try:
        fit(trainer, resume=resume)
    except Interrupted as stopped:
        assert stop is not None and stopped.exit_code == 128 + WARNING_SIGNAL
        assert trainer.state.global_step == stop
    else:
        assert stop is None, "the signal was not heard"
        if is_main_process():
            save_weights(trainer.model, folder / RESTORED)


def in_rank(rank: int, world: int, port: int, work: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Do something as one of several processes that train together."""
    import torch.distributed as dist

    reported = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in reported.items()}, MASTER_ADDR="127.0.0.1")
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # the store is open already: see forks.start_ranks
    torch.set_num_threads(1)
    work(*args, **kwargs)
    if dist.is_initialized():
        dist.destroy_process_group()


def remains(folder: Path) -> dict[str, Any]:
    """Everything that a run leaves and that must not depend on how often it was interrupted."""
    last = max((folder / "checkpoints").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    progress = read_json(last / "progress.json")
    state = read_json(last / "trainer_state.json")
    found: dict[str, Any] = {
        "step": last.name,
        "weights": load_file(last / WEIGHTS),
        "history": [
            {key: value for key, value in row.items() if key != "seconds"}
            for row in read_jsonl(folder / "history.jsonl")
        ],
        "progress": {key: progress[key] for key in ("loss", "loss_components", "logged", "finished")},
        "best": (state["best_global_step"], state["best_metric"]),
    }
    for file in sorted([*last.glob("*.pt"), *last.glob("rng_state*.pth")]):
        found[file.name] = torch.load(file, weights_only=False)
    if (folder / RESTORED).is_dir():
        found[RESTORED] = load_file(folder / RESTORED / WEIGHTS)
    return found


def differences(left: Any, right: Any, where: str = "") -> list[str]:
    """Where two sets of values are not equal bit for bit."""
    if isinstance(left, dict) and isinstance(right, dict):
        keys = sorted({*left, *right}, key=str)
        return [
            reported
            for key in keys
            for reported in (
                differences(left[key], right[key], f"{where}/{key}")
                if key in left and key in right
                else [f"{where}/{key}"]
            )
        ]
    if isinstance(left, list | tuple) and isinstance(right, list | tuple) and len(left) == len(right):
        pairs = enumerate(zip(left, right, strict=True))
        return [reported for number, pair in pairs for reported in differences(*pair, f"{where}/{number}")]
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return [] if left.dtype == right.dtype and torch.equal(left, right) else [where]
    same = np.array_equal(left, right) if isinstance(left, np.ndarray) else left == right
    return [] if type(left) is type(right) and same else [where]
