"""The command line as a whole: the table of commands, exit codes, what reaches the terminal, and hftune recipes."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from facts import hftune_error, mentions
from rich.console import Console
from rich.progress import Progress
from sample_run import plant_run
from typer.testing import CliRunner

from hftune import __version__
from hftune.cli import commands as cli
from hftune.cli import terminal
from hftune.errors import HftuneError, Interrupted, RunFailed
from hftune.files import recipes_dir
from hftune.models.tokenizers import train_tokenizer
from hftune.pipeline.request import list_seeds as seeds_of
from hftune.pipeline.request import resolve_recipe
from hftune.recipe import Recipe
from hftune.runs.directory import RunDir

HEAVY = ["torch", "transformers", "datasets", "pydantic", "yaml", "numpy", "sklearn", "matplotlib", "scipy"]


def hftune(*arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command."""
    result = CliRunner().invoke(cli.app, list(arguments), prog_name="hftune")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def table_with(monkeypatch: pytest.MonkeyPatch, function: object) -> None:
    """A table of commands that holds one more: ``boom``."""
    monkeypatch.setattr(cli, "COMMANDS", {**cli.COMMANDS, "boom": cli.Entry(f"{__name__}:boom", "Boom", "Test")})
    monkeypatch.setitem(globals(), "boom", function)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["--nonsense"]])
