"""The ``train`` section: how long, how fast, how often it is looked at.

``hftune.training.arguments`` turns it into ``TrainingArguments``, and nothing else does.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from hftune.config.section import Section


class TrainSection(Section):
    """Optimization, evaluation rhythm, precision and seeds."""

    epochs: float | None = Field(default=None, gt=0.0)
    """Passes over the training rows; where the recipe says none, 3 for pretrained weights and 8 for fresh ones."""
    max_steps: int | None = Field(default=None, ge=1)
    """Stop after this many updates, whatever epochs says."""
    batch_size: int = Field(default=32, ge=1)
    """Rows in one forward pass on one device."""
    tokens_per_batch: int | None = Field(default=None, ge=1)
    """At most so many tokens, padding among them, in one forward pass on one device, beside at most batch_size rows."""
    accumulation: int = Field(default=1, ge=1)
    """Forward passes summed into one update."""
    auto_batch: bool = False
    """Lower batch_size until the longest batch fits into memory; accumulation rises, so that updates stay the same."""
    eval_batch_size: int = Field(default=64, ge=1)
    """Rows in one forward pass of an evaluation on one device."""
    learning_rate: float | None = Field(default=None, gt=0.0)
    """Peak learning rate; chosen by the method and by whether weights are fresh where not given."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """The optimizer: AdamW for everything, or Muon for the matrices of the blocks and AdamW for the rest."""
    momentum: float | None = Field(default=None, ge=0.0, lt=1.0)
    """Muon's momentum; 0.95 where not given."""
    schedule: Literal["linear", "cosine", "constant", "hold"] = "linear"
    """What the learning rate does after the warm-up; hold keeps it, then lets it fall to zero in a line."""
    decay: float | None = Field(default=None, gt=0.0)
    """How long hold lets it fall: a share of all updates when at most 1, else a number of them; 0.6 where not given."""
    warmup: float = Field(default=0.1, ge=0.0)
    """Warm-up: a share of all updates when below 1, else a number of updates."""
    weight_decay: float = Field(default=0.01, ge=0.0)
    """Weight decay; norms and biases are left out, under Muon embeddings too."""
    max_grad_norm: float = Field(default=1.0, ge=0.0)
    """Gradients are clipped to this norm; 0 does not clip."""
    eval_steps: int | None = Field(default=None, ge=1)
    """Evaluate and save every so many updates; once an epoch where not given."""
    patience: int | None = Field(default=None, ge=1)
    """Stop early after this many evaluations without a better validation score."""
    log_steps: int = Field(default=10, ge=1)
    """Updates between two lines of history."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Checkpoints kept on disk, the best one always among them."""
    bucket_by_length: bool = True
    """Batch rows of like length, so that little is computed on padding."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Number format of the forward pass; auto takes bf16 on a GPU that has it, else fp32."""
    fast_dropout: bool = True
    """On a CPU, draw dropout masks in a cheaper way with the same distribution."""
    skip_unread: bool = True
    """In a classifier's last layer, compute only the token that the head reads; what comes out is the same."""
    compile: bool = False
    """Compile the model with torch.compile."""
    gradient_checkpointing: bool = False
    """Compute activations twice to hold fewer of them."""
    device: Literal["auto", "cpu"] = "auto"
    """Where to run: the accelerator there is, or the CPU."""
    workers: int = Field(default=0, ge=0)
    """Processes that prepare batches; 0 prepares them in the main process."""
    seed: int = Field(default=1, ge=0, lt=2**32)
    """Seed of fresh weights, batch order, dropout and masks."""
    report_to: tuple[str, ...] = ()
    """Trackers beside history.jsonl, as Trainer names them: tensorboard, trackio, wandb …"""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Any other TrainingArguments field by its own name."""

    @model_validator(mode="after")
    def _refuse_what_would_be_ignored(self) -> TrainSection:
        """A setting of an optimizer or a schedule that was not chosen is a mistake of whoever wrote it."""
        if self.momentum is not None and self.optimizer != "muon":
            raise ValueError("momentum is Muon's; set train.optimizer to muon, or leave it out")
        if self.tokens_per_batch is not None and self.auto_batch:
            raise ValueError("auto_batch divides batches by rows, tokens_per_batch bounds them by tokens; choose one")
        if self.decay is not None and self.schedule != "hold":
            raise ValueError("decay is for the schedule hold; set train.schedule to hold, or leave it out")
        return self
