"""``hftune data``: what each command prints, as text and as JSON, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from facts import mentions

from hftune.data.generators import DEFAULT_SEED, GENERATORS
from hftune.data.locate import CORPORA, DATASETS
from hftune.data.recognize import recognize
from hftune.recipe import load_recipe
from hftune.tasks.span_corruption import SpanCorruption

Command = Callable[..., tuple[int, str, str]]


def answer(command: Command, *arguments: str) -> object:
    code, out, err = command("data", *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def write_rows(path: Path, count: int = 40) -> None:
    rows = [{"question": f"is {i} odd", "passage": f"{i} and its parity", "answer": i % 2 == 1} for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_ls_names_every_embedded_dataset(hftune: Command) -> None:
    code, out, _ = hftune("data", "ls")
    assert code == 0
    listed = answer(hftune, "ls")
    assert isinstance(listed, list)
    assert [entry["name"] for entry in listed] == [*DATASETS, *CORPORA]
    assert listed[-1]["rows"] == {"train": 462, "validation": 32, "test": 33}
    assert listed[0]["rows"] == {"train": 4000, "validation": 500, "test": 500}
    assert all(name in out for name in (*DATASETS, *CORPORA))


def test_peek_shows_rows_as_a_run_sees_them(hftune: Command, here: Path) -> None:
    write_rows(here / "odd.jsonl")
    code, out, _ = hftune("data", "peek", "odd.jsonl", "--rows", "2", "--split", "validation")
    assert code == 0
    assert "train 32, validation 4, test 4" in out
    assert "labels: false, true" in out
    assert mentions(out, "validation", "train: 4 rows")
    assert out.count("and its parity") == 2
    reported = answer(hftune, "peek", "odd.jsonl", "--rows", "100", "--pair-column", "none")
    assert isinstance(reported, dict)
    assert len(reported["rows"]) == 32
    for row in reported["rows"]:
        assert set(row) == {"text", "label"}
        assert row["label"] == ("true" if int(row["text"].split()[1]) % 2 else "false")
    assert reported["sizes"] == {"train": 32, "validation": 4, "test": 4}


def test_peek_refuses_a_split_that_is_not_there(hftune: Command, here: Path) -> None:
    write_rows(here / "odd.jsonl")
    code, _, err = hftune("data", "peek", "odd.jsonl", "--split", "tset")
    assert code == 2
    assert mentions(err, "train, validation, test")


def test_hostile_text_does_not_reach_the_terminal(hftune: Command, here: Path) -> None:
    evil = "\x1b[2J\x1b]0;owned\x07 [bold]x[/bold] \u202egnp.exe"
    lines = [json.dumps({"text": f"{evil} {i}", "label": f"{evil}{i % 2}"}) for i in range(30)]
    (here / "evil.jsonl").write_text("\n".join(lines), encoding="utf-8")
    for arguments in (["peek", "evil.jsonl"], ["check", "evil.jsonl"], ["peek", "evil.jsonl", "--json"]):
        code, out, err = hftune("data", *arguments)
        assert code == 0
        assert not {"\x1b", "\x07", "\u202e"} & set(out + err)
    assert "[bold]x[/bold]" in hftune("data", "peek", "evil.jsonl")[1]


def test_a_huge_row_is_cut_on_the_terminal_and_whole_in_json(hftune: Command, here: Path) -> None:
    (here / "big.csv").write_text("text,label\n" + "".join(f"{'x' * 100_000} {i},{i % 2}\n" for i in range(20)))
    assert len(hftune("data", "peek", "big.csv", "--rows", "1")[1]) < 2_000
    reported = answer(hftune, "peek", "big.csv", "--rows", "1")
    assert isinstance(reported, dict)
    assert len(reported["rows"][0]["text"]) > 100_000


def test_check_counts_words_or_the_tokens_of_a_model(hftune: Command, here: Path) -> None:
    write_rows(here / "odd.jsonl", 60)
    code, out, _ = hftune("data", "check", "odd.jsonl", "--max-length", "6")
    assert code == 0
    assert "train: 48 rows" in out
    assert mentions(out, "100.0% of train", "6 tokens")
    reported = answer(hftune, "check", "odd.jsonl", "--max-length", "64", "--model", "scratch:bert-tiny")
    assert isinstance(reported, dict)
    assert (reported["unit"], reported["max_length"]) == ("tokens", 64)
    # [CLS] is 7 odd [SEP] 7 and its parity [SEP], each word one token of a vocabulary trained on these rows.
    assert reported["splits"]["train"]["median_length"] == 10
    assert reported["splits"]["train"]["labels"] == {"false": 24, "true": 24}
    assert reported["splits"]["train"]["truncated"] == 0


def test_a_clean_dataset_is_reported_as_clean(hftune: Command, here: Path) -> None:
    write_rows(here / "odd.jsonl", 60)
    out = hftune("data", "check", "odd.jsonl")[1]
    assert mentions(out, "duplicates", "leakage", "--model") and "nothing truncated" not in out  # words were counted
    assert mentions(out, "validation was made from train: 6 rows")


def test_peek_shows_rows_next_to_the_problem_of_others(hftune: Command, here: Path) -> None:
    write_rows(here / "odd.jsonl")
    with (here / "odd.jsonl").open("a") as file:
        file.write('{"question": "", "passage": "", "answer": true}\n')
    code, out, err = hftune("data", "peek", "odd.jsonl", "--rows", "2")
    assert (code, out.count("and its parity")) == (2, 2)
    assert mentions(err, "line 41", "--drop-missing")
    code, out, err = hftune("data", "peek", "odd.jsonl", "--json")
    assert (code, len(json.loads(out)["rows"])) == (2, 5) and "line 41" in err
    assert hftune("data", "peek", "odd.jsonl", "--drop-missing")[0] == 0
    assert mentions(hftune("data", "check", "odd.jsonl", "--drop-missing")[1], "1 row with no text", "left out")


def test_the_endings_of_text_files_are_listed(hftune: Command, here: Path) -> None:
    (here / "texts").mkdir()
    code, _, err = hftune("data", "check", "./texts", "--task", "span")
    assert code == 2 and mentions(err, "no training file", ".txt, .text, .md, .jsonl") and ", ," not in err


@pytest.mark.parametrize("command", ["peek", "check"])
def test_bad_data_ends_in_a_message(hftune: Command, here: Path, command: str) -> None:
    (here / "bad.csv").write_text("text,label\na,b,c\n")
    code, out, err = hftune("data", command, "bad.csv")
    assert (code, out) == (2, "")
    assert "line 2: expected 2 columns" in err
    assert hftune("data", command, "nowhere.csv")[0] == 2


@pytest.mark.parametrize("name", [name for name in DATASETS if name in GENERATORS])
def test_make_gives_the_shipped_files_again(hftune: Command, here: Path, name: str) -> None:
    reported = answer(hftune, "make", name, "--output", "made/here")
    assert isinstance(reported, dict)
    assert reported["seed"] == DEFAULT_SEED
    assert set(reported["files"]) == {file.name for file in (here / "made" / "here").iterdir()}
    for file in DATASETS[name].files.values():
        assert (here / "made" / "here" / file).read_bytes() == (DATASETS[name].folder / file).read_bytes()
    assert [entry.name for entry in (here / "made").iterdir()] == ["here"]


def test_make_with_another_seed_and_into_a_full_folder(hftune: Command, here: Path) -> None:
    code, out, _ = hftune("data", "make", "reviews", "--seed", "7")
    assert code == 0
    assert "hftune data peek ./reviews" in out
    assert (here / "reviews" / "train.csv").read_bytes() != (DATASETS["reviews"].folder / "train.csv").read_bytes()
    before = (here / "reviews" / "train.csv").stat().st_mtime_ns
    code, _, err = hftune("data", "make", "reviews")
    assert code == 2
    assert mentions(err, "reviews", "--output")
    assert (here / "reviews" / "train.csv").stat().st_mtime_ns == before
    reported = answer(hftune, "peek", "./reviews")
    assert isinstance(reported, dict)
    assert reported["sizes"] == {"train": 4000, "validation": 500, "test": 500}
    code, _, err = hftune("data", "make", "reveiws")
    assert code == 2
    assert mentions(err, "mean 'reviews'")


def test_peek_marks_the_span_of_documents(hftune: Command) -> None:
    reported = answer(hftune, "peek", "births", "--rows", "3", "--set", "task.num_spans=2")
    assert isinstance(reported, dict)
    assert reported["rows"] == {"train": 1280, "validation": 500} and len(reported["examples"]) == 3
    for example in reported["examples"]:
        whole, marked, sequence = example["text"], example["truncated"], example["sequence"]
        assert whole.startswith(marked.replace("«", "").replace("»", ""))
        spans = [part.partition("»")[0] for part in marked.split("«")[1:]]
        rest = "⁇".join([marked.split("«")[0], *(part.partition("»")[2] for part in marked.split("«")[1:])])
        assert len(spans) == 2 and sequence == f"{rest}⁇{spans[0]}⁇{spans[1]}⁇"
    code, out, _ = hftune("data", "peek", "births", "--rows", "2", "--split", "validation")
    assert code == 0 and out.count("«") == 2 and "500 documents of train" in out


def test_peek_cuts_documents_as_training_does(hftune: Command) -> None:
    recipe = load_recipe("pretrain/births-span")
    task = SpanCorruption(recipe)
    data = task.load_data()
    tokenizer = task.load_tokenizer(data)
    inputs = task.prepare(data, tokenizer)
    for split, rows, number in (
        ("train", inputs.train, lambda row: (0, row)),
        ("validation", inputs.validation, lambda row: row),
    ):
        reported = answer(hftune, "peek", "births", "--rows", "40", "--split", split)
        assert isinstance(reported, dict)
        trained = [tokenizer.decode(rows[number(row)]["input_ids"]) for row in range(40)]
        assert [example["sequence"] for example in reported["examples"]] == trained
    shorter = answer(hftune, "peek", "births", "--rows", "40", "--recipe", "pretrain/span")
    assert isinstance(shorter, dict)
    cuts = [len(example["sequence"]) for example in shorter["examples"]]
    assert min(cuts) < recipe.task.min_document_length, "that recipe cuts them to four characters at least"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["peek", "births", "--label-column", "x"], ["--label-column", "task span"]),
        (["peek", "births", "--text-column", "x"], ["is plain text"]),
        (["peek", "births", "--task", "answer", "--pair-column", "x"], ["--pair-column", "task answer"]),
        (["peek", "births", "--recipe", "pretrain/prose-clm"], ["classify, span, answer", "'clm'"]),
        (["check", "births", "--max-length", "64"], ["--max-length", "task span"]),
        (["check", "births", "--label-column", "x"], ["--label-column", "task span"]),
        (["check", "births", "--model", "scratch:mingpt"], ["births", "text"]),
    ],
)
def test_flags_that_plain_text_has_no_use_for_are_refused(
    hftune: Command, arguments: list[str], message: list[str]
) -> None:
    code, out, err = hftune("data", *arguments)
    assert (code, out) == (2, "") and mentions(err, *message)


def test_peek_shows_questions_and_refuses_an_unknown_task(hftune: Command) -> None:
    code, out, _ = hftune("data", "peek", "births", "--task", "answer", "--rows", "1", "--split", "validation")
    assert code == 0 and "born?" in out
    code, _, err = hftune("data", "peek", "births", "--task", "sapn")
    assert code == 2 and "classify, span, answer" in err


def test_check_counts_documents_and_finds_repeated_ones(hftune: Command, here: Path) -> None:
    reported = answer(hftune, "check", "births")
    assert isinstance(reported, dict)
    assert reported["splits"]["train"]["documents"] == 1280 and reported["splits"]["train"]["repeated"] == 0
    code, out, _ = hftune("data", "check", "prose")
    assert code == 0 and mentions(out, "duplicates", "leakage")


ASKED = "".join(f"Where was person {i} born?\tplace {i % 4}\n" for i in range(30))
LABELED = "Review Text;Rating\n" + "".join(f"review {i};{i % 2}\n" for i in range(30))
KINDS = [
    ("asked.tsv", ASKED, "answer"),
    ("headed.tsv", "Question\tAnswer\n" + ASKED, "answer"),
    ("labeled.tsv", "question\tlabel\n" + ASKED, "classify"),
    ("plain.txt", "It was.\nIt was not.\n" * 9, "span"),
    ("fast.txt", "__label__1 good\n__label__2 bad\n" * 9, "classify"),
    ("reviews.csv", LABELED, "classify"),
    ("texts.csv", "id,Comment\n" + "".join(f"{i},a long comment\n" for i in range(30)), "span"),
    ("rows.jsonl", '{"text": "a", "stars": 1}\n' * 9, "classify"),
    ("documents.jsonl", '{"text": "a document"}\n' * 9, "span"),
    ("odd.csv", "one,two,three\na,b,c\n", None),
    ("broken.csv", 'text,label\n"a,b\n', "classify"),
]


@pytest.mark.parametrize(("name", "content", "kind"), KINDS, ids=[case[0] for case in KINDS])
def test_what_a_file_is_is_recognized(here: Path, name: str, content: str, kind: str | None) -> None:
    (here / name).write_text(content, encoding="utf-8")
    kinds = {"classify": "labeled", "span": "corpus", "answer": "questions"}
    assert recognize(name) == (kinds[kind] if kind is not None else None)
    folder = here / "folder"
    folder.mkdir()
    (folder / f"train.{name.split('.')[1]}").write_text(content, encoding="utf-8")
    (folder / "wiki.txt").write_text("A text.\n", encoding="utf-8")
    assert recognize("folder") == recognize(name)


def test_peek_and_check_need_no_task(hftune: Command, here: Path) -> None:
    (here / "asked.tsv").write_text(ASKED + "Where was person 1 born?\telsewhere\n", encoding="utf-8")
    (here / "reviews.csv").write_text(LABELED, encoding="utf-8")
    (here / "odd.csv").write_text("one,two\n" + "".join(f"text {i},{i % 2}\n" for i in range(30)), encoding="utf-8")
    shown = answer(hftune, "peek", "asked.tsv")
    assert isinstance(shown, dict) and set(shown["examples"][0]) == {"question", "answer"}
    checked = answer(hftune, "check", "asked.tsv")
    assert isinstance(checked, dict)
    counted = [sum(part[what] for part in checked["splits"].values()) for what in ("questions", "repeated")]
    assert counted[0] == 31 and counted[1] <= 1
    shown = answer(hftune, "peek", "reviews.csv")
    assert isinstance(shown, dict) and shown["labels"] == ["0", "1"]
    for command in ("peek", "check"):
        code, _, err = hftune("data", command, "odd.csv")
        assert code == 2 and mentions(err, "odd.csv", "--label-column", "--text-column", "--task span", "--task answer")
        code, _, err = hftune("data", command, "odd.csv", "--label-column", "two")
        assert code == 0, err


def test_a_tokenizer_is_measured_on_what_the_file_holds(hftune: Command, here: Path) -> None:
    (here / "asked.tsv").write_text(ASKED, encoding="utf-8")
    (here / "reviews.csv").write_text(LABELED, encoding="utf-8")
    (here / "text.txt").write_text("some text to learn from\n" * 50, encoding="utf-8")
    train = ("tokenizer", "train", "--corpus", "text.txt", "--vocab-size", "262", "--output", "made")
    assert hftune(*train)[0] == 0
    for name, start in (("asked.tsv", "Where was person"), ("reviews.csv", "review "), ("text.txt", "some text")):
        code, out, err = hftune("tokenizer", "show", "made", "--corpus", name, "--json")
        assert code == 0, err
        assert json.loads(out)["sample"]["text"].startswith(start)
    (here / "odd.csv").write_text("one,two\ntext a,1\n", encoding="utf-8")
    code, _, err = hftune("tokenizer", "show", "made", "--corpus", "odd.csv")
    assert code == 2 and mentions(err, "odd.csv", "--text-column")
    code, out, err = hftune("tokenizer", "show", "made", "--corpus", "odd.csv", "--text-column", "one", "--json")
    assert code == 0 and json.loads(out)["sample"]["text"] == "text a", err
