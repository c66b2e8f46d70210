"""Tables as spreadsheets and students write them: delimiters, Excel files, loose column names, incomplete rows."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from facts import hftune_error, mentions

from hftune.data import excel
from hftune.data.chunks import file_chunks
from hftune.data.load import load, load_split
from hftune.data.readers import read_table
from hftune.data.settings import CorpusData, LabeledData
from hftune.data.tables import Reading
from hftune.errors import HftuneError
from hftune.recipe import load_recipe

Command = Callable[..., tuple[int, str, str]]
ROWS = [(f"row {i}; with | signs, and more", ("no", "yes")[i % 2]) for i in range(40)]


def section(path: Path, **settings: Any) -> LabeledData:
    return LabeledData(dataset_name=str(path), **settings)


def texts(path: Path, **settings: Any) -> list[str]:
    return [row["text"] for row in load_split(section(path, **settings), None, ("no", "yes", "0", "1"))[1]]


def workbook(path: Path, *rows: Any, **sheets: list[Any]) -> Path:
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    for name, content in sheets.items():
        sheet = book.create_sheet(name)
        for row in content:
            sheet.append(row)
    book.save(path)
    return path


# ---- delimiters ----


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
@pytest.mark.parametrize("header", ["text{}label", "id{}note{}text{}label"])
def test_the_delimiter_is_recognized(tmp_path: Path, delimiter: str, bom: str, header: str) -> None:
    before = ["7", "a, b; c"] if "note" in header else []
    lines = [delimiter.join(f'"{cell}"' for cell in (*before, *row)) for row in ROWS]
    names = header.replace("{}", delimiter)
    path = tmp_path / "rows.csv"
    path.write_text(bom + "\n".join([names, *lines]) + "\n", encoding="utf-8")
    assert texts(path) == [text for text, _ in ROWS]


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        ("text\none; two\nthree\n", {"text": ["one; two", "three"]}),
        ("5;good, really\n1;bad, really\n", {"label": ["5", "1"], "text": ["good, really", "bad, really"]}),
        ('5,"a; b"\n1,"c; d"\n', {"label": ["5", "1"], "text": ["a; b", "c; d"]}),
        ("sep=#\ntext#label\na;b#1\n", {"text": ["a;b"], "label": ["1"]}),
        ("text;label\na, b;1\nc, d;2\n", {"text": ["a, b", "c, d"], "label": ["1", "2"]}),
        ("one|two\na, b|1\nc|2\n", {"one": ["a, b", "c"], "two": ["1", "2"]}),
        ("5,Comment!\n1,bad\n", {"label": ["5", "1"], "text": ["Comment!", "bad"]}),
    ],
)
def test_what_the_first_lines_show(tmp_path: Path, content: str, columns: dict[str, list[str]]) -> None:
    (tmp_path / "rows.csv").write_text(content, encoding="utf-8")
    assert read_table(tmp_path / "rows.csv").columns == columns


def test_the_delimiter_can_be_stated(tmp_path: Path, hftune: Command) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("text^label\n" + "".join(f"a, {i}^{i % 2}\n" for i in range(40)), encoding="utf-8")
    code, out, err = hftune("data", "peek", str(path), "--delimiter", "^", "--json")
    assert code == 0, err
    assert json.loads(out)["rows"][0]["text"].startswith("a, ")
    code, _, err = hftune("data", "check", str(path), "--set", "data.delimiter=^")
    assert code == 0, err
    for name, sign in (("tab", "\t"), ("semicolon", ";"), ("\\t", "\t"), ("|", "|")):
        assert section(path, delimiter=name).delimiter == sign
    with hftune_error("data.delimiter", "one character", "semicolon"):
        load_recipe(None, {"data.delimiter": "ab"})
    with hftune_error("data.delimiter", "'rows.jsonl'"):
        read_table(tmp_path / "rows.jsonl", Reading(delimiter=";"))
    (tmp_path / "corpus.txt").write_text("a;b\n")
    with hftune_error("data.delimiter", "'corpus.txt'"):
        list(file_chunks(tmp_path / "corpus.txt", CorpusData(delimiter=";"), "lines"))


# ---- Excel ----


def test_an_excel_file_gives_the_rows_of_the_same_csv_file(tmp_path: Path) -> None:
    path = workbook(
        tmp_path / "rows.xlsx", (), ("Review Text", "Rating", None), *[(t, i % 3) for i, (t, _) in enumerate(ROWS)]
    )
    splits = load(section(path))
    assert splits.labels == ("0", "1", "2")
    assert splits.rows == {"train": 32, "validation": 4, "test": 4}
    assert set(splits.texts()) < {text for text, _ in ROWS}
    table = read_table(path)
    assert (table.place(0), table.columns["Rating"][:3]) == ("row 3", ["0", "1", "2"])


def test_only_stored_values_are_read(tmp_path: Path) -> None:
    path = workbook(
        tmp_path / "rows.xlsx",
        ("text", "label"),
        ("=1+1", 1.0),
        ('=HYPERLINK("http://x.example","y")', True),
        ("#N/A", 2.5),
        ("  kept ", "a"),
    )
    assert read_table(path).columns == {"text": ["", "", "", "  kept "], "label": ["1", "true", "2.5", "a"]}


def test_the_sheet_can_be_chosen(tmp_path: Path, hftune: Command) -> None:
    one = workbook(tmp_path / "one.xlsx", filled=[("text", "label"), ("a", "no")], empty=[])
    assert texts(one) == ["a"]
    two = workbook(tmp_path / "two.xlsx", ("text", "label"), ("a", "no"), other=[("text", "label"), ("b", "yes")])
    assert texts(two, sheet_name="other") == ["b"]
    with hftune_error("'two.xlsx'", "several sheets", "'Sheet', 'other'", "--sheet-name"):
        texts(two)
    with hftune_error("no sheet 'othr'", "'Sheet', 'other'", "did you mean 'other'"):
        texts(two, sheet_name="othr")
    code, _, err = hftune("data", "check", str(tmp_path / "rows.csv"), "--sheet-name", "x")
    assert code == 2
    (tmp_path / "rows.csv").write_text("text,label\na,b\n")
    code, _, err = hftune("data", "check", str(tmp_path / "rows.csv"), "--sheet-name", "x")
    assert code == 2 and mentions(err, "data.sheet_name", "'rows.csv'")


def test_problems_of_a_sheet_name_their_rows(tmp_path: Path) -> None:
    path = workbook(tmp_path / "rows.xlsx", ("text", "label"), ("a", "no"), (None, "yes"), ("b", "yes", "a note"))
    with hftune_error("'rows.xlsx'", "1 row with no text", "(row 3)", "row 4", "2 columns", 3):
        load(section(path))


def zipped(path: Path, parts: dict[str, str], source: Path) -> Path:
    """A copy of a workbook with other parts."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, parts.get(name, old.read(name)))
    return path


