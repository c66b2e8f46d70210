"""Hostile text through every way in and out: as data, labels, names and settings; to terminal, page, files and card."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.table import Table
from rich.text import Text
from tiny import QUICK

from hftune.cli import terminal
from hftune.sanitize import UNSAFE, json_text, redacted, spreadsheet_cell, visible

Hftune = Callable[..., tuple[int, str, str]]

pytestmark = pytest.mark.renders

EVIL = "\x1b]0;owned\x07\x1b[31mred\x1b[2J\x9b5n\u202egnp.exe \x7f\x85."
MARKUP = "<script>alert('x')</script><img src=x onerror=alert(1)>{{ 7*7 }} [link](javascript:x) | `code` $x^2$"
FORMULA = '=HYPERLINK("http://evil","click")'
LABELS = (f"good {EVIL}", f"{FORMULA} {MARKUP}")
FOLDER = "da\x1b[31mta"


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


def rows(split: str, count: int) -> list[dict[str, str]]:
    return [
        {"text": f"{split} {number}: {(EVIL, MARKUP, FORMULA)[number % 3]} day {number}", "label": LABELS[number % 2]}
        for number in range(count)
    ]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder whose name, labels and texts are hostile."""
    home = tmp_path_factory.mktemp("hostile")
    (home / FOLDER).mkdir()
    for split, count in (("train", 24), ("validation", 12), ("test", 12)):
        lines = "".join(json.dumps(row) + "\n" for row in rows(split, count))
        (home / FOLDER / f"{split}.jsonl").write_text(lines)
    return home


@pytest.fixture(scope="module")
def output(place: Path) -> dict[str, str]:
    """Everything that the commands print, by command; two runs are trained with them."""
    from typer.testing import CliRunner

    from hftune.cli import commands as cli

    commands = {
        "train": ("classify", "--data", FOLDER, *QUICK, "--output", "a"),
        "train json": ("classify", "--data", FOLDER, *QUICK, "--output", "b\x1b[5m", "--seed", "2", "--json"),
        "peek": ("data", "peek", FOLDER, "--rows", "6"),
        "check": ("data", "check", FOLDER),
        "predict": ("predict", "a", EVIL, MARKUP),
        "evaluate": ("evaluate", "a", "--output", "scored.jsonl"),
        "compare": ("compare", "a", "b\x1b[5m"),
        "compare csv": ("compare", "a", "b\x1b[5m", "--format", "csv"),
        "compare markdown": ("compare", "a", "b\x1b[5m", "--format", "markdown", "--output", "compared"),
        "report": ("report", "a"),
        "recipe": ("recipes", "show", "a"),
        "no data": ("classify", "--data", f"{EVIL}{MARKUP}"),
        "no model": ("classify", "--model", f"x{EVIL}", "--data", FOLDER, *QUICK, "--output", "c"),
        "no run": ("predict", f"../{EVIL}", "x"),
        "bad recipe": ("recipes", "validate", "bad.yaml"),
        "bad setting": ("classify", "--set", f"train.{EVIL}=1"),
        "bad metric": ("evaluate", "a", "--metric", f"{EVIL}"),
        "bad columns": ("classify", "--data", FOLDER, "--text-column", EVIL),
    }
    (place / "bad.yaml").write_text(json.dumps({f"train{EVIL}": 1, "model": {"name": [EVIL]}}))
    reported = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        for name, words in commands.items():
            terminal.out.cache_clear()
            terminal.err.cache_clear()
            result = CliRunner().invoke(cli.app, list(words), prog_name="hftune")
            assert result.exit_code == (2 if name.startswith(("no ", "bad ")) else 0), (name, result.stderr)
            reported[name] = result.stdout + result.stderr
    return reported


def test_no_command_prints_control_characters(output: dict[str, str]) -> None:
    for name, text in output.items():
        assert UNSAFE.search(text) is None, name
    assert r"\x1b[31m" in output["peek"]  # shown, not swallowed
    assert len(output) > 15


