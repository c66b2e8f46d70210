"""Datasets as they are on the Hub: each replica is trained on, or refused before training with what to do instead."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from dataset_replicas import CONVERTED, HELD_OUT, REPLICAS, TRAIN, encode, publish
from facts import mentions
from hub_client import Client

BRIEF = ("--model", "scratch:bert-tiny", "--set", "model.vocab_size=300", "--set", "train.max_steps=4")
BRIEF += ("--batch-size", "8", "--max-length", "16")
LOAD = """
import datasets, json, os
from hftune.data.settings import LabeledData
from hftune.data.load import load
from hftune.errors import HftuneError

seen = []
for options in json.loads(os.environ["OPTIONS"]):
    datasets.config.HF_HUB_OFFLINE = options.pop("offline", False)
    try:
        splits = load(LabeledData(**options))
    except HftuneError as error:
        seen.append({"message": error.message, "hint": error.hint})
    else:
        sizes = {split: len(rows) for split, rows in splits.named.items()}
        first = {split: rows[0] for split, rows in splits.named.items()}
        seen.append({"labels": splits.labels, "notes": splits.notes, "sizes": sizes, "first": first})
print(json.dumps(seen))
"""


@dataclass(frozen=True)
class Works:
    """A dataset that is trained on."""

    repo: str
    settings: dict[str, str]
    labels: tuple[str, ...]
    pair: bool = False
    sizes: tuple[int, int, int] = (TRAIN, HELD_OUT, HELD_OUT)
    notes: tuple[str, ...] = ()
    """What the notes must hold."""
    hidden_test: bool = False
    """Whether its test labels are not published."""

    def __str__(self) -> str:
        return " ".join([self.repo.rpartition("/")[2], *self.settings.values()])


@dataclass(frozen=True)
class Refused:
    """A dataset that is refused: what the message and the hint must hold."""

    repo: str
    settings: dict[str, str]
    message: tuple[str, ...]
    hint: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join([self.repo.rpartition("/")[2], *self.settings.values()])


def glue(subset: str, *labels: str, pair: bool = True, hidden: bool = True, notes: tuple[str, ...] = ()) -> Works:
    output = (*notes, *(["test has no labels: it gets predictions and no scores"] if hidden else []))
    return Works("nyu-mll/glue", {"dataset_config_name": subset}, labels, pair, notes=output, hidden_test=hidden)


EMOTIONS = ("sadness", "joy", "love", "anger", "fear", "surprise")
THREE_WAY = ("entailment", "neutral", "contradiction")
FROM_HUB = {"dataset_revision": CONVERTED}
WORKS = (
    Works("google/boolq", {}, ("false", "true"), pair=True, sizes=(TRAIN - 5, HELD_OUT, 5), notes=("test was made",)),
    Works(
        "Yelp/yelp_review_full",
        {},
        ("1 star", "2 star", "3 stars", "4 stars", "5 stars"),
        sizes=(86, 10, HELD_OUT),
        notes=("validation was made from train",),
    ),
    Works(
        "stanfordnlp/imdb",
        {},
        ("neg", "pos"),
        sizes=(43, 5, HELD_OUT),
        notes=("splits that are not used: 'unsupervised'", "validation was made from train"),
    ),
    glue("cola", "unacceptable", "acceptable", pair=False),
    glue(
        "mnli",
        *THREE_WAY,
        notes=(
            "validation is the split 'validation_matched'; --set data.validation_split_name=validation_mismatched",
            "test is the split 'test_matched'; --set data.test_split_name=test_mismatched",
        ),
    ),
    glue("mrpc", "not_equivalent", "equivalent", hidden=False),
    glue("qnli", "entailment", "not_entailment"),
    glue("qqp", "not_duplicate", "duplicate"),
    glue("rte", "entailment", "not_entailment"),
    glue("sst2", "negative", "positive", pair=False),
    glue("wnli", "not_entailment", "entailment"),
    Works(
        "SetFit/sst5",
        {},
        ("very negative", "negative", "neutral", "positive", "very positive"),
        sizes=(TRAIN * 2, HELD_OUT, HELD_OUT),
        notes=("label names come from column 'label_text'",),
    ),
    Works(
        "dair-ai/emotion",
        {},
        EMOTIONS,
        sizes=(TRAIN * 2, HELD_OUT, HELD_OUT),
        notes=(
            "configuration 'split' is the default; --set data.dataset_config_name=NAME takes another one: 'unsplit'",
        ),
    ),
    Works(
        "dair-ai/emotion",
        {"dataset_config_name": "unsplit"},
        EMOTIONS,
        sizes=(116, 14, 14),
        notes=("validation was made from train",),
    ),
    Works("fancyzhx/ag_news", {}, ("World", "Sports", "Business", "Sci/Tech"), sizes=(86, 10, HELD_OUT)),
    Works("tester/tickets", {}, ("0", "1"), sizes=(43, 5, HELD_OUT)),
    Works("odegiber/hate_speech18", FROM_HUB, ("noHate", "hate", "idk/skip", "relation"), sizes=(76, 10, 10)),
    Works(
        "aps/super_glue",
        FROM_HUB | {"dataset_config_name": "cb"},
        ("entailment", "contradiction", "neutral"),
        pair=True,
        hidden_test=True,
    ),
)
REFUSED = (
    Refused(
        "nyu-mll/glue",
        {},
        ("12 configurations", "'ax', 'cola', 'mnli', 'mnli_matched', 'mnli_mismatched', 'mrpc'", "'stsb', 'wnli'"),
        ("--set data.dataset_config_name=NAME", "--set data.dataset_config_name=cola"),
    ),
    Refused(
        "nyu-mll/glue",
        {"dataset_config_name": "sst-2"},
        ("no configuration 'sst-2'", "'sst2'"),
        ("did you mean 'sst2'?", "--set data.dataset_config_name=NAME"),
    ),
    Refused(
        "nyu-mll/glue",
        {"dataset_config_name": "stsb"},
        ("the label 3.8 is not a whole number", "scores from 0 to 5", "regression"),
        ("regression is not supported yet", "--label-column"),
    ),
    Refused(
        "nyu-mll/glue",
        {"dataset_config_name": "ax"},
        ("configuration 'ax', has no training split", "its splits are 'test'"),
        ("`hftune evaluate RUN --data nyu-mll/glue --set data.dataset_config_name=ax`",),
    ),
    *(
        Refused(
            "nyu-mll/glue",
            {"dataset_config_name": subset},
            (f"configuration '{subset}', has no training split", "its splits are 'validation', 'test'"),
            (f"`hftune evaluate RUN --data nyu-mll/glue --set data.dataset_config_name={subset} --split validation`",),
        )
        for subset in ("mnli_matched", "mnli_mismatched")
    ),
    Refused(
        "google/boolq",
        {"dataset_config_name": "boolq"},
        ("no configuration 'boolq'; it has 'default'",),
        ("data.dataset_config_name",),
    ),
    Refused(
        "stanfordnlp/imdb", {"train_split_name": "unsupervised"}, ("48 rows that the source marks as unlabeled",), ()
    ),
    Refused(
        "odegiber/hate_speech18",
        {},
        ("loading script (hate_speech18.py)", "no longer runs dataset scripts"),
        (f"has converted it to parquet: add --set data.dataset_revision={CONVERTED}",),
    ),
    Refused(
        "aps/super_glue",
        {},
        ("loading script (super_glue.py)",),
        (f"--set data.dataset_revision={CONVERTED} and --set data.dataset_config_name=NAME", "'boolq', 'cb', 'rte'"),
    ),
    Refused(
        "aps/super_glue",
        FROM_HUB,
        ("3 configurations", "'boolq', 'cb', 'rte'"),
        ("--set data.dataset_config_name=NAME",),
    ),
    Refused(
        "aps/super_glue",
        FROM_HUB | {"dataset_config_name": "bolq"},
        ("no configuration 'bolq'",),
        ("did you mean 'boolq'?",),
    ),
    Refused(
        "tester/scripted",
        {},
        ("loading script (scripted.py)",),
        (f"data.dataset_revision={CONVERTED}, but this one has",),
    ),
    Refused("tester/scripted", FROM_HUB, (f"no revision '{CONVERTED}'",), ("data.dataset_revision",)),
    Refused(
        "stanfordnlp/imbd", {}, ("nor a dataset on the Hub that you can read",), ("did you mean 'stanfordnlp/imdb'?",)
    ),
)
QUICK = tuple(
    case
    for case in (*WORKS, *REFUSED)
    if str(case)
    in (
        *("boolq", "imdb", "sst5", "emotion", "tickets", "glue mnli", f"hate_speech18 {CONVERTED}"),
        *("glue", "glue stsb", "glue ax", "hate_speech18", "scripted", "imbd"),
    )
)
"""Enough to meet every way of reading and refusing; the others are slow."""


@pytest.fixture(scope="module")
def replicas(hub_client: Client) -> None:
    for repo in REPLICAS:
        publish(hub_client.hub, repo)


def load_all(client: Client, options: list[dict[str, Any]], token: str | None = None) -> list[dict[str, Any]]:
    done = client.python(LOAD, token=token, OPTIONS=json.dumps(options))
    assert done.returncode == 0, done.stderr
    seen: list[dict[str, Any]] = json.loads(done.stdout.strip().splitlines()[-1])
    return seen


def check_works(case: Works, seen: dict[str, Any]) -> None:
    assert tuple(seen["labels"]) == case.labels
    assert tuple(seen["sizes"].values()) == case.sizes
    assert set(seen["first"]["train"]) == ({"text", "text_pair", "label"} if case.pair else {"text", "label"})
    for note in case.notes:
        assert note in "\n".join(seen["notes"])
    assert (seen["first"]["test"]["label"] == -1) == case.hidden_test


@pytest.mark.parametrize(
    "cases", [QUICK, pytest.param((*WORKS, *REFUSED), marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_each_replica_is_read_or_refused(client: Client, replicas: None, cases: tuple[Works | Refused, ...]) -> None:
    found = load_all(client, [{"dataset_name": case.repo, **case.settings} for case in cases])
    for case, seen in zip(cases, found, strict=True):
        if isinstance(case, Works):
            assert "labels" in seen, (case, seen)
            check_works(case, seen)
            continue
        assert "message" in seen, case
        assert all(part in seen["message"] for part in case.message), (case, seen)
        assert all(part in seen["hint"] for part in case.hint), (case, seen)


def test_every_replica_has_a_case() -> None:
    cases = {(case.repo, case.settings.get("dataset_config_name")) for case in (*WORKS, *REFUSED)}
    assert {repo for repo, _ in cases} >= set(REPLICAS)
    assert {subset for repo, subset in cases if repo == "nyu-mll/glue"} >= set(REPLICAS["nyu-mll/glue"].configs)


def flags(settings: dict[str, str]) -> list[str]:
    return [part for name, value in settings.items() for part in ("--set", f"data.{name}={value}")]


def hftune(client: Client, *arguments: str) -> str:
    done = client.hftune(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def train_and_use(client: Client, case: Works, method: str = "full") -> None:
    """Train, then score the saved model on the Hub's data again, and label texts with it."""
    chosen = ("--data", case.repo, *flags(case.settings), "--method", method)
    hftune(client, "classify", *chosen, *BRIEF, "--output", "run")
    run = client.home / "run"
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["verified"] is True
    assert ("test" in metrics["splits"]) == (not case.hidden_test)
    rows = [json.loads(line) for line in (run / "predictions/test.jsonl").read_text().splitlines()]
    assert len(rows) == case.sizes[2]
    assert {row["gold"] for row in rows} <= ({None} if case.hidden_test else set(case.labels))
    assert all(tuple(row["probabilities"]) == case.labels for row in rows)

    scored = json.loads(hftune(client, "evaluate", "run", "--split", "validation", "--json"))
    assert scored["splits"]["validation"]["accuracy"] == metrics["splits"]["validation"]["accuracy"]

    example = ("a fine film", "--pair", "all was well") if case.pair else ("a fine film",)
    predicted = json.loads(hftune(client, "predict", "run", *example))
    assert predicted["label"] in case.labels and set(predicted["probabilities"]) == set(case.labels)