def test_nothing_heavy_is_imported(arguments: list[str]) -> None:
    program = (
        "import sys\nfrom hftune.cli import main\n"
        f"try: main({arguments!r})\nexcept SystemExit: pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def test_help_of_a_command_imports_no_framework() -> None:
    program = (
        "import sys\nfrom hftune.cli.commands import COMMANDS, run\n"
        "for name in COMMANDS:\n"
        "    try: run([name, '--help'])\n"
        "    except SystemExit as end: code = end.code\n"
        "    found = [one for one in ('torch', 'transformers', 'datasets', 'sklearn') if one in sys.modules]\n"
        "    print('imported by', name, code, found)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported = [line for line in result.stdout.splitlines() if line.startswith("imported by")]
    assert imported == [f"imported by {name} 0 []" for name in cli.COMMANDS]
    assert result.stdout.count("Usage: ") == len(cli.COMMANDS)
    assert "--install-completion" not in result.stdout


def test_work_without_tensors_imports_no_framework(tmp_path: Path) -> None:
    """One process for all of them: what an earlier command imported would be found after it."""
    first, second = (str(plant_run(tmp_path / name).path) for name in ("a", "b"))
    RunDir.open(Path(second)).write_recipe(resolve_recipe(None, {"train.seed": 2}, task="classify"))
    light = [
        ["lab", "ls"],
        ["recipes", "ls"],
        ["recipes", "show", "classify/reviews", "--resolved"],
        ["recipes", "validate", "all"],
        ["recipes", "schema"],
        ["data", "ls"],
        ["data", "check", "prose"],
        ["data", "peek", "births", "--task", "answer"],
        ["baseline", "--data", "births", "--answer", "London"],
        ["compare", first, second],
        ["report", first],
    ]
    train_tokenizer("bpe", lambda: ["the food was great"] * 9, 270).save_pretrained(tmp_path / "tokens")
    light += [["tokenizer", "show", str(tmp_path / "tokens"), "food", "--corpus", "prose"]]
    missing = str(tmp_path / "nope")
    unknown = [
        ["predict", missing, "text"],
        ["evaluate", missing],
        ["export", missing, "--onnx"],
        ["generate", missing],
    ]
    refused = [*unknown, ["classify", "--output", first], ["classify", "--output", first, "--seeds", "1,2"]]
    labeled = [["data", "peek", "reviews"], ["data", "check", "reviews"]]
    program = (
        "import sys\nfrom hftune.cli.commands import run\n"
        f"for arguments in {[*light, *refused, *labeled]!r}:\n"
        "  try: run(arguments)\n  except SystemExit as end: code = end.code\n"
        "  found = {'torch', 'transformers', 'peft', 'datasets', 'sklearn'} & sys.modules.keys()\n"
        "  print('imports', code, sorted(found))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    found = [line for line in result.stdout.splitlines() if line.startswith("imports ")]
    expected = (
        ["imports 0 []"] * len(light) + ["imports 2 []"] * len(refused) + ["imports 0 ['datasets']"] * len(labeled)
    )
    assert found == expected, result.stderr


def show_help(cache: Path, *words: str, **environment: str) -> tuple[str, list[str]]:
    """What ``--help`` prints in a new process, and which of the modules that take their time it imports."""
    program = (
        "import sys\nfrom hftune.cli import main\n"
        f"try: main([*{words!r}, '--help'])\nexcept SystemExit as end: print(end.code)\n"
        "print([name for name in ('typer', 'pydantic', 'rich') if name in sys.modules])"
    )
    variables = {**os.environ, "HFTUNE_CACHE": str(cache), "PYTHONUTF8": "1", **environment}
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=variables)
    *text, code, modules = result.stdout.splitlines()
    assert code == "0" and result.stderr == ""
    return "\n".join(text), ast.literal_eval(modules)


@pytest.mark.parametrize(
    "words",
    [(), ("classify",), *(pytest.param(words, marks=pytest.mark.slow) for words in (("recipes", "ls"), ("push",)))],
    ids=lambda words: "-".join(words),
)
def test_help_is_cached_and_shown_without_imports(words: tuple[str, ...], tmp_path: Path) -> None:
    first, imported = show_help(tmp_path, *words)
    assert "typer" in imported and first.startswith("Usage: hftune")
    assert show_help(tmp_path, *words) == (first, [])
    narrow, imported = show_help(tmp_path, *words, COLUMNS="60")
    assert "typer" in imported and max(map(len, narrow.splitlines())) <= 60, "another width is another text"
    (file,) = (tmp_path / "help").iterdir()
    file.write_text("0.0.1 and other code\nUsage: of old\n", encoding="utf-8")
    assert show_help(tmp_path, *words)[0] == first
    file.unlink()
    file.mkdir()
    assert show_help(tmp_path, *words)[0] == first, "a cache that can't be written is no error"


def test_only_help_of_commands_is_kept(tmp_path: Path) -> None:
    show_help(tmp_path, "train", "anything")
    show_help(tmp_path, "classify", "--data", "x")
    assert not list(tmp_path.iterdir())


def test_the_table_is_the_help() -> None:
    code, out, _ = hftune("--help")
    assert code == 0
    assert len(cli.COMMANDS) >= 6
    for name, entry in cli.COMMANDS.items():
        command = cli.load_command(name)
        assert (command.help or "").startswith(entry.help), f"{name}: the table says {entry.help!r}"
        assert f"  {name} " in out
        assert f"{entry.panel}:\n" in out


def test_help_names_every_method() -> None:
    _, out, _ = hftune("classify", "--help")
    assert f"Which parameters are trained: {', '.join(Recipe.section_kinds('method'))}." in " ".join(out.split())


def test_flags_become_settings() -> None:
    recipe = resolve_recipe(
        None,
        {
            "model.model_name_or_path": "roberta-base",
            "train.learning_rate": 1e-5,
            "train.seed": 4,
            "data.max_train_samples": None,
        },
        ["train.seed=5"],
        task="classify",
    )
    assert (recipe.model.model_name_or_path, recipe.train.learning_rate, recipe.train.seed) == ("roberta-base", 1e-5, 5)
    assert recipe.data.max_train_samples is None
    with pytest.raises(HftuneError, match="nonsense"):
        resolve_recipe(None, {"train.nonsense": 1}, task="classify")


@pytest.mark.parametrize(
    ("text", "seeds"), [(None, ()), ("1,2,3", (1, 2, 3)), ("1-3, 7", (1, 2, 3, 7)), ("0", (0,)), ("4-4", (4,))]
)
def test_seed_lists(text: str | None, seeds: tuple[int, ...]) -> None:
    assert seeds_of(text) == seeds


@pytest.mark.parametrize("text", ["", "1,,2", "one", "3-1", "1-1000000000", "1,1", "-1", "1.5", "1-2,2"])
def test_bad_seed_lists(text: str) -> None:
    with hftune_error("--seeds"):
        seeds_of(text)


def test_usage_errors_exit_2_and_suggest() -> None:
    code, out, err = hftune("clasify")
    assert (code, out) == (2, "")
    assert mentions(err, "mean 'classify'")
    assert hftune("classify", "--epochs", "many")[0] == 2
    code, _, err = hftune("classify", "--epoch", "2")
    assert code == 2
    assert "--epochs" in err
    assert mentions(hftune("recipes", "shwo")[2], "mean 'show'")


def test_version() -> None:
    assert hftune("--version") == (0, f"hftune {__version__}\n", "")


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (HftuneError("expected a, got b", hint="write a"), 2, ["Error: expected a, got b", "→ write a"]),
        (RunFailed("the loss is not finite", hint="lower it"), 1, ["the loss is not finite", "→ lower it"]),
        (Interrupted("stopped", hint="go on", signal_number=signal.SIGTERM), 143, ["stopped", "→ go on"]),
        (KeyError("lost"), 1, ["unexpected KeyError: 'lost'", "--debug"]),
        (KeyboardInterrupt(), 130, ["Stopped."]),
    ],
)
def test_errors_become_messages_and_exit_codes(
    error: BaseException, code: int, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise error

    table_with(monkeypatch, fail)
    found, out, err = hftune("boom")
    assert (found, out) == (code, "")
    for word in words:
        assert word in err
    assert "Traceback" not in err
    for order in (["boom", "--debug"], ["--debug", "boom"]):
        found, _, err = hftune(*order)
        assert found == code
        assert "Traceback" in err and "in fail" in err
        assert words[0] in err


def test_debug_after_two_dashes_belongs_to_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def echo(words: list[str]) -> None:
        terminal.say(" ".join(words))

    table_with(monkeypatch, echo)
    assert hftune("boom", "--", "a", "--debug") == (0, "a --debug\n", "")


def test_terminal_escapes_are_shown_and_not_obeyed() -> None:
    bad = "a\x1b[31mred\x07\r\x9b2J\u202eback[bold]x[/bold]\\"
    shown = r"a\x1b[31mred\x07\r\x9b2J\u202eback[bold]x[/bold]" + "\\"
    assert terminal.visible(bad) == shown
    assert terminal.visible("tab\tand\nnewline, é 漢 😀 ✓") == "tab\tand\nnewline, é 漢 😀 ✓"
    assert terminal.visible("\ud800") == r"\ud800"


def test_untrusted_text_in_errors_logs_and_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import logging

    bad = "x\x1b]0;title\x07\x9b\u202e[red]"

    def fail() -> None:
        logging.getLogger("hftune.test").warning("label %s", bad)
        terminal.show_json({"label": bad})
        raise HftuneError(f"label {bad}", hint=bad)

    table_with(monkeypatch, fail)
    _, out, err = hftune("boom")
    assert json.loads(out) == {"label": bad}
    for text in (out, err):
        assert not set(text) & {"\x1b", "\x07", "\x9b", "\u202e"}
    assert r"WARNING: label x\x1b]0;title\x07\x9b\u202e[red]" in err


def test_a_note_is_reported_once_and_a_warning_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    import logging

    def several_runs() -> None:
        for _ in range(3):
            logging.getLogger("hftune.test").info("the rate is left out")
            logging.getLogger("hftune.test").warning("no answer")

    table_with(monkeypatch, several_runs)
    for _ in range(2):  # each command begins anew
        _, _, err = hftune("boom")
        assert (err.count("the rate is left out"), err.count("no answer")) == (1, 3)


@pytest.mark.posix("a closed pipe is another error there")
@pytest.mark.parametrize("write", ["terminal.say(line)", "sys.stdout.write(line + chr(10))"])
def test_a_reader_that_leaves_is_no_error(write: str) -> None:
    program = (
        "import hftune.cli.commands as cli, sys\nfrom hftune.cli import terminal\n"
        "def flood():\n    for number in range(10**6):\n        line = f'line {number}'\n"
        f"        {write}\n"
        "cli.COMMANDS['flood'] = cli.Entry('__main__:flood', 'Flood', 'Test')\n"
        "cli.run(['flood'])"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stderr is not None
    assert child.stdout.readline() == "line 0\n"
    child.stdout.close()
    assert child.stderr.read() == ""
    assert child.wait(timeout=240) == 141


@pytest.mark.posix("sends a signal to another process")
def test_ctrl_c_is_one_line_and_130() -> None:
    program = (
        "import hftune.cli.commands as cli, signal, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background jobs start without it
        "def sleep():\n    print('ready', flush=True)\n    time.sleep(240)\n"
        "cli.COMMANDS['sleep'] = cli.Entry('__main__:sleep', 'Sleep', 'Test')\n"
        "cli.run(['sleep'])"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stderr is not None
    assert child.stdout.readline() == "ready\n"
    time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    assert child.stderr.read() == "Stopped.\n"
    assert child.wait(timeout=240) == 130


def test_recipes_ls_and_show() -> None:
    rows = json.loads(hftune("recipes", "ls", "--json")[1])
    assert {"name", "path", "command", "expected", "cost"} == set(rows[0])
    names = [row["name"] for row in rows]
    assert {"classify/reviews", "classify/tinybert"} <= set(names)
    listed = hftune("recipes", "ls")[1]
    assert all(name in listed for name in names)
    assert max(map(len, listed.splitlines())) < 140, "a line a recipe that can be read when it is piped"
    assert re.search(r"^classify/reviews +hftune classify --recipe classify/reviews *$", listed, re.MULTILINE)
    text = Path(next(row["path"] for row in rows if row["name"] == "classify/tinybert")).read_text(encoding="utf-8")
    assert hftune("recipes", "show", "classify/tinybert")[1] == text
    assert "  weight_decay: 0.01\n" in hftune("recipes", "show", "classify/tinybert", "--resolved")[1]
    assert json.loads(hftune("recipes", "show", "classify/tinybert", "--json")[1])["train"]["learning_rate"] == 1e-4
    assert hftune("recipes", "show", "reviews-mlm") == hftune("recipes", "show", "pretrain/reviews-mlm")
    code, _, err = hftune("recipes", "show", "tinybert")
    assert code == 2 and mentions(err, "boolq/tinybert", "classify/tinybert")
    code, _, err = hftune("recipes", "show", "classify/tinybret")
    assert code == 2 and "classify/tinybert" in err


@pytest.mark.parametrize("name", ["slurm/train.sbatch", "accelerate/fsdp.yaml"])
def test_recipes_cp_of_files_for_launchers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = hftune("recipes", "cp", name)
    copied = tmp_path / name.rpartition("/")[2]
    assert (code, copied.name in out) == (0, True), err
    assert copied.read_text(encoding="utf-8") == (recipes_dir() / name).read_text(encoding="utf-8")
    assert hftune("recipes", "cp", "slurm/nothing.sbatch")[0] == 2


def test_recipes_cp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = hftune("recipes", "cp", "classify/reviews")
    assert code == 0
    assert "hftune classify --recipe reviews.yaml" in out
    copied = (tmp_path / "reviews.yaml").read_text()
    assert "scratch:bert-tiny" in copied
    (tmp_path / "reviews.yaml").write_text("mine")
    code, _, err = hftune("recipes", "cp", "classify/reviews")
    assert code == 2
    assert "reviews.yaml" in err
    assert (tmp_path / "reviews.yaml").read_text() == "mine"
    assert hftune("recipes", "cp", "classify/reviews", "--force")[0] == 0
    assert (tmp_path / "reviews.yaml").read_text() == copied
    assert hftune("recipes", "cp", "classify/reviews", "deep/down.yaml")[0] == 0
    assert (tmp_path / "deep" / "down.yaml").read_text() == copied


def test_recipes_validate(tmp_path: Path) -> None:
    code, out, _ = hftune("recipes", "validate")
    assert code == 0
    assert out.count("ok ") >= 4
    assert hftune("recipes", "validate", "all")[1] == out
    bad = tmp_path / "bad.yaml"
    bad.write_text("train: {epoch: 1, seed: -1}\n")
    good = tmp_path / "good.yaml"
    good.write_text("train: {num_train_epochs: 1}\n")
    code, out, _ = hftune("recipes", "validate", str(tmp_path))
    assert code == 2
    assert f"ok      {good}" in out and f"wrong   {bad}" in out
    assert mentions(out, "train.num_train_epochs", -1)
    code, out, _ = hftune("recipes", "validate", str(bad), str(good), "--json")
    first, second = json.loads(out)
    assert code == 2
    assert (first["ok"], second["ok"]) == (False, True)
    assert [problem["path"] for problem in first["problems"]] == ["train.epoch", "train.seed"]
    empty = tmp_path / "empty"
    empty.mkdir()
    assert hftune("recipes", "validate", str(empty))[0] == 2


def test_recipes_schema() -> None:
    whole = json.loads(hftune("recipes", "schema")[1])
    assert set(whole["properties"]) == {"task", "data", "model", "method", "train", "hub", "by_method"}
    part = json.loads(hftune("recipes", "schema", "--section", "hub")[1])
    described = part["$defs"]["HubSection"]["properties"]["hub_private_repo"]["description"]
    assert mentions(described, "private", "default")
    assert hftune("recipes", "schema", "--section", "hubb")[0] == 2


def test_counts_and_times_of_a_bar_stay_on_a_narrow_terminal() -> None:
    console = Console(width=80, file=io.StringIO(), force_terminal=True, color_system=None)
    progress = Progress(*terminal.progress_columns(), console=console)
    facts = "validation accuracy 0.2167  loss 1.614  learning rate 0.0001667  validation loss 1.5"
    progress.add_task("steps", total=12_000, completed=8_000, facts=facts)
    console.print(progress.get_renderable())
    assert isinstance(console.file, io.StringIO)
    (line,) = console.file.getvalue().rstrip("\n").splitlines()
    assert "8000/12000 0:00:00 left" in line and line.rstrip().endswith("…") and len(line) <= 80
