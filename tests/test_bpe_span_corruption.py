"""A vocabulary of learned pieces for span corruption and answers: exact, always the same, and scored by character."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from facts import hftune_error, mentions
from tiny_qa import BORN, rows
from trained_tokenizers import char_tokenizer, masked_tokenizer
from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerBase

from hftune import predict
from hftune.models.settings import MASK
from hftune.models.tokenizer_stats import plain_text_kwargs
from hftune.models.tokenizers import train_tokenizer
from hftune.pipeline.train import train
from hftune.progress import ProgressReporter
from hftune.recipe import Recipe, load_recipe
from hftune.tasks import task_class
from hftune.tasks.contamination import seen_parts
from hftune.tasks.corruption import Corruption, characters_of_each, corrupted, plan
from hftune.tasks.span_corruption import span_text

pytestmark = pytest.mark.numeric

TEXTS = [f"{name}. {name} was born in {town} and lives in {town} ." for name, town in BORN.items()]
SIZE = 323
SHAPE = {
    "model.num_hidden_layers": 1,
    "model.num_attention_heads": 2,
    "model.hidden_size": 32,
    "model.block_size": 48,
    "model.attention": "rope",
}
PIECES = {"model.tokenizer_type": "bpe", "model.vocab_size": SIZE}


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return masked_tokenizer("bpe", TEXTS, SIZE, block_size=48)


def ids(tokenizer: PreTrainedTokenizerBase, text: str, **how: bool) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False, **how)["input_ids"])


@pytest.mark.parametrize(
    "text", ["Ann Ash was born", " a blank first", "  two", "", " ", "日本 ⁇ ë\n\ty ", "<|pad|>", "né\u0301e 🏳️‍🌈"]
)
def test_any_text_comes_back_exactly(tokenizer: PreTrainedTokenizerBase, tmp_path: Path, text: str) -> None:
    tokenizer.save_pretrained(tmp_path)
    for one in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        found = ids(one, text, **plain_text_kwargs(one))
        assert one.decode(found) == text
        assert not {one.mask_token_id, one.pad_token_id} & set(found), "special tokens in a text are its characters"
        assert one.model_max_length == 48 and one.unk_token is None


def test_a_word_has_the_same_tokens_in_any_place(tokenizer: PreTrainedTokenizerBase) -> None:
    place = ids(tokenizer, "Rome")
    assert ids(tokenizer, "was born in Rome")[-len(place) :] == place
    assert len(place) < len("Rome"), "pieces are learned"
    assert len(ids(tokenizer, TEXTS[0])) < len(TEXTS[0]) / 2
    again = masked_tokenizer("bpe", iter(TEXTS), SIZE)
    assert again.get_vocab() == tokenizer.get_vocab()
    asked = ids(tokenizer, f"Where was Ann Ash born?{MASK}")
    assert asked[-1] == tokenizer.mask_token_id and asked.count(tokenizer.mask_token_id) == 1


def test_a_span_keeps_its_blanks(tokenizer: PreTrainedTokenizerBase) -> None:
    letters = char_tokenizer(TEXTS)
    for one in (tokenizer, letters):
        found = ids(one, "born in Rome and")
        assert span_text(one, found[-1:]) in (" and", "d")
        assert span_text(one, found) == (" born in Rome and" if one is tokenizer else "born in Rome and")


def test_vocabularies_that_can_not_be_had() -> None:
    with hftune_error("256 bytes", "2 special", "vocab_size", 257) as caught:
        masked_tokenizer("bpe", TEXTS, 257)
    assert "258" in caught.value.hint
    with hftune_error("text"):
        masked_tokenizer("bpe", ["", "\n"], SIZE)
    assert len(masked_tokenizer("bpe", ["ab"], 4000)) == 258, "a text that gives no more is no mistake"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"task.kind": "classify", "model.tokenizer_type": "bpe"},
            ["scratch:bert-tiny", "wordpiece", "tokenizer_type bpe"],
        ),
        (
            {"task.kind": "answer", "model.model_name_or_path": "a/b", "model.tokenizer_type": "bpe"},
            ["tokenizer_type", "a/b"],
        ),
        (
            {"task.kind": "span", "model.tokenizer_name": "x", "model.tokenizer_type": "char"},
            ["tokenizer_type", "tokenizer_name", "x"],
        ),
        (
            {"task.kind": "clm", "model.tokenizer_type": "char"},
            ["clm", "bpe or unigram", "model.tokenizer_type"],
        ),
        (
            {"task.kind": "span", "model.tokenizer_type": "char", "model.vocab_size": 500},
            ["model.tokenizer_type=bpe"],
        ),
        (
            {"task.kind": "span", "model.tokenizer_name": "x", "model.vocab_size": 500},
            ["model.vocab_size", "tokenizer_name", "x"],
        ),
        (
            {
                "task.kind": "span",
                "model.model_name_or_path": "a/b",
                "model.tokenizer_type": "bpe",
                "model.num_hidden_layers": 2,
            },
            ["num_hidden_layers, tokenizer_type"],
        ),
    ],
)
def test_what_would_be_ignored_is_refused(settings: dict[str, Any], message: list[str]) -> None:
    with hftune_error(*message):
        load_recipe(None, settings)


def test_tokens_are_measured_in_characters(tokenizer: PreTrainedTokenizerBase) -> None:
    letters = char_tokenizer([*TEXTS, "ë日"])
    lossy = train_tokenizer("wordpiece", lambda: TEXTS, 120, exact=False)
    texts = [*TEXTS, "née ë日"]
    assert characters_of_each(["born  "], lossy)[0].sum() == 6, "what is left out at the end too"
    for one in (tokenizer, letters, lossy):
        sizes = characters_of_each(texts, one)
        assert [len(size) for size in sizes] == [len(ids(one, text, **plain_text_kwargs(one))) for text in texts]
        assert [size.sum() for size in sizes] == [len(text) for text in texts]
        assert all((size >= 0).all() for size in sizes)
    assert all((size == 1).all() for size in characters_of_each(texts, letters))


class Slow(BertTokenizer):
    """A tokenizer that can't tell where its tokens end."""

    is_fast = False

    def __call__(self, *texts: Any, **how: Any) -> Any:
        assert not how["return_offsets_mapping"]
        return super().__call__(*texts, **how)