def test_label_text_gives_the_names_that_are_predicted(client: Client, replicas: None) -> None:
    case = next(case for case in WORKS if case.repo == "SetFit/sst5")
    train_and_use(client, case)
    scored = json.loads(hftune(client, "evaluate", "run", "--data", case.repo, "--json"))
    assert scored["splits"]["test"] == json.loads((client.home / "run/metrics.json").read_text())["splits"]["test"]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("case", WORKS, ids=str)
def test_each_replica_is_trained_on_and_used(client: Client, replicas: None, case: Works, method: str) -> None:
    train_and_use(client, case, method)


@pytest.mark.slow
@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_each_refusal_comes_before_training(client: Client, replicas: None, case: Refused) -> None:
    done = client.hftune("classify", "--data", case.repo, *flags(case.settings), *BRIEF, "--output", "run")
    assert done.returncode == 2
    output = " ".join(done.stderr.split())
    assert all(part in output for part in (*case.message, *case.hint)), output
    assert "Traceback" not in done.stderr and not (client.home / "run/model").exists()


@pytest.mark.slow
def test_a_model_of_mnli_on_the_other_splits_and_configurations(client: Client, replicas: None, tmp_path: Path) -> None:
    hftune(
        client,
        "classify",
        "--data",
        "nyu-mll/glue",
        "--set",
        "data.dataset_config_name=mnli",
        *BRIEF,
        "--output",
        "run",
    )
    other = ("evaluate", "run", "--data", "nyu-mll/glue", "--set")
    sizes = {}
    for name, more in {
        "validation_mismatched": (
            "data.dataset_config_name=mnli",
            "--set",
            "data.validation_split_name=validation_mismatched",
            "--split",
            "validation",
        ),
        "ax": ("data.dataset_config_name=ax",),
        "test_mismatched": ("data.dataset_config_name=mnli_mismatched", "--split", "test"),
    }.items():
        hftune(client, *other, *more, "--output", f"{name}.jsonl")
        sizes[name] = len((tmp_path / f"{name}.jsonl").read_text().splitlines())
    assert sizes == {"validation_mismatched": HELD_OUT + 2, "ax": HELD_OUT, "test_mismatched": HELD_OUT}
    refused = client.hftune(*other, "data.dataset_config_name=ax")
    assert refused.returncode == 2 and "--output FILE" in refused.stderr


