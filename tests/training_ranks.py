"""Run by ``test_training_ranks.py`` under torchrun: the shared tiny training, on as many processes as there are."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch.distributed as dist
from training_case import Case, SignalAt, tiny_bert

from hftune.errors import HftuneError
from hftune.training import fit


def main() -> None:
    folder, settings, resume = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
    stop = settings.pop("stop", None)
    rows, dropout = settings.pop("rows"), settings.pop("dropout", 0.0)
    case = Case(folder, {"device": "cpu", **settings}, train_rows=rows)
    trainer = case.trainer(tiny_bert(dropout))
    if stop and trainer.args.process_index == 1:
        trainer.add_callback(SignalAt(stop))
    try:
        fitted = fit(trainer, resume=resume == "resume")
        outcome = {"selection": fitted.selection(), "steps": fitted.steps, "world": trainer.args.world_size}
    except HftuneError as error:
        outcome = {"error": error.message, "code": error.exit_code}
    if trainer.args.process_index == 0:
        (folder / "outcome.json").write_text(json.dumps(outcome))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
