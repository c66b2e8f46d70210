"""Several hftune commands, one by one, in the processes of one launch: importing takes longer than any of them.

Run by the launch tests as ``accelerate launch … launch_worker.py FOLDER``; ``FOLDER/jobs.json`` lists the commands, and
the main process writes the exit code of each to ``FOLDER/codes.json``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

RANK = int(os.environ.get("RANK", "0"))  # a launch of one process sets none


def main() -> None:
    import blank_figures

    from hftune.pipeline.verify import verification_server

    blank_figures.install()
    folder = Path(sys.argv[1])
    jobs, codes = json.loads((folder / "jobs.json").read_text()), []
    os.chdir(folder)
    with verification_server() if RANK == 0 else contextlib.nullcontext():
        for number, job in enumerate(jobs):
            interfere(job)
            # Each job is the first to fail in a place of its own.
            mine = folder / "errors" / str(number) / str(RANK)
            mine.mkdir(parents=True)
            os.environ["TORCHELASTIC_ERROR_FILE"] = str(mine / "error.json")
            codes.append(run(job["arguments"]))
            if RANK == 0:
                (folder / "codes.json").write_text(json.dumps(codes))
    sys.exit(codes[-1])


def run(arguments: list[str]) -> int:
    from hftune.cli import commands as cli

    try:
        cli.run(arguments)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def interfere(job: dict[str, Any]) -> None:
    """Let process 1 get a signal, or fail, in the middle of a step."""
    from training_case import SignalAt
    from transformers import TrainerCallback

    from hftune.pipeline import train as pipeline
    from hftune.training.fit import fit as really_fit

    class Fails(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == job["fails"]:
                raise ValueError("process 1 has had enough")

    def fit(trainer: Any, resume: Any = False) -> Any:
        if RANK == 1 and "stops" in job:
            trainer.add_callback(SignalAt(job["stops"], getattr(signal, job.get("by", "SIGUSR1"))))
        if RANK == 1 and "fails" in job:
            trainer.add_callback(Fails())
        return really_fit(trainer, resume)

    pipeline.fit = fit  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