def test_no_file_of_a_run_has_control_characters(place: Path, output: dict[str, str]) -> None:
    looked = 0
    for path in place.rglob("*"):
        readable = path.suffix in (".json", ".jsonl", ".yaml", ".html", ".md", ".csv", ".txt")
        own = path.parent.name == FOLDER or path.name == "bad.yaml" or "checkpoints" in path.parts
        if path.is_file() and readable and not own and path.name not in ("tokenizer.json", "config.json"):
            text = path.read_text(encoding="utf-8")
            looked += 1
            assert UNSAFE.search(text.replace("\r\n", "\n")) is None, path
    assert looked > 15


def test_predictions_read_back_unchanged(place: Path, output: dict[str, str]) -> None:
    expected = rows("test", 12)
    for path in (place / "a" / "predictions" / "test.jsonl", place / "scored.jsonl"):
        found = [json.loads(line) for line in path.read_text().split("\n") if line]
        assert [row["text"] for row in found] == [row["text"] for row in expected]
        assert [row["gold"] for row in found] == [row["label"] for row in expected]
    answers = [json.loads(line) for line in output["predict"].splitlines() if line.startswith("{")]
    assert [row["text"] for row in answers] == [EVIL, MARKUP]


def test_pages_hold_text_and_no_script(place: Path, output: dict[str, str]) -> None:
    for page in (place / "a" / "report.html", place / "compared" / "report.html"):
        text = page.read_text()
        tags = Tags()
        tags.feed(text)
        assert "script" not in tags.found and "img" not in tags.found and tags.handlers == []
    text = (place / "a" / "report.html").read_text()
    assert "&lt;script&gt;" in text and "{{ 7*7 }}" in text  # text, not a template


def test_tables_for_spreadsheets_have_no_formulas(output: dict[str, str], place: Path) -> None:
    for text in (output["compare csv"], (place / "compared" / "comparison.csv").read_text()):
        for line in csv.reader(io.StringIO(text)):
            assert not any(cell.startswith(("=", "+", "@", "\t", "\r")) for cell in line)


@pytest.mark.parametrize("begin", [*"=+-@|%\t\r\n", *"＝＋－＠﹦﹢﹣﹫", "\u200b=", " =", "\u3000＝", "\ufeff+"])
def test_no_cell_begins_a_formula(begin: str) -> None:
    text = f"{begin}cmd|' /C calc'!A0"
    assert spreadsheet_cell(text).startswith("'")
    for plain in ("good", "1 star", "ü", "", "a=b"):
        assert spreadsheet_cell(plain) == plain


TOKEN = "hf_" + "AbCdEfGh" * 4


@pytest.mark.parametrize(
    "data",
    [
        f"https://huggingface.co/datasets/a/b/resolve/main/x.csv?token={TOKEN}",
        "https://me:PRIVATEkey@example.org/x.csv",
        "https://example.org/x.csv?a=1&access_token=PRIVATEkey&b=2",
        "https://me:p@ssPRIVATEkey@example.org/x.csv",
        "https://example.org/x.csv?X-Amz-Signature=PRIVATEkey",
        "https://example.org/x.csv?sv=2026&sig=PRIVATEkey",
        "https://example.org/x.csv?key=PRIVATEkey",
        f"./{TOKEN}/x.csv",
    ],
)
def test_a_token_in_a_command_is_not_repeated(here: Path, hftune: Hftune, data: str) -> None:
    for command in (("classify", "--data", data), ("data", "peek", data), ("pretrain", "--corpus", data),
                    ("classify", "--data", data, "--debug"), ("predict", data, "x"), ("sweep", data)):  # fmt: skip
        code, out, err = hftune(*command)
        assert code == 2, (command, err)
        assert TOKEN not in out + err and "PRIVATEkey" not in out + err, (command, err)
    assert "[redacted]" in err


