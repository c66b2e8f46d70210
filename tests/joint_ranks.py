"""Run by ``test_joint_training.py`` under torchrun: the tiny joint training, on as many processes as there are."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch.distributed as dist
from joint_case import joint_bert, joint_case

from hftune.training import fit


def main() -> None:
    folder, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
    rows, batch = settings.pop("rows"), settings.pop("mlm_batch_size")
    case = joint_case(folder, {"device": "cpu", **settings}, rows=rows, mlm_batch_size=batch, weight=lambda done: 0.5)
    trainer = case.trainer(joint_bert(0.0))
    fitted = fit(trainer)
    if trainer.args.process_index == 0:
        outcome = {"steps": fitted.steps, "world": trainer.args.world_size}
        (folder / "outcome.json").write_text(json.dumps(outcome))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