SHEET = (
    '<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>{}</sheetData></worksheet>'
)
CELL = '<c r="{}" t="inlineStr"><is><t>{}</t></is></c>'


def test_hostile_workbooks_end_in_our_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = workbook(tmp_path / "good.xlsx", ("text", "label"), ("a", "no"))
    part = "xl/worksheets/sheet1.xml"
    laughs = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10 if i else "ha" * 50}">' for i in range(10))
    bomb = f"<!DOCTYPE x [{laughs}]>" + SHEET.format("<row>" + CELL.format("A1", "&l9;") + "</row>")
    with hftune_error("'bomb.xlsx'", "Excel"):
        read_table(zipped(tmp_path / "bomb.xlsx", {part: bomb}, good))
    (tmp_path / "secret.txt").write_text("secret")
    outside = f'<!DOCTYPE x [<!ENTITY s SYSTEM "{(tmp_path / "secret.txt").as_uri()}">]>'
    outside += SHEET.format('<row r="1">' + CELL.format("A1", "text&s;") + "</row>")
    with hftune_error("'outside.xlsx'"):
        read_table(zipped(tmp_path / "outside.xlsx", {part: outside}, good))
    # A file can claim any row and any column; nothing is made for those.
    monkeypatch.setattr(excel, "MAX_ROWS", 1 << 12)
    far = "".join(
        f'<row r="{row}">{CELL.format(f"A{row}", "text")}{CELL.format(f"ZZZ{row}", "label")}</row>'
        for row in (1, 10**12)
    )
    with hftune_error("'far.xlsx'", "no rows"):
        read_table(zipped(tmp_path / "far.xlsx", {part: SHEET.format(far)}, good))
    monkeypatch.setattr(excel, "MIN_LIMIT", 1 << 20)
    with hftune_error("'large.xlsx'", "decompresses"):
        read_table(zipped(tmp_path / "large.xlsx", {"xl/styles.xml": " " * (1 << 22)}, good))
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with hftune_error("'good.xlsx'", "hftune[excel]"):
        read_table(good)


# ---- columns ----


@pytest.mark.parametrize(
    ("header", "text", "label"),
    [
        (("Review Text", "Rating"), "Review Text", "Rating"),
        (("id", "COMMENT", "Star-Rating"), "COMMENT", "Star-Rating"),
        (("Title", "Review-Body", "Sentiment", "Label"), "Review-Body", "Label"),
        (("Tweet ", "Stars"), "Tweet", "Stars"),
    ],
)
def test_column_names_match_loosely(tmp_path: Path, header: tuple[str, ...], text: str, label: str) -> None:
    rows = [[f"{name.strip()} {i % 2 if name.strip() == label else i}" for name in header] for i in range(40)]
    (tmp_path / "rows.csv").write_text("\n".join(map(",".join, [header, *rows])), encoding="utf-8")
    splits = load(section(tmp_path / "rows.csv"))
    assert splits.train["text"][0].startswith(text) and splits.labels == (f"{label} 0", f"{label} 1")


