"""Hints: the commands and options that they name exist, also for the command that shows them."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from facts import hftune_error
from test_docs import every_flag

import hftune as package
from hftune.api.call import in_python
from hftune.cli import commands as cli
from hftune.cli.hints import accepts, command_path, fitted, leaves
from hftune.cli.options import GIVEN, SettingsCommand, resolve_settings
from hftune.errors import HftuneError
from hftune.pipeline.names import known_names, unknown
from hftune.studies.systems import collect

ROOT = Path(package.__file__).parent
FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*")
OTHER_TOOLS = {
    *("--multi_gpu", "--num_processes", "--nproc_per_node", "--config_file", "--main_process_ip", "--machine_rank"),
    *("--main_process_port", "--fsdp_version", "--force-reinstall", "--flag"),
}
"""Flags of launchers and pip, and the placeholder of a flag."""
NOT_HINTS = ("runs/figures.py", "pipeline/verify.py", "training/launch.py", "api/call.py", "cli/hints.py")
"""Files with other strings that begin with dashes: CSS, arguments of child processes, patterns."""
SAMPLES = {
    "instead": "train",
    "command": "push",
    "task.command": "classify",
    "self.experiment.name": "copy",
    "self.seed": "1",
    "sets": "",
    "count": "2",
    "objective": "clm",
    "kind": "lora",
    "ALL": "all",
    "what": "label",
    "split": "validation",
    "option": "text_column_name",
}
"""What an expression in a hint stands for; any other one is a path."""


def strings(path: Path) -> Iterator[str]:
    """The strings of a file except docstrings, with samples in place of expressions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    inside = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    inside |= {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in ast.walk(node)} - {
        id(node) for node in nodes if isinstance(node, ast.JoinedStr)
    }
    for node in nodes:
        if id(node) in inside:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(_text(part) for part in node.values)


def _text(part: ast.expr) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    assert isinstance(part, ast.FormattedValue)
    return SAMPLES.get(ast.unparse(part.value), "runs/a")


FOUND = [
    (path.relative_to(ROOT).as_posix(), text)
    for path in sorted(ROOT.rglob("*.py"))
    if path.relative_to(ROOT).as_posix() not in NOT_HINTS
    for text in dict.fromkeys(strings(path))
    if not text.startswith("--runs/a")  # a flag whose name is not known here
    and (FLAG.search(text) or "hftune " in text)
]
COMMANDS = "|".join(cli.COMMANDS)
SHOWN = sorted(
    {
        command.removeprefix("hftune ")
        for _, text in FOUND
        for command in [*text.split("`")[1::2], *([text] if re.match(rf"hftune ({COMMANDS})\b", text) else [])]
        if re.match(rf"hftune ({COMMANDS})\b", command)
    }
)
"""Commands between backticks, and strings that are commands."""
HINTS = [text for path, text in FOUND if not path.startswith("cli/") and FLAG.search("".join(text.split("`")[::2]))]


def test_there_are_hints() -> None:
    assert len(FOUND) > 150 and len(SHOWN) > 30 and len(HINTS) > 80


def test_a_command_in_a_sentence_is_between_backticks() -> None:
    bare = [
        (path, text)
        for path, text in FOUND
        for outside in text.split("`")[::2]
        if re.search(rf"(?:[:;,]|with|see) hftune ({COMMANDS})\b", outside)
    ]
    assert bare == []


@pytest.mark.parametrize("shown", SHOWN)
def test_a_command_in_a_hint_can_be_typed(shown: str) -> None:
    words = shlex.split(re.sub(r"\b(P|N)$", "1", shown.replace("…", "")), comments=True)
    path = command_path(words)
    assert path is not None or words in ([name] for name in cli.COMMANDS), shown
    if path is None:
        return
    rest = words[len(path.split()) :]
    if not rest:
        return  # the name of a command
    command: Any = leaves()[path]
    arguments = rest if words[0] in cli.WITH_LAUNCHER_ARGUMENTS else [cli.dashed(word) for word in rest]
    if not any(word.startswith("-") for word in arguments) and len(arguments) < len(positional(command)):
        return  # such as `hftune push`, which names a command only
    with command.make_context(path, arguments) as context:
        if isinstance(command, SettingsCommand):
            resolve_settings(context.meta[GIVEN], command.task)