def test_a_slow_tokenizer_shares_the_characters_out_evenly() -> None:
    slow = Slow(vocab={"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "ab": 5, "c": 6})
    (sizes,) = characters_of_each(["ab c ab"], slow)
    assert sizes == pytest.approx([7 / 3] * 3)


@pytest.mark.parametrize("spans", [1, 2])
@pytest.mark.parametrize("kind", ["characters", "pieces"])
def test_every_predicted_character_is_counted(tokenizer: PreTrainedTokenizerBase, kind: str, spans: int) -> None:
    """Against what decoding makes of the tokens, one by one; every character of these texts is one byte."""
    one = tokenizer if kind == "pieces" else char_tokenizer(TEXTS)
    texts = TEXTS * 20
    tokens = [np.array(ids(one, text)) for text in texts]
    drawn = plan(np.array([len(row) for row in tokens]), Corruption(4, 12, 0.3, spans, True), seed=1, epoch=0)
    found = drawn.characters(characters_of_each(texts, one))
    assert (drawn.spans[:, 0] == 0).any() and drawn.starts.max() > 0, "some begin with a hole, some in the middle"
    for place, row in enumerate(tokens):
        made = corrupted(row, drawn, place, 1)
        written = sum(len(span_text(one, [token])) if token != 1 else 1 for token in made[1:].tolist())
        added = kind == "pieces" and drawn.starts[place] == 0 and made[0] == 1
        assert found[place] == written - added, "the blank before a text is no character of it"


def test_prefixes_are_cut_by_tokens(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    long = " ".join(TEXTS)
    texts = [*TEXTS, long]
    recipe = load_recipe(None, {"task.kind": "span", "model.model_name_or_path": "scratch:mingpt", **SHAPE, **PIECES})
    own = masked_tokenizer("bpe", texts, SIZE)
    kept = ids(own, long)[: int(48 * 0.875)]
    assert seen_parts(recipe.task, recipe.model, texts) == [*TEXTS, own.decode(kept)]
    coarse = masked_tokenizer("bpe", TEXTS, 270)
    coarse.save_pretrained(tmp_path)
    cut = coarse.decode(ids(coarse, long)[: int(48 * 0.875)])
    assert seen_parts(recipe.task, recipe.model, texts, tmp_path)[-1] == cut != own.decode(kept), (
        "the run's own, where it is there"
    )
    assert len(own.decode(kept)) > len(kept)


def recipe(task: str, name: Path | str, **values: Any) -> Recipe:
    settings = {
        "data.dataset_name": str(name),
        "train.per_device_train_batch_size": 4,
        "train.learning_rate": 1e-2,
        "train.num_train_epochs": 2,
    }
    return load_recipe(None, {**settings, **values}, task=task)


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus, questions, and a run that has read the corpus in pieces."""
    place = tmp_path_factory.mktemp("pieces")
    (place / "wiki.txt").write_text("\n".join(TEXTS) + "\n")
    for split in ("train", "validation"):
        (place / f"{split}.tsv").write_text(rows(list(BORN)))
    train(
        recipe("span", place / "wiki.txt", **{"model.model_name_or_path": "scratch:mingpt", **SHAPE, **PIECES}),
        place / "read",
    )
    return place


def test_pretraining_is_scored_by_character_and_comes_back(read: Path) -> None:
    metrics = json.loads((read / "read" / "metrics.json").read_text())
    validation = metrics["splits"]["validation"]
    task = task_class("span")(
        recipe("span", read / "wiki.txt", **{"model.model_name_or_path": "scratch:mingpt", **SHAPE, **PIECES})
    )
    data = task.load_data()
    inputs = task.prepare(data, task.load_tokenizer(data))
    predicted = sum(inputs.validation_lengths) - len(inputs.validation_lengths)
    characters = sum(inputs.validation.characters)  # type: ignore[attr-defined]
    assert characters > predicted
    assert validation["bits_per_character"] == pytest.approx(
        validation["loss"] * predicted / characters / math.log(2), rel=1e-4
    )
    for row in (
        json.loads(line) for line in (read / "read" / "predictions" / "validation.jsonl").read_text().splitlines()
    ):
        prefix, _, suffix = row["text"].partition(MASK)
        # Only a hole at the very beginning has the blank that is put before every text.
        assert any(text.startswith(f"{prefix}{row['gold']}{suffix}".lstrip()) for text in TEXTS)


def test_the_card_shows_a_masked_span_and_how_to_fill_it(read: Path) -> None:
    card = (read / "read" / "model" / "README.md").read_text()
    prompt = next(line for line in card.splitlines() if line.startswith("print(model("))
    assert prompt.count(MASK) == 2 and f'{MASK}", return_full_text=False' in prompt
    assert mentions(card, str(MASK))


def test_answers_are_learned_with_bpe(read: Path) -> None:
    settings = {"model.model_name_or_path": str(read / "read"), "train.num_train_epochs": 40, "train.eval_steps": 80}
    result = train(recipe("answer", read, **settings), read / "asked")
    # Six answers are soon known by heart; one may be missed where rounding leads training elsewhere.
    assert result.metrics["splits"]["validation"]["exact_match"] > 0.8
    rows = result.run.read_predictions("validation")
    assert all(row["seen_in_pretraining"] and row["seen_in_finetuning"] for row in rows)
    (asked,) = predict(result.run.path, [rows[0]["text"]])
    assert asked.label == rows[0]["label"], "the command line answers as scoring did"
    fresh = {"model.model_name_or_path": "scratch:mingpt", **SHAPE, **PIECES, "train.max_steps": 1}
    made = train(recipe("answer", read, **fresh), read / "fresh")
    assert len(AutoTokenizer.from_pretrained(made.run.model)) == SIZE, "without pretraining too"
    known = AutoTokenizer.from_pretrained(made.run.model).get_vocab()
    assert "ĠAnn" in known and "Ann" not in known, "the corpus is read line by line, as in pretraining"


def test_a_prompt_with_a_hole_is_read_as_it_was_in_training(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    row = np.array(ids(tokenizer, TEXTS[0]))
    drawn = plan(np.array([len(row)] * 50), Corruption(8, 30, 0.3, 1, False), seed=1, epoch=0)
    for one in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        checked = 0
        for place in range(50):
            made = corrupted(row, drawn, place, one.mask_token_id).tolist()
            parts = " ".join(one.convert_ids_to_tokens(made)).split(f" {MASK}")
            if all(part.strip().startswith("Ġ") for part in parts if part.strip()):  # each begins a word
                assert ids(one, one.decode(made)) == made
                checked += 1
        assert checked > 5


def test_a_long_answer_is_not_cut_off_where_the_learned_ones_are_short(read: Path) -> None:
    """A town that was never learned has as many letters as these, and more pieces."""
    settings = {"model.model_name_or_path": str(read / "read"), "train.max_steps": 1}
    asked = train(recipe("answer", read, **settings), read / "asked-briefly")
    tokenizer = AutoTokenizer.from_pretrained(asked.run.model)
    assert {len(ids(tokenizer, town)) for town in BORN.values()} == {1} and len(ids(tokenizer, "Zürq")) > 3
    facts = json.loads((asked.run.model / "hftune.json").read_text())
    assert facts["longest_answer"] == 5, "four letters and the mark"


def test_other_text_is_counted_in_the_vocabulary_of_the_run(read: Path, tmp_path: Path) -> None:
    """Baselines next to a run's scores are of the same tokens, not of a vocabulary of the other text."""
    other = [f"{text} Indeed, indeed ." for text in TEXTS[:4]]
    (tmp_path / "other.txt").write_text("\n".join(other) + "\n")
    settings = {"model.model_name_or_path": "scratch:mingpt", **SHAPE, **PIECES}
    task = task_class("span")(recipe("span", tmp_path / "other.txt", **settings))
    data = task.load_data()
    again = task_class("span")(recipe("span", tmp_path / "other.txt", **settings))
    again.evaluate(read / "read" / "model", data, ["validation"], ProgressReporter())
    own = AutoTokenizer.from_pretrained(read / "read" / "model").get_vocab()
    assert again.load_tokenizer(data).get_vocab() == own != task.load_tokenizer(data).get_vocab()
    assert again.baselines(data, ["validation"]) != task.baselines(data, ["validation"])


def test_a_document_of_one_token_is_refused(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("\n".join([*TEXTS, "born"]) + "\n")
    wanted = recipe("span", tmp_path / "short.txt", **{"model.model_name_or_path": "scratch:mingpt", **SHAPE, **PIECES})
    with hftune_error("1 of 7 documents", "2 tokens", "'born'") as caught:
        train(wanted, tmp_path / "run")
    assert "model.tokenizer_type" in caught.value.hint


def test_what_is_never_seen_is_kept_with_the_run(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("\n".join(" ".join(TEXTS[start:]) for start in range(3)) + "\n")
    settings = {"model.model_name_or_path": "scratch:mingpt", **SHAPE, **PIECES, "train.max_steps": 1}
    result = train(recipe("span", tmp_path / "long.txt", **settings), tmp_path / "run")
    assert any("first 42 tokens" in note for note in result.metrics["data"]["notes"])
