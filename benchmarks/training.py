"""Training with hftune compared with transformers' Trainer and peft, on the same examples and the same model.

python benchmarks/training.py                     # every case
python benchmarks/training.py head lora --quick   # some cases, tiny models: checks that they run

classify-*    A classifier of TinyBERT's shape with dropout, batch size 32, on texts as long as SST-5's sentences or as
              whole reviews. Trainer runs once padded to max_length, as run_classification does, and once padded to the
              longest example of each batch. hftune runs a whole epoch because its batches differ in length; a few of
              Trainer's equal batches are enough. Work is counted in tokens without padding.
head          20 epochs with a frozen encoder, from the files to the trained head: hftune caches the encoder's output.
              Both evaluate after each epoch; hftune also writes a checkpoint.
lora, prefix  The same adapter by hftune and by peft under Trainer: once with random batches padded to the longest
              example, once with hftune's batches of similar length, so that only the step differs.
pretraining   minGPT with span corruption against GPT-2 of the same shape under Trainer, padded to the block, with
              GPT-2's dropout and without.
mfu           A compiled minGPT against one large matrix product: model FLOPs per second as a share of the CPU's peak.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import Case, Contestant, Goal, Scale, Stopwatch, Timing, main, temporary_cache, timed
from peft import LoraConfig, PeftModel, PrefixTuningConfig, TaskType, get_peft_model
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, Trainer
from workloads import (
    Prepared,
    classify_recipe,
    real_tokens,
    stock_trainer,
    through_hftune,
    through_trainer,
    write_dataset,
)

from hftune.pipeline.bench import flops_per_token
from hftune.pipeline.train import assemble
from hftune.progress import ProgressReporter
from hftune.recipe import Recipe, load_recipe
from hftune.runs.directory import RunDir
from hftune.training.fit import fit
from hftune.training.inputs import epoch_order

# ---- classifiers ----

PADDED, DYNAMIC = "Trainer, padded to max_length", "Trainer, dynamic padding"


def classifiers(
    folder: Path, scale: Scale, *, kind: str, examples: int, steps: int, max_length: int
) -> Mapping[str, Contestant]:
    data = write_dataset(folder / "data", kind, train=scale.of(examples, least=64))
    recipe = classify_recipe(data, scale, max_length)
    few = classify_recipe(data, scale, max_length, **{"train.max_steps": scale.of(steps, least=1)})
    prepared = Prepared(recipe)

    def stock(**padding: Any) -> Timing:
        collate = partial(prepared.tokenizer.pad, return_tensors="pt", **padding)
        return through_trainer(
            few, folder, model=prepared.model(), examples=prepared.inputs.train, collate=collate, count=real_tokens
        )

    return {
        "hftune": lambda: through_hftune(recipe, folder, count=real_tokens),
        PADDED: lambda: stock(padding="max_length", max_length=max_length),
        DYNAMIC: stock,
    }


# ---- head-only tuning ----

HEAD_EPOCHS = 20
FROZEN = "Trainer, encoder frozen"


def heads(folder: Path, scale: Scale) -> Mapping[str, Contestant]:
    examples = scale.of(1500, least=40)
    data = write_dataset(folder / "data", "sentences", train=examples, validation=scale.of(500, least=20))
    recipe = classify_recipe(data, scale, 128, **{"method.kind": "head", "train.num_train_epochs": HEAD_EPOCHS})

    def ours() -> Timing:
        with tempfile.TemporaryDirectory(dir=folder) as run, temporary_cache(Path(run) / "cache"):
            train = lambda: fit(assemble(recipe, RunDir(Path(run)), ProgressReporter()).trainer)  # noqa: E731
            return timed(examples * HEAD_EPOCHS, train)

    def stock() -> None:
        prepared = Prepared(recipe)
        model = prepared.model()
        model.base_model.requires_grad_(False)
        inputs = prepared.inputs
        stock_trainer(
            recipe,
            folder,
            model=model,
            train_dataset=inputs.train,
            eval_dataset=inputs.validation,
            data_collator=inputs.collator,
        ).train()

    return {"hftune": ours, FROZEN: lambda: timed(examples * HEAD_EPOCHS, stock)}


# ---- adapters ----

PEFT = "peft under Trainer, dynamic padding"
PEFT_SORTED = "peft under Trainer, batches of similar length"


class SameOrderTrainer(Trainer):  # type: ignore[misc]
    """Trainer with hftune's batches of similar length."""

    def get_train_dataloader(self) -> DataLoader[Any]:
        data: Any = self.train_dataset
        size = self.args.per_device_train_batch_size
        order = epoch_order(self.args.seed, 0, len(data), size, np.asarray(data.lengths)).tolist()
        batches = [order[start : start + size] for start in range(0, len(order), size)]
        return DataLoader(data, batch_sampler=batches, collate_fn=self.data_collator)