def test_gated_private_and_unanswered(client: Client, replicas: None) -> None:
    hub = client.hub
    member, stranger = hub.add_user("member", "read"), hub.add_user("stranger", "read")
    files = REPLICAS["stanfordnlp/imdb"].files("allenai/wildguardmix")
    hub.add_dataset("allenai/wildguardmix", files)
    hub.gate("allenai/wildguardmix", "dataset", members=["member"])
    hub.add_dataset(f"{hub.user}/secret", files, private=True)
    gated, secret = {"dataset_name": "allenai/wildguardmix"}, {"dataset_name": f"{hub.user}/secret"}

    anonymous, hidden = load_all(client, [gated, secret])
    assert mentions(anonymous["message"], "gated", "allenai/wildguardmix")
    assert f"{hub.url}/datasets/allenai/wildguardmix" in anonymous["hint"] and "hf auth login" in anonymous["hint"]
    assert mentions(hidden["message"], "dataset", "Hub") and mentions(hidden["hint"], "private")

    waiting, foreign = load_all(client, [gated, secret], token=stranger)
    assert mentions(waiting["message"], "no access") and mentions(waiting["hint"], "access")
    assert mentions(foreign["message"], "dataset", "Hub")
    (wrong,) = load_all(client, [gated], token="hf_expired")
    assert "401" in wrong["message"] and mentions(wrong["hint"], "token", "valid")

    assert load_all(client, [gated], token=member)[0]["labels"] == ["neg", "pos"]
    assert load_all(client, [secret], token=hub.token)[0]["labels"] == ["neg", "pos"]


