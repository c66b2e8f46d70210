"""``hftune bench``: the speed of this machine's devices.

hftune bench devices                     # the same 50 training steps with every number of threads, dtype and device
hftune bench devices --steps 10 --json
hftune bench devices --model prajjwal1/bert-tiny --data reviews --max-train-samples 200 --devices cpu
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from hftune.cli import terminal
from hftune.cli.options import RUN, Json, command_group, option, settings_command
from hftune.errors import HftuneError

app = command_group("Measure the speed of this machine.")

Steps = Annotated[int, option(RUN, "N", "Training steps on each device.", "--steps", min=1)]
Devices = Annotated[str | None, option(RUN, "NAME,…", "Only these devices: cpu, cuda or mps.", "--devices")]
Output = Annotated[Path, option(RUN, "FOLDER", "Folder for devices.json and devices.png.", "--output", "-o")]
DEFAULT_FOLDER = Path("devices")


@app.callback()
def bench() -> None:
    """Measure the speed of this machine. Comparisons with other tools are in benchmarks/ of the repository."""


@settings_command(task="classify", takes=("data", "model", "train.per_device_train_batch_size", "train.seed"))
def run_devices(
    settings: dict[str, Any],
    steps: Steps = 50,
    devices: Devices = None,
    output: Output = DEFAULT_FOLDER,
    as_json: Json = False,
) -> None:
    """Time the same training steps on every device, with each number of threads and dtype, compiled and not.

    The steps are those of a minGPT on random tokens; with a model or data, those of that classifier on its examples.
    """
    from hftune.pipeline import bench
    from hftune.pipeline.request import resolve_recipe
    from hftune.progress import quiet_libraries

    if output.exists() and not output.is_dir():
        raise HftuneError(f"--output {output} is a file", hint="name a folder for devices.json and devices.png")
    quiet_libraries()
    chosen = [name.strip() for name in (devices or "").split(",") if name.strip()]
    machine, (setups, notes), speeds = bench.describe_machine(), bench.device_setups(chosen), []
    with terminal.RunProgress() as progress:
        recipe = resolve_recipe(None, settings, task="classify") if settings else None
        workload = bench.random_tokens() if recipe is None else bench.classifier(recipe, progress)
    terminal.note(workload.name)
    for line in notes:
        terminal.note(line)
    for number, setup in enumerate(setups, start=1):
        terminal.note(f"{number} of {len(setups)}: {setup}")
        speeds.append(bench.measure(setup, steps, workload))
        report = bench.device_report(machine, workload.name, notes, speeds)
        # Written after each setup: a run that is interrupted keeps what it measured.
        plot = bench.write_device_report(output, report, speeds)
    if as_json:
        terminal.show_json(report)
        return
    table = terminal.table(*bench.COLUMNS)
    for speed in speeds:
        table.add_row(*map(terminal.visible, speed.cells()))
    terminal.out().print(table)
    terminal.say(str(plot))


app.command("devices", cls=vars(run_devices)["command_class"])(run_devices)
