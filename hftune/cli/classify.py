"""``hftune classify``: fine-tune a classifier on single texts or pairs.

hftune classify
hftune classify --model huawei-noah/TinyBERT_General_4L_312D --data reviews.csv --seeds 1,2,3
"""

from __future__ import annotations

from hftune.cli import options
from hftune.cli.train import run_training

DEFAULT_RECIPE = "classify/reviews"


def classify(
    recipe: options.RecipeName = None,
    model: options.Model = None,
    data: options.Data = None,
    method: options.Method = None,
    merge: options.Merge = None,
    labels: options.Labels = None,
    max_length: options.MaxLength = None,
    batch_size: options.BatchSize = None,
    lr: options.LearningRate = None,
    epochs: options.Epochs = None,
    eval_steps: options.EvalSteps = None,
    seed: options.Seed = None,
    seeds: options.Seeds = None,
    sets: options.Set = None,
    text_column: options.TextColumn = None,
    pair_column: options.PairColumn = None,
    label_column: options.LabelColumn = None,
    trust_remote_code: options.TrustRemoteCode = None,
    allow_pickle: options.AllowPickle = None,
    output: options.Output = None,
    push_to_hub: options.PushToHub = None,
    resume: options.Resume = False,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
) -> None:
    """Fine-tune a classifier on single texts or pairs: best checkpoint on dev, then test."""
    run_training(
        recipe,
        sets,
        flags={
            "model": model,
            "data": data,
            "method": method,
            "merge": merge,
            "labels": labels,
            "max_length": max_length,
            "batch_size": batch_size,
            "lr": lr,
            "epochs": epochs,
            "eval_steps": eval_steps,
            "seed": seed,
            "text_column": text_column,
            "pair_column": pair_column,
            "label_column": label_column,
            "trust_remote_code": trust_remote_code,
            "allow_pickle": allow_pickle,
            "push_to_hub": push_to_hub,
        },
        task="classify",
        default=DEFAULT_RECIPE,
        seeds=seeds,
        output=output,
        resume=resume,
        dry_run=dry_run,
        as_json=as_json,
    )