def test_a_conversion_in_parts_and_its_cache(client: Client, replicas: None) -> None:
    """Splits whose names begin alike stay apart; a partial conversion is reported; main is still refused afterwards."""
    source = REPLICAS["nyu-mll/glue"].configs["mnli"]
    parts = {split: encode(".parquet", source.rows(split), source.features) for split in source.splits}
    hub, name = client.hub, "tester/long_nli"
    hub.add_dataset(name, {"long_nli.py": b"raise SystemExit\n", "README.md": b"# NLI\n"})
    files = {f"default/{split}/0000.parquet": content for split, content in parts.items() if split != "train"}
    files |= {f"default/partial-train/000{number}.parquet": parts["train"] for number in range(2)}
    hub.add_dataset(name, files, revision=CONVERTED)
    read, again = load_all(client, [{"dataset_name": name, "dataset_revision": CONVERTED}, {"dataset_name": name}])
    assert tuple(read["sizes"].values()) == (TRAIN * 2, HELD_OUT, HELD_OUT)
    assert mentions(read["notes"], "Hub", "first part of train")
    assert "loading script (long_nli.py)" in again["message"]


def test_what_was_read_once_is_read_offline(client: Client, replicas: None) -> None:
    conversion = {"dataset_name": "aps/super_glue", "dataset_revision": CONVERTED, "dataset_config_name": "cb"}
    client.hub.add_dataset("tester/glue", REPLICAS["nyu-mll/glue"].files("tester/glue"))
    rte = {
        "dataset_name": "tester/glue",
        "dataset_config_name": "rte",
    }  # of which no other test reads another configuration
    away = {"offline": True}
    read = load_all(client, [conversion, rte, conversion | away, rte | away])
    assert read[0]["labels"] and read[:2] == read[2:]
    for case in load_all(
        client, [rte | {"dataset_config_name": "wnli"} | away, conversion | {"dataset_config_name": "boolq"} | away]
    ):
        assert mentions(case["message"], "Hub", "reached") and mentions(case["message"], "not in the cache")