def with_adapter(prepared: Prepared) -> PeftModel:
    """The model with peft's own adapter, configured as in the recipe."""
    method: Any = prepared.recipe.method
    if method.kind == "lora":
        config: Any = LoraConfig(
            task_type=TaskType.SEQ_CLS, r=method.r, lora_alpha=method.lora_alpha, lora_dropout=method.lora_dropout
        )
    else:
        config = PrefixTuningConfig(task_type=TaskType.SEQ_CLS, num_virtual_tokens=method.num_virtual_tokens)
    return get_peft_model(prepared.model(), config)


def adapters(folder: Path, scale: Scale, *, kind: str) -> Mapping[str, Contestant]:
    data = write_dataset(folder / "data", "sentences", train=scale.of(640, least=64))
    recipe = classify_recipe(data, scale, 128, **{"method.kind": kind})
    prepared = Prepared(recipe)

    def stock(trainer: type[Trainer]) -> Timing:
        return through_trainer(
            recipe,
            folder,
            kind=trainer,
            model=with_adapter(prepared),
            examples=prepared.inputs.train,
            collate=partial(prepared.tokenizer.pad, return_tensors="pt"),
            count=real_tokens,
        )

    return {
        "hftune": lambda: through_hftune(recipe, folder, count=real_tokens),
        PEFT: lambda: stock(Trainer),
        PEFT_SORTED: lambda: stock(SameOrderTrainer),
    }


# ---- pretraining ----

BLOCK = 128
SKIPPED = 2  # steps at the start of a turn that only warm up
GPT2, GPT2_NO_DROPOUT = "GPT-2 under Trainer, padded", "GPT-2 under Trainer, padded, no dropout"
MATMUL, MATMUL_SIDE, MATMUL_SECONDS = "one large fp32 matrix product", 1024, 2.0


def span_recipe(scale: Scale, **settings: Any) -> Recipe:
    """The default pretraining for a few steps."""
    steps = SKIPPED + scale.of(4, least=1)
    defaults = {
        "task.kind": "span",
        "data.dataset_name": "births",
        "model.model_name_or_path": f"scratch:{scale.decoder}",
        "train.per_device_train_batch_size": scale.of(64, least=4),
        "train.max_steps": steps,
        "train.eval_steps": steps,
        "train.use_cpu": True,
    }
    return load_recipe(None, defaults | settings)


def lm_tokens(batch: Mapping[str, Any]) -> int:
    """Tokens of a batch without padding; the first token of an example is not a label."""
    return int((batch["labels"] != -100).sum()) + len(batch["labels"])


def padded_to_block(prepared: Prepared) -> Callable[[Any], dict[str, torch.Tensor]]:
    """A collator that pads every batch to the block, as simple scripts do."""
    pad = int(prepared.tokenizer.pad_token_id)

    def collate(examples: Any) -> dict[str, torch.Tensor]:
        short = prepared.inputs.collator(examples)
        missing = (0, BLOCK - short["input_ids"].shape[1])
        ids = torch.nn.functional.pad(short["input_ids"], missing, value=pad)
        labels = torch.nn.functional.pad(short["labels"], missing, value=-100)
        return {"input_ids": ids, "attention_mask": (ids != pad).long(), "labels": labels}

    return collate


