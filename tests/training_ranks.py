"""Run by ``test_training_ranks.py`` under torchrun: the shared tiny training, on as many processes as there are."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch.distributed as dist
from training_case import Case, tiny_bert

from hftune.training import fit


def main() -> None:
    folder, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
    rows, dropout = settings.pop("rows"), settings.pop("dropout", 0.0)
    case = Case(folder, {"device": "cpu", **settings}, train_rows=rows)
    trainer = case.trainer(tiny_bert(dropout))
    fitted = fit(trainer)
    outcome = {"selection": fitted.selection(), "steps": fitted.steps, "world": trainer.args.world_size}
    if trainer.args.process_index == 0:
        (folder / "outcome.json").write_text(json.dumps(outcome))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