def test_examples_with_holes_do_not_stop_a_published_dataset(client: Client) -> None:
    """Users can't edit them: a pair with one empty text is kept, an example without text or label is left out."""
    pairs = [{"question1": f"q {i}", "question2": "" if i == 3 else f"p {i}", "label": i % 2} for i in range(24)]
    single = [{"text": None if i == 5 else f"t {i}", "label": None if i == 7 else ("a", "b")[i % 2]} for i in range(24)]
    held = {"test_size": 0}
    for name, rows in (("pairs", pairs), ("single", single)):
        lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
        client.hub.add_dataset(f"tester/{name}", {"train.jsonl": lines, "validation.jsonl": lines})
    kept, left = load_all(client, [{"dataset_name": f"tester/{name}", **held} for name in ("pairs", "single")])
    assert kept["sizes"] == {"train": 24, "validation": 24} and mentions(
        kept["notes"], "tester/pairs (train)", "1 pair", "empty"
    )
    assert left["sizes"] == {"train": 22, "validation": 22}
    assert mentions(left["notes"], "tester/single (train)", "1 row", "'text'")
    assert mentions(left["notes"], "tester/single (train)", "1 row", "unlabeled")


def test_several_labels_and_unused_columns(client: Client) -> None:
    rows = {
        "go": [{"text": f"t {i}", "labels": [i % 3, 4]} for i in range(20)],
        "copa": [
            {"premise": f"p {i}", "choice1": "a", "choice2": "b", "question": "cause", "label": i % 2}
            for i in range(20)
        ],
    }
    for name, found in rows.items():
        lines = "".join(json.dumps(row) + "\n" for row in found).encode()
        client.hub.add_dataset(f"tester/{name}", {"train.jsonl": lines, "test.jsonl": lines})
    several, copa = load_all(
        client, [{"dataset_name": "tester/go"}, {"dataset_name": "tester/copa", "validation_split_name": "test"}]
    )
    assert mentions(several["message"], "one label", "[0, 4]") and "multi-label" in several["hint"]
    assert mentions("\n".join(copa["notes"]), "'premise', 'choice1', 'choice2'")