def pretrainings(folder: Path, scale: Scale) -> Mapping[str, Contestant]:
    recipe = span_recipe(scale)
    prepared = Prepared(recipe)
    examples = [prepared.inputs.train[0, row] for row in range(len(prepared.inputs.train_lengths))]

    def stock(**dropout: float) -> Timing:
        ours = prepared.model().config
        config = GPT2Config(
            vocab_size=ours.vocab_size,
            n_positions=BLOCK,
            n_embd=ours.hidden_size,
            n_layer=ours.num_hidden_layers,
            n_head=ours.num_attention_heads,
            **dropout,
        )
        torch.manual_seed(recipe.train.seed)
        return through_trainer(
            recipe,
            folder,
            model=GPT2LMHeadModel(config),
            examples=examples,
            collate=padded_to_block(prepared),
            count=lm_tokens,
            skipped=SKIPPED,
        )

    return {
        "hftune": lambda: through_hftune(recipe, folder, count=lm_tokens, skipped=SKIPPED),
        GPT2: stock,
        GPT2_NO_DROPOUT: lambda: stock(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0),
    }


def utilization(folder: Path, scale: Scale) -> Mapping[str, Contestant]:
    recipe = span_recipe(scale, **{"train.torch_compile": True})
    model = Prepared(recipe).model()

    def flops(batch: Mapping[str, Any]) -> int:
        tokens = lm_tokens(batch)
        return round(tokens * flops_per_token(model, tokens / len(batch["labels"])))

    def product() -> Timing:
        left, watch, done = torch.rand(MATMUL_SIDE, MATMUL_SIDE), Stopwatch(), 0
        left @ left
        while watch.wall < MATMUL_SECONDS:
            with watch.running():
                left @ left
            done += 1
        return watch.timing(done * 2 * MATMUL_SIDE**3)

    ours = lambda: through_hftune(recipe, folder, count=flops, skipped=SKIPPED)  # noqa: E731
    return {"hftune, compiled": ours, MATMUL: product}


CLASSIFIER_GOALS = (Goal(PADDED, least=2.5), Goal(DYNAMIC, least=1.5))
ADAPTER_GOALS = (Goal(PEFT, least=1.3), Goal(PEFT_SORTED))
CASES = (
    Case(
        "classify-sentences",
        "classify training, lengths as in SST-5",
        "tokens",
        CLASSIFIER_GOALS,
        partial(classifiers, kind="sentences", examples=1600, steps=6, max_length=128),
    ),
    Case(
        "classify-reviews",
        "classify training, lengths as in reviews",
        "tokens",
        CLASSIFIER_GOALS,
        partial(classifiers, kind="reviews", examples=480, steps=4, max_length=256),
        repeats=2,
    ),
    Case(
        "head",
        "head-only tuning, 20 epochs, from the files to the trained head",
        "examples",
        (Goal(FROZEN, least=15),),
        heads,
        repeats=1,
    ),
    Case("lora", "LoRA step", "tokens", ADAPTER_GOALS, partial(adapters, kind="lora")),
    Case("prefix", "prefix step", "tokens", ADAPTER_GOALS, partial(adapters, kind="prefix")),
    Case(
        "pretraining",
        "minGPT pretraining, tokens without padding",
        "tokens",
        (Goal(GPT2, least=3), Goal(GPT2_NO_DROPOUT)),
        pretrainings,
    ),
    Case(
        "mfu",
        "minGPT pretraining, compiled, share of the fp32 peak",
        "FLOPs",
        (Goal(MATMUL, least=0.6),),
        utilization,
        warm_ups=1,
    ),
)

if __name__ == "__main__":
    main(CASES)
