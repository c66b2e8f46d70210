"""Where a model can have met a name: followed back through its runs, to what they read and what they were asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from facts import mentions
from tiny_qa import BLOCK, plant, rows, tiny
from trained_tokenizers import char_tokenizer

from hftune.data.questions import load_questions
from hftune.data.settings import QuestionData
from hftune.evaluation.knowledge import names_in_text
from hftune.models.causal import save_causal_lm
from hftune.models.settings import ModelSection
from hftune.models.tokenizers import train_tokenizer
from hftune.recipe import load_recipe, read_recipe
from hftune.runs.directory import RunDir
from hftune.tasks import task_class
from hftune.tasks.contamination import contamination_of, seen_parts

NAMES = ("Ann Ash", "Bob Bay", "Cy Cole", "Dee Dun")
FURTHEST = 35
"""Characters of a document that are seen: 0.875 of the block."""


def read(place: Path, name: str, text: str, start: str = "scratch:mingpt", **values: object) -> str:
    """A run that is taken for pretrained on a text, and its path."""
    (place / f"{name}.txt").write_text(text)
    run = RunDir.create(place / name)
    shape = {"model.block_size": BLOCK} if start.startswith("scratch:") else {}
    data = {"task.kind": "span", "data.dataset_name": str(place / f"{name}.txt"), "model.model_name_or_path": start}
    run.write_recipe(load_recipe(None, {**data, **shape, **values}))
    tokenizer = char_tokenizer([text, *NAMES], block_size=BLOCK)
    save_causal_lm(tiny(tokenizer), tokenizer, run.model, task="span")
    return str(run.path)


def met(run: str) -> set[str]:
    texts = contamination_of(ModelSection(model_name_or_path=run)).texts
    assert texts is not None
    return names_in_text(NAMES, texts)


def test_what_was_read_is_followed_back_to_its_beginning(tmp_path: Path) -> None:
    """Every text counts that the weights were trained on, and of a text only what training sees."""
    first = read(tmp_path, "first", f"Ann Ash is first.\n{'x' * FURTHEST} Bob Bay\n")
    second = read(tmp_path, "second", f"Cy Cole is second.\n{'x' * (FURTHEST - 4)} Dee Dun\n", first)
    assert met(first) == {"Ann Ash"}, "Bob Bay stands behind the longest cut"
    assert met(second) == {"Ann Ash", "Cy Cole"}, "weights of a run have a block too"
    assert contamination_of(ModelSection(model_name_or_path=first)).corpus == "first.txt"
    assert contamination_of(ModelSection(model_name_or_path=second)).corpus == "first.txt, then second.txt"
    anywhere = read(tmp_path, "anywhere", f"{'x' * 200} Dee Dun\n", first, **{"task.crop": "random"})
    assert met(anywhere) == {"Ann Ash", "Dee Dun"}
    (tmp_path / "first.txt").unlink()
    assert contamination_of(ModelSection(model_name_or_path=second)).texts is None, (
        "a part that is not known leaves all unknown"
    )


@pytest.mark.parametrize("room", [0, 1])
def test_the_last_character_before_the_cut_is_seen(tmp_path: Path, room: int) -> None:
    first = read(tmp_path, "first", "nobody\n")
    again = read(tmp_path, "again", f"{'x' * (FURTHEST - 8 + room)} Bob Bay born\n", first)
    assert met(again) == (set() if room else {"Bob Bay"})


def test_a_bpe_vocabulary_is_cut_by_its_tokens(tmp_path: Path) -> None:
    texts = ["the café by the sea " * 20, "the sea"]
    tokenizer = train_tokenizer("bpe", lambda: texts, 300, exact=False)
    tokenizer.save_pretrained(tmp_path / "pieces")
    values = {"task.kind": "span", "model.model_name_or_path": "scratch:mingpt", "model.block_size": BLOCK}
    recipe = load_recipe(None, {**values, "model.tokenizer_name": str(tmp_path / "pieces")})
    ids = tokenizer(texts[0])["input_ids"]
    assert seen_parts(recipe.task, recipe.model, texts) == [tokenizer.decode(ids[:FURTHEST]), "the sea"]
    assert len(ids) > FURTHEST and len(seen_parts(recipe.task, recipe.model, texts)[0]) > FURTHEST


def test_a_recipe_can_not_make_hftune_run_code_next_to_a_run(tmp_path: Path) -> None:
    first = read(tmp_path, "first", "nobody\n")
    second = read(tmp_path, "second", "Ann Ash\n", first, **{"model.trust_remote_code": True})
    config = {"model_type": "strange", "auto_map": {"AutoConfig": "strange.Strange"}}
    (tmp_path / "first" / "model" / "config.json").write_text(json.dumps(config))
    code = f"open({str(tmp_path / 'ran')!r}, 'w')\nfrom transformers import PreTrainedConfig as Strange\n"
    (tmp_path / "first" / "model" / "strange.py").write_text(code)
    found = contamination_of(ModelSection(model_name_or_path=second))
    assert found.texts is None and mentions(found.corpus, "corpus", "second")
    assert not (tmp_path / "ran").exists()


def keep(run: str, fingerprint: str) -> None:
    """metrics.json as training leaves it, as far as it matters here."""
    RunDir(Path(run)).write_metrics({"verified": True, "data": {"fingerprints": {"train": fingerprint}}})


@pytest.mark.parametrize("objective", ["span", "clm"])
def test_text_that_has_changed_since_is_not_compared(tmp_path: Path, objective: str) -> None:
    lines = "Ann Ash is first.\nno\nBob Bay is second.\n"  # one is too short for a span
    settings = {"task.short_documents": "drop"} if objective == "span" else {"data.validation_size": 0}
    run = read(tmp_path, "first", lines, **{"task.kind": objective, **settings})
    task = task_class(objective)(read_recipe(RunDir(Path(run))))
    keep(run, task.describe(task.load_data()).fingerprints["train"])
    assert met(run) == {"Ann Ash", "Bob Bay"}, "as it was"
    (tmp_path / "first.txt").write_text(lines + "Cy Cole came later.\n")
    found = contamination_of(ModelSection(model_name_or_path=run))
    assert found.texts is None and found.corpus == "the corpus of first has changed since"


def ask(place: Path, name: str, people: list[str], start: str = "scratch:mingpt") -> str:
    """A run that is taken for fine-tuned on questions about these people, and its path."""
    data = place / f"{name}-data"
    data.mkdir()
    (data / "train.tsv").write_text(rows(people))
    (data / "dev.tsv").write_text(rows(["Flo Fox"]))
    return str(plant(place / name, data, start).path)


def test_questions_of_every_run_behind_a_model_count(tmp_path: Path) -> None:
    first = ask(tmp_path, "first", ["Ann Ash", "Bob Bay"])
    second = ask(tmp_path, "second", ["Cy Cole", "Dee Dun"], first)
    found = contamination_of(ModelSection(model_name_or_path=second))
    assert found.names == {"Ann Ash", "Bob Bay", "Cy Cole", "Dee Dun"} and found.missing is None
    questions = [f"Where was {name} born?" for name in ("Ann Ash", "Eve Elm", "Flo Fox")]
    seen = contamination_of(ModelSection(model_name_or_path=first)).with_questions(
        QuestionData(dataset_name="none"), [questions[1], "Where was Jo Joy born?"], "this run"
    )
    assert [row["seen_in_finetuning"] for row in seen.where(questions)] == [True, True, False]

    (tmp_path / "first-data" / "train.tsv").unlink()
    seen = contamination_of(ModelSection(model_name_or_path=second), questions)
    known = [f"Where was {name} born?" for name in ("Cy Cole", "Ann Ash")]
    assert [row["seen_in_finetuning"] for row in seen.where(known)] == [True, None]
    assert mentions(seen.notes[0], "questions", "first")


def test_questions_that_have_changed_since_are_not_compared(tmp_path: Path) -> None:
    run = ask(tmp_path, "asked", ["Ann Ash", "Bob Bay"])
    data = tmp_path / "asked-data"
    keep(run, load_questions(QuestionData(dataset_name=str(data))).train.fingerprint())
    assert contamination_of(ModelSection(model_name_or_path=run)).names == {"Ann Ash", "Bob Bay"}
    (data / "train.tsv").write_text(rows(["Ann Ash", "Cy Cole"]))
    questions = [f"Where was {name} born?" for name in ("Cy Cole", "Ann Ash")]
    found = contamination_of(ModelSection(model_name_or_path=run), questions)
    assert found.where(questions)[0]["seen_in_finetuning"] is None
    assert found.missing == "the training questions of asked have changed since"


def test_a_run_reports_that_what_it_began_with_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named by a path next to other runs, so that it is not taken for one on the Hub."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    read(tmp_path / "runs", "first", "Ann Ash is first.\n")
    asked = ask(tmp_path / "runs", "asked", ["Bob Bay", "Cy Cole"], "runs/first")
    assert contamination_of(ModelSection(model_name_or_path=asked)).missing is None
    (tmp_path / "runs" / "first").rename(tmp_path / "elsewhere")
    found = contamination_of(ModelSection(model_name_or_path=asked))
    assert found.names == {"Bob Bay", "Cy Cole"}
    assert found.missing == "runs/first can't be read (there is no folder runs/first)"
    assert contamination_of(ModelSection(model_name_or_path=asked)).texts is None