def test_what_is_no_token_stays_as_it_is() -> None:
    for text in (
        "HF_ENDPOINT=x",
        "runs/task-adaptive-pretraining-of-reviews",
        "a@b.org",
        "https://x.org/a?b=c",
        "hf_hub",
    ):
        assert redacted(text) == text


def test_a_card_escapes_markdown_and_html(place: Path, output: dict[str, str]) -> None:
    text = (place / "a" / "model" / "README.md").read_text()
    body = text.split("### Recipe")[0]
    assert "<script>" not in body and "<img" not in body and "](javascript" not in body
    assert [line for line in body.splitlines() if line.startswith("# ")] == ["# a"]


def test_control_characters_on_a_terminal_are_escaped() -> None:
    """Tables, bars and plain text alike, on a screen that obeys."""
    screen = io.StringIO()
    console = terminal._Console(file=screen, force_terminal=True, width=200, markup=False, emoji=False)
    table = Table(EVIL, title=EVIL)
    table.add_row(EVIL)
    console.print(table)
    console.print(Text(EVIL, style="bold"))
    console.print(EVIL)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())  # rich's own colors
    assert UNSAFE.search(plain) is None and "owned" in plain
    assert "\x1b]0;" not in screen.getvalue() and "\x1b[31mred" not in screen.getvalue()


@pytest.mark.parametrize("text", [EVIL, "\ud800 half", "\u2028\u2029", "tab\tand é 漢 😀", "\x00"])
def test_json_escapes_and_reads_back(text: str, tmp_path: Path) -> None:
    from hftune.files import read_json, read_jsonl, write_json, write_jsonl

    value: dict[str, Any] = {text: [text]}
    assert json.loads(json_text(value)) == value and UNSAFE.search(json_text(value)) is None
    write_json(tmp_path / "one.json", value)
    write_jsonl(tmp_path / "more.jsonl", [value, value])
    assert read_json(tmp_path / "one.json") == value and read_jsonl(tmp_path / "more.jsonl") == [value, value]
    assert UNSAFE.search(visible(text)) is None


TEN_MILLION = 10_000_000


@pytest.mark.parametrize(("ending", "text"), [("csv", "word " * (TEN_MILLION // 5)), ("jsonl", "x" * TEN_MILLION)])
def test_a_row_of_ten_million_characters(here: Path, hftune: Hftune, ending: str, text: str) -> None:
    data = [*rows("train", 24), {"text": text, "label": LABELS[0]}]
    with Path(f"rows.{ending}").open("w", encoding="utf-8", newline="") as file:
        if ending == "csv":
            written = csv.DictWriter(file, ["text", "label"])
            written.writeheader()
            written.writerows(data)
        else:
            file.writelines(json.dumps(row) + "\n" for row in data)
    for command in ("peek", "check"):
        code, out, err = hftune("data", command, f"rows.{ending}", *(("--rows", "100") if command == "peek" else ()))
        assert code == 0 and len(out) + len(err) < 60_000, err


def test_labels_that_are_numbers_are_not_taken_for_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    from hftune.cli.predict import _show

    screen = io.StringIO()
    monkeypatch.setattr("hftune.cli.predict.out", lambda: terminal._Console(file=screen, width=200))
    _show({"text": "great food", "label": "4", "probabilities": {"3": 0.25, "4": 0.75}})
    assert "4: 0.750  3: 0.250" in screen.getvalue()


@pytest.mark.slow
def test_a_text_of_ten_million_characters_is_labeled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds of tokenizing, so not for every day; what a screen shows of it is short."""
    from finished_run import finished_run

    from hftune import predict
    from hftune.cli.predict import _show, as_row

    run = finished_run(tmp_path / "run")
    answer = predict(run.path, ["great food " * (TEN_MILLION // 11)])[0]
    screen = io.StringIO()
    monkeypatch.setattr(terminal, "out", lambda: terminal._Console(file=screen, width=200))
    monkeypatch.setattr("hftune.cli.predict.out", terminal.out)
    _show(as_row(answer))
    assert 100 < len(screen.getvalue()) < 3000
