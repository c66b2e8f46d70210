"""``hftune bench``: the speed of this machine's devices.

hftune bench devices                     # the same 50 training steps with every number of threads, dtype and device
hftune bench devices --steps 10 --json
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hftune.cli import terminal
from hftune.cli.options import Json, command_group
from hftune.errors import HftuneError

app = command_group("Measure the speed of this machine.")

Steps = Annotated[int, typer.Option("--steps", min=1, help="Training steps on each device.")]
Output = Annotated[
    Path, typer.Option("--output", "-o", metavar="FOLDER", help="Folder for devices.json and devices.png.")
]
DEFAULT_FOLDER = Path("devices")


@app.callback()
def bench() -> None:
    """Measure the speed of this machine. Comparisons with other tools are in benchmarks/ of the repository."""


@app.command("devices")
def run_devices(steps: Steps = 50, output: Output = DEFAULT_FOLDER, as_json: Json = False) -> None:
    """Time the same training steps on every device, with each number of threads and dtype, compiled and not."""
    from hftune.pipeline import bench
    from hftune.progress import quiet_libraries

    if output.exists() and not output.is_dir():
        raise HftuneError(f"--output {output} is a file", hint="name a folder for devices.json and devices.png")
    quiet_libraries()
    machine, (setups, notes), speeds = bench.describe_machine(), bench.device_setups(), []
    for line in notes:
        terminal.note(line)
    for number, setup in enumerate(setups, start=1):
        terminal.note(f"{number} of {len(setups)}: {setup}")
        speeds.append(bench.measure(setup, steps))
        # Written after each setup: a run that is interrupted keeps what it measured.
        plot = bench.write_device_report(output, machine, speeds, notes)
    if as_json:
        terminal.show_json({"machine": machine, "notes": notes, "results": [speed.as_dict() for speed in speeds]})
        return
    table = terminal.table(*bench.COLUMNS)
    for speed in speeds:
        table.add_row(*map(terminal.visible, speed.cells()))
    terminal.out().print(table)
    terminal.say(str(plot))