@pytest.mark.parametrize(
    ("header", "candidates"),
    [
        ("Review Text,Comment,Rating", ["text", "'Review Text', 'Comment'", "--text-column"]),
        ("text,Rating,Sentiment", ["label", "'Rating', 'Sentiment'", "--label-column"]),
        ("text,Star Rating,star_rating", ["label", "'Star Rating', 'star_rating'"]),
    ],
)
def test_ambiguous_columns_are_refused_with_the_candidates(tmp_path: Path, header: str, candidates: list[str]) -> None:
    (tmp_path / "rows.csv").write_text(f"{header}\n" + "".join(f"a{i},b{i},{i % 2}\n" for i in range(40)))
    with hftune_error("'rows.csv'", *candidates):
        load(section(tmp_path / "rows.csv"))


def test_stated_columns_and_those_of_other_splits_match_loosely_too(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("My Text,My Mark\n" + "".join(f"a{i},{i % 2}\n" for i in range(40)))
    (tmp_path / "dev.csv").write_text("my_text,MY MARK\nb,0\nc,1\n")
    splits = load(section(tmp_path, text_column_name="my text", label_column_name="mymark"))
    assert splits.validation.to_dict() == {"text": ["b", "c"], "label": [0, 1]}


# ---- incomplete and repeated rows ----


def faulty(folder: Path) -> Path:
    lines = ["text,label", *(f"row {i},{i % 2}" for i in range(40)), ",1", "no label,", "a,b,c", " ,0", "short", ",1"]
    (folder / "rows.csv").write_text("\n".join(lines), encoding="utf-8")
    return folder / "rows.csv"


def test_all_problems_are_reported_together(tmp_path: Path) -> None:
    path = faulty(tmp_path)
    with pytest.raises(HftuneError) as caught:
        load(section(path))
    message = caught.value.message
    assert mentions(message, "3 problems", "line 44", "expected 2 columns", "got 3", "1 more row: line 46")
    assert mentions(message, "3 rows with no text", "line 42, line 45, line 47")
    assert mentions(message, "1 row with no label", "line 43")
    assert "--drop-missing" in message
    (tmp_path / "dev.jsonl").write_text('{"text": 5, "label": 1}\n{"text"\n' + '{"text": "", "label": 0}\n' * 9)
    with hftune_error(
        "6 problems", "'dev.jsonl'", "line 1", "line 2", "9 rows", "line 3, line 4, line 5, line 6, line 7 …"
    ):
        load(section(path, validation_file="dev.jsonl"))


def test_drop_missing_is_silent_where_nothing_is_missing(tmp_path: Path, hftune: Command) -> None:
    (tmp_path / "rows.csv").write_text(
        "text,label\n" + "".join(f"text {row},{row % 2}\n" for row in range(20)), encoding="utf-8"
    )
    code, out, _ = hftune("data", "peek", str(tmp_path / "rows.csv"), "--drop-missing", "--json")
    assert code == 0 and not [note for note in json.loads(out)["notes"] if "drop_missing" in note]


def test_drop_missing_leaves_rows_out_and_counts_them(tmp_path: Path, hftune: Command) -> None:
    lines = [line for line in faulty(tmp_path).read_text().splitlines() if line not in ("a,b,c", "short")]
    (tmp_path / "rows.csv").write_text("\n".join(lines), encoding="utf-8")
    code, out, err = hftune("data", "peek", str(tmp_path / "rows.csv"), "--drop-missing", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert sum(found["sizes"].values()) == 40
    assert mentions(found["notes"], "rows.csv", "3 rows", "no text")
    assert mentions(found["notes"], "rows.csv", "1 row", "no label")
    assert len(texts(tmp_path / "rows.csv", drop_missing=True)) == 40


def test_deduplicate_leaves_rows_out_and_counts_them(tmp_path: Path) -> None:
    rows = [f"row {i},{i % 2}" for i in range(20)]
    train = ["text,label", *rows, rows[0], rows[1], rows[1], "row 2,1", "in dev,0", "in dev,1"]
    (tmp_path / "train.csv").write_text("\n".join(train))
    (tmp_path / "dev.csv").write_text("text,label\nin dev,0\nother,1\nother,1\n")
    (tmp_path / "test.csv").write_text("text\nrow 3\nrow 3\n")
    splits = load(section(tmp_path, deduplicate=True))
    assert splits.rows == {"train": 20, "validation": 2, "test": 2}
    assert splits.texts().count("row 2") == 2, "two labels of one text are no repetition"
    assert "row 3" not in splits.texts() and "in dev" not in splits.texts()
    assert mentions(splits.notes, "train: 3 repeated rows", "3 rows whose text is in another split")
    assert mentions(splits.notes, "validation: 1 repeated row")
    assert load(section(tmp_path)).rows == {"train": 26, "validation": 3, "test": 2}