def positional(command: Any) -> list[Any]:
    return [one for one in command.params if one.required and one.param_type_name == "argument"]


def test_every_flag_in_a_string_exists() -> None:
    known = {*every_flag(), *OTHER_TOOLS, "--debug", "--help", "--help-all", "--version"}
    strange = {
        (path, flag)
        for path, text in FOUND
        for flag in FLAG.findall(text)
        if flag not in known and cli.dashed(flag) not in known
    }
    assert strange == set()


@pytest.mark.parametrize("path", sorted(leaves()))
def test_no_hint_names_an_option_that_the_command_lacks(path: str) -> None:
    """Every hint of the lower packages, as every command would show it."""
    for hint in HINTS:
        shown = fitted(hint, path.split())
        lacking = {
            flag
            for outside in shown.split("`")[::2]
            for flag in FLAG.findall(outside)
            if flag not in OTHER_TOOLS and not accepts(path, flag)
        }
        assert lacking == set(), f"{path} shows: {shown}"
        for command in re.findall(rf"`hftune ({COMMANDS}) ([^`]*)`", shown):
            home = command_path([command[0], *command[1].split()])
            assert home is not None
            assert all(accepts(home, flag) for flag in FLAG.findall(command[1]) if flag not in OTHER_TOOLS), shown


@pytest.mark.parametrize(
    ("words", "hint", "shown"),
    [
        ("push r u/n", "finish it: --output runs/a --resume", "finish it: `hftune train --output runs/a --resume`"),
        ("train", "finish it: --output runs/a --resume", "finish it: --output runs/a --resume"),
        ("push r u/n", "publish it with --hub-revision", "publish it with --revision"),
        ("tokenizer train", "name it with --set data.text_column_name=NAME", "name it with --text-column-name NAME"),
        (
            "evaluate r",
            "name it with --set data.text_column_name=NAME",
            "name it with --set data.text_column_name=NAME",
        ),
        ("compare a b", "choose one with --split.", "choose one with --split."),
        ("predict r", "choose one with --split: a, b", "choose one with `hftune evaluate RUN --split NAME`: a, b"),
        ("doctor", "lower --batch-size", "lower `hftune train --batch-size VALUE`"),
        ("nothing", "use --output x", "use --output x"),
    ],
)
def test_options_of_hints_fit_the_command(words: str, hint: str, shown: str) -> None:
    assert fitted(hint, words.split()) == shown


def test_the_command_line_shows_the_fitted_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd.csv").write_text("words,n\nhello there,1\nmore words,2\n", encoding="utf-8")
    with pytest.raises(SystemExit) as end:
        cli.run(["tokenizer", "train", "--corpus", "odd.csv", "--output", "made"])
    shown = capsys.readouterr().err
    assert end.value.code == 2 and "--text-column-name" in shown and "--set" not in shown


def test_in_python_flags_become_keywords() -> None:
    for path, hint in FOUND:
        if path.startswith(("cli/", "lab/", "hub/", "studies/", "pipeline/doctor")):
            continue
        outside = " ".join(hint.split("`")[::2])
        made = in_python(outside)
        assert not FLAG.search(made), made


@pytest.mark.parametrize("name", ["attn_implementation", "cuda", "use_flash_attention_2", "gpu"])
def test_names_of_other_tools_get_no_wrong_suggestion(name: str) -> None:
    hint = unknown(name, known_names("classify"), f"--{name}").hint
    assert "leave it out" in hint and "did you mean" not in hint


def test_only_what_has_an_effect_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.run(["predict", "runs/a", "--num-train-epoch", "3"])
    assert "--num-train-epochs" not in capsys.readouterr().err


def test_a_run_that_is_not_complete_is_finished_by_training(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("train: {seed: 1}\n", encoding="utf-8")
    with hftune_error("not complete") as caught:
        collect([tmp_path])
    assert isinstance(caught.value, HftuneError)
    assert "`hftune train --output" in fitted(caught.value.hint, ["compare", "a", "b"])
