"""The path of a student through five assignments, command by command with small budgets; each step asserts a number.

Run by make test-slow. ``python tests/test_student_path.py [SECTION …]`` runs the sections, and prints a table of them.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

D, LAYERS = 312, 4
"""Hidden size and layers of TinyBERT."""
BRIEF = "--max_steps 8 --eval_steps 4 --batch-size 8 --max-length 48"
Row = tuple[str, str, float, str]
"""Section, command, seconds, what was found."""


class Walk:
    """A folder in which commands run, each in a process of its own, and the table of what was found."""

    def __init__(self, folder: Path, section: str = "") -> None:
        self.folder, self.section = folder, section
        self.rows: list[Row] = []

    def run(self, command: str) -> str:
        """What a command prints on standard output; it must succeed."""
        return self.process([sys.executable, "-m", "hftune", *shlex.split(command)], command)

    def process(self, words: list[str], shown: str) -> str:
        began = time.perf_counter()
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "PYTHONUTF8": "1",
            "HFTUNE_CACHE": str(self.folder / "cache"),
        }
        done = subprocess.run(
            words, cwd=self.folder, capture_output=True, encoding="utf-8", env=environment, timeout=1800, check=False
        )
        self.rows.append((self.section, shown, time.perf_counter() - began, ""))
        assert done.returncode == 0, f"{shown}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def found(self, name: str, value: Any, holds: bool) -> None:
        """Check a value that the last command left behind, and put it into the table."""
        section, shown, seconds, before = self.rows[-1]
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        self.rows[-1] = (section, shown, seconds, f"{before}; {name} {text}".lstrip("; "))
        assert holds, f"{shown}: {name} {value}"

    def metrics(self, run: str) -> dict[str, Any]:
        metrics: dict[str, Any] = json.loads((self.folder / run / "metrics.json").read_text(encoding="utf-8"))
        assert metrics["verified"] is True
        return metrics

    def lines(self, path: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / path).read_text(encoding="utf-8").splitlines()]

    def trained(self, run: str) -> int:
        return int(self.metrics(run)["parameters"]["trainable"])


def tinybert(folder: Path, texts: list[str]) -> None:
    """A folder like TinyBERT's repository: no safetensors, no tokenizer.json, weights that the encoder lacks."""
    import torch
    from transformers import BertConfig, BertForPreTraining

    from hftune.models.tokenizers import train_tokenizer

    folder.mkdir(exist_ok=True)
    vocabulary = train_tokenizer("wordpiece", lambda: texts, 1000, family="bert", exact=False).get_vocab()
    (folder / "vocab.txt").write_text(
        "\n".join(sorted(vocabulary, key=vocabulary.__getitem__)) + "\n", encoding="utf-8"
    )
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=D,
        num_hidden_layers=LAYERS,
        num_attention_heads=12,
        intermediate_size=1200,
    )
    torch.manual_seed(1)
    weights = BertForPreTraining(config).state_dict()
    weights |= {f"fit_denses.{number}.weight": torch.zeros(768, D) for number in range(LAYERS + 1)}
    torch.save(weights, folder / "pytorch_model.bin")
    further = {"cell": {}, "emb_size": D, "structure": [], "pre_trained": "", "training": ""}
    (folder / "config.json").write_text(json.dumps({**config.to_dict(), **further}), encoding="utf-8")


# ---- the sections ----


def files(walk: Walk) -> None:
    """The data that the other sections read."""
    for name, file, lines in (
        ("reviews", "train.csv", 4000),
        ("boolq-mini", "train.jsonl", 4000),
        ("births", "birth_places_train.tsv", 160),
        ("prose", "train.txt", None),
    ):
        walk.run(f"data make {name} --output {name} --seed 7")
        written = (walk.folder / name / file).read_text(encoding="utf-8").splitlines()
        walk.found(f"lines of {file}", len(written), len(written) == lines or (lines is None and len(written) > 1000))
    (walk.folder / "reviews" / "dev.csv").rename(walk.folder / "reviews" / "valid.csv")
    texts = (walk.folder / "reviews" / "unlabeled.txt").read_text(encoding="utf-8").splitlines()
    tinybert(walk.folder / "TinyBERT", texts + [line["passage"] for line in walk.lines("boolq-mini/train.jsonl")])


def yelp(walk: Walk) -> None:
    """The yelp exercise with the flags of the course's script, and a TinyBERT."""
    with (walk.folder / "reviews" / "test.csv").open(encoding="utf-8", newline="") as file:
        stars = [row[0] for row in csv.reader(file)]
    walk.run(
        "classify --model_type bert --model_name_or_path TinyBERT --task_name yelp --data_dir reviews --do_train"
        " --do_eval --per_gpu_train_batch_size 8 --learning_rate 1e-4 --max_seq_length 48 --max_steps 8"
        " --output_dir runs/yelp"
    )
    metrics = walk.metrics("runs/yelp")
    share = max(stars.count(star) for star in set(stars)) / len(stars)
    majority = metrics["baselines"]["majority"]["test"]["accuracy"]
    walk.found("majority of test", majority, abs(majority - share) < 0.03)
    predicted = walk.lines("runs/yelp/predictions/test.jsonl")
    right = sum(line["label"] == line["gold"] for line in predicted) / len(stars)
    walk.found("test accuracy", right, [line["gold"] for line in predicted] == stars)
    assert abs(right - metrics["splits"]["test"]["accuracy"]) < 1e-9
    one = json.loads(walk.run('predict runs/yelp "the food was great but we will never come back"'))
    total = sum(one["probabilities"].values())
    walk.found("labels", sorted(one["probabilities"]), sorted(one["probabilities"]) == ["1", "2", "3", "4", "5"])
    assert abs(total - 1) < 1e-3


def joint(walk: Walk) -> None:
    """A classifier and a masked language model trained together; both are plain models."""
    walk.run(
        f"joint --model TinyBERT --task_name yelp --data_dir reviews --unlabeled reviews/unlabeled.txt --mlm-alpha 0.5"
        f" --max_train_samples 50 {BRIEF} --output runs/joint"
    )
    metrics = walk.metrics("runs/joint")
    walk.found("labeled rows", metrics["data"]["rows"]["train"], metrics["data"]["rows"]["train"] == 50)
    saved = sorted(
        path.parent.relative_to(walk.folder / "runs" / "joint").as_posix()
        for path in (walk.folder / "runs" / "joint").glob("m*/**/config.json")
    )
    kinds = [
        json.loads((walk.folder / "runs" / "joint" / name / "config.json").read_text(encoding="utf-8"))["architectures"]
        for name in saved
    ]
    walk.found("saved", kinds, sorted(kinds) == [["BertForMaskedLM"], ["BertForSequenceClassification"]])


def boolq(walk: Walk) -> None:
    """BoolQ three ways, and prompts of 128: the number of trained parameters is that of the formula."""
    small = "--data ./boolq-mini --model TinyBERT --max_train_samples 64 --max_eval_samples 40 --max_predict_samples 40"
    total = 0
    for method, options, formula in (
        ("full", "", None),
        ("head", "", 2 * D + 2),
        ("prefix", "--num_virtual_tokens 20", 2 * LAYERS * 20 * D + 2 * D + 2),
        ("prompt", "--num_virtual_tokens 128", 130 * D + 2),
    ):
        walk.run(f"boolq {small} --method {method} {options} {BRIEF} --output runs/boolq-{method}")
        trained = walk.trained(f"runs/boolq-{method}")
        total = total or trained
        walk.found(
            "trained parameters",
            trained,
            trained == (formula or walk.metrics("runs/boolq-full")["parameters"]["total"]),
        )
    out = walk.run('predict runs/boolq-head "is the sky green" --pair "The sky is blue."')
    label = json.loads(out)["label"]
    walk.found("label", label, label in ("false", "true"))
    walk.run("compare runs/boolq-full runs/boolq-head runs/boolq-prefix --format csv --output compared")
    rows = list(csv.DictReader((walk.folder / "compared" / "comparison.csv").open(encoding="utf-8")))
    walk.found("settings", len(rows), len(rows) >= 3)


def births(walk: Walk) -> None:
    """Pretrained on the corpus the model answers most questions about people whom no question of training names."""
    sizes = "--tokenizer_type bpe --vocab-size 600 --attention rope --num_hidden_layers 2 --hidden_size 128"
    sizes += " --num_attention_heads 4"
    walk.run(
        f"pretrain --objective span --corpus births/wiki.txt {sizes} --optim muon --lr 4e-3 --epochs 12 --batch-size 32"
        " --eval_steps 0.5 --set task.min_document_length=24 --output runs/births"
    )
    metrics = walk.metrics("runs/births")
    loss, bigram = (found["validation"]["loss"] for found in (metrics["splits"], metrics["baselines"]["bigram"]))
    walk.found("loss", loss, loss < bigram / 2)
    tune = "--data ./births --batch-size 16 --epochs 10"
    walk.run(f"finetune --from runs/births {tune} --lr 6e-4 --output runs/births-qa")
    score = walk.metrics("runs/births-qa")["splits"]["validation"]["exact_match"]
    walk.found("exact match", score, score > 0.3)
    walk.run(f"finetune {tune} {sizes} --lr 4e-3 --optim muon --output runs/births-scratch")
    scratch = walk.metrics("runs/births-scratch")["splits"]["validation"]["exact_match"]
    walk.found("exact match from scratch", scratch, scratch < 0.15)
    again = json.loads(walk.run("evaluate runs/births-qa --data ./births --split validation --json"))
    scored = re.search(r'"exact_match": ([\d.]+)', json.dumps(again))
    walk.found("exact match", float(scored[1]) if scored else None, scored is not None and float(scored[1]) == score)
    walk.run("predict runs/births-qa --file births/birth_test_inputs.tsv --output answers.jsonl")
    answers = walk.lines("answers.jsonl")
    walk.found("answers", len(answers), len(answers) == 80 and all("confidence" in line for line in answers))
    seen = [line["seen_in_pretraining"] for line in walk.lines("runs/births-qa/predictions/test.jsonl")]
    walk.found("seen in pretraining", seen.count(True), (seen.count(True), seen.count(False)) == (60, 20))


def language_model(walk: Walk) -> None:
    """A BPE tokenizer, a GPT on plain text, its baselines, and text from it."""
    walk.run("tokenizer train --corpus ./prose --vocab-size 500 --output tokenizer")
    size = len(json.loads((walk.folder / "tokenizer" / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"])
    walk.found("vocabulary", size, 490 <= size <= 500)
    shown = walk.run('tokenizer show tokenizer "There once was a baker"')
    whole = "There once was a baker" in shown.replace("│", "")
    walk.found("shows the text", whole, whole)
    walk.run(
        "pretrain --objective clm --corpus ./prose --tokenizer tokenizer --num_hidden_layers 2 --hidden_size 64"
        " --num_attention_heads 2 --block_size 64 --optim muon --lr 4e-3 --max_steps 60 --eval_steps 30 --batch-size 16"
        " --output runs/gpt"
    )
    metrics = walk.metrics("runs/gpt")
    bits = {name: one["test"]["bits_per_byte"] for name, one in metrics["baselines"].items()}
    bits["model"] = metrics["splits"]["test"]["bits_per_byte"]
    walk.found("bits per byte", bits["model"], bits["model"] < bits["unigram"] > bits["bigram"])
    generate = 'generate runs/gpt --prompt "There once was" --temperature 0.8 --samples 3 --seed 5 --max-new-tokens 12'
    texts = walk.run(generate).splitlines()
    walk.found("texts", len(texts), len(texts) == 3 and all(json.loads(text)["log_probability"] < 0 for text in texts))
    walk.found("the same again", True, walk.run(generate).splitlines() == texts)


def attention_sweep(walk: Walk) -> None:
    """Attention variants as studies of two objectives, compared by bits per byte or character next to the baselines."""
    sizes = "--num_hidden_layers 1 --hidden_size 64 --num_attention_heads 2 --block_size 64 --batch-size 16"
    sizes += " --tokenizer_type bpe --vocab-size 400 --max_steps 60 --eval_steps 30"
    for objective, data, metric, variants in (
        ("clm", "./prose", "bits_per_byte", ("vanilla", "rope", "synthesizer")),
        ("span", "births/wiki.txt", "bits_per_character", ("vanilla", "rope")),
    ):
        folder = f"runs/attention-{objective}"
        walk.run(
            f"sweep --recipe pretrain/{objective} --data {data} --grid model.attention={','.join(variants)} --seeds 1,2"
            f" {sizes} --output {folder}"
        )
        study = json.loads((walk.folder / folder / "comparison.json").read_text(encoding="utf-8"))
        walk.found(
            "settings", len(study["rows"]), {row["values"]["model.attention"] for row in study["rows"]} == {*variants}
        )
        compared = json.loads(walk.run(f"compare {folder} --metric {metric} --split validation --json"))
        for row in compared["rows"]:
            name = row["values"]["model.attention"]
            runs = [walk.metrics(f"{folder}/runs/attention={name}/seed-{seed}") for seed in row["seeds"]]
            recorded = sum(metrics["splits"]["validation"][metric] for metrics in runs) / len(runs)
            bits, counted = row["scores"]["validation"]["mean"], row["baselines"]
            unigram = counted["unigram"]["validation"]
            walk.found(f"{name}, {metric}", bits, abs(bits - recorded) < 1e-3 and 0 < bits < unigram)
        assert compared["metric"] == metric and compared["higher_is_better"] is False
        means = [row["scores"]["validation"]["mean"] for row in compared["rows"]]
        assert means == sorted(means), "the best is first"
        assert 0 <= compared["pairs"][0]["adjusted_p"] <= 1
        page = (walk.folder / folder / "report.html").read_text(encoding="utf-8")
        assert all(f'id="figure-{name}"' in page for name in ("scores", "training-loss", "validation-loss"))


def baselines(walk: Walk) -> None:
    """Simple systems before any training: labels, questions and text, each against a count made here."""
    with (walk.folder / "reviews" / "test.csv").open(encoding="utf-8", newline="") as file:
        stars = [row[0] for row in csv.reader(file)]
    found = json.loads(walk.run("baseline --data ./reviews --json"))["baselines"]
    majority, words = (found[name]["test"]["accuracy"] for name in ("majority", "tfidf"))
    shares = {star: stars.count(star) / len(stars) for star in stars}
    walk.found("majority", majority, any(abs(majority - share) < 1e-9 for share in shares.values()))
    walk.found("bag of words", words, words > majority + 0.1)
    places = [
        line.split("\t")[1]
        for line in (walk.folder / "births" / "birth_dev.tsv").read_text(encoding="utf-8").splitlines()
    ]
    answer = max(places, key=places.count)
    found = json.loads(walk.run(f"baseline --data ./births --answer '{answer}' --json"))["baselines"]
    score = found[f"always {answer}"]["validation"]["exact_match"]
    walk.found(f"always {answer}", score, abs(score - places.count(answer) / len(places)) < 1e-9)
    found = json.loads(walk.run("baseline --corpus ./prose --json"))["baselines"]
    unigram, bigram = (found[name]["validation"]["bits_per_byte"] for name in ("unigram", "bigram"))
    walk.found("bits per byte, unigram and bigram", f"{unigram:.3f}, {bigram:.3f}", 0 < bigram < unigram < 8)


def attention(walk: Walk) -> None:
    """Questions about attention as experiments: a number of each, and whether its claim holds."""
    known = json.loads(walk.run("lab ls --json"))
    walk.found("experiments", len(known), len(known) == 13)
    for name, label, low, high in (
        ("copy", "error at β = 20, orthonormal keys", 0, 1e-6),
        ("multi-head", "ratio of the two", 2, 6),
        ("masking", "largest weight of a hidden token, 6 variants", 0, 0),
        ("bptt", "closed form against autograd, relative", 0, 1e-12),
    ):
        out = walk.run(f"lab run {name} --seed 0 --output lab-{name}")
        row = re.search(rf"^{re.escape(label)}\s+(\S+)", out, re.MULTILINE)
        value = float(row[1].replace("−", "-")) if row else None
        walk.found(label, value, value is not None and low <= value <= high)
        assert (walk.folder / f"lab-{name}" / "lab.html").stat().st_size > 1000


def messy_csv(walk: Walk) -> None:
    """Semicolons, a byte order mark, loose column names, a missing text and a row twice."""
    texts = [(f"the soup was {'great' if number % 2 else 'awful'} on day {number}", number % 2) for number in range(60)]
    lines = ["Review Text;Sentiment", *(f"{text};{('negative', 'positive')[label]}" for text, label in texts)]
    content = "\n".join([*lines, lines[1], ";positive"]) + "\n"
    (walk.folder / "messy.csv").write_text(content, encoding="utf-8-sig")
    walk.run(f"classify --data messy.csv --model TinyBERT --drop-missing --deduplicate {BRIEF} --output runs/messy")
    metrics = walk.metrics("runs/messy")
    rows = sum(metrics["data"]["rows"].values())
    walk.found("rows", rows, rows == len(texts))
    assert metrics["labels"] == ["negative", "positive"]


def glue(walk: Walk) -> None:
    """Folders of GLUE's own tsv files: columns and metric of the task, and a test split without labels."""
    good, bad = "The cat sleeps .", "The cat sleep ."
    folder = walk.folder / "CoLA"
    folder.mkdir()
    for name, count in (("train", 60), ("dev", 20)):
        lines = [
            f"gj04\t{number % 2}\t{'' if number % 2 else '*'}\t{number} {good if number % 2 else bad}"
            for number in range(count)
        ]
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    tests = [f"{number}\t{good if number % 3 else bad}" for number in range(12)]
    (folder / "test.tsv").write_text("\n".join(["index\tsentence", *tests]) + "\n", encoding="utf-8")
    walk.run(f"classify --model TinyBERT --task_name cola --data_dir CoLA {BRIEF} --output runs/cola")
    metrics = walk.metrics("runs/cola")
    walk.found(
        "selected by", metrics["selection"]["metric"], metrics["selection"]["metric"] in ("mcc", "matthews_correlation")
    )
    walk.found("rows", metrics["data"]["rows"], metrics["data"]["rows"] == {"train": 60, "validation": 20, "test": 12})
    assert "test" not in metrics["splits"]
    assert len(walk.lines("runs/cola/predictions/test.jsonl")) == 12
    folder = walk.folder / "RTE"
    folder.mkdir()
    pairs = [("The cat sleeps .", "not_entailment"), ("The dog sleeps .", "entailment")]
    for name, count, header in (("train", 60, True), ("dev", 20, True), ("test", 12, False)):
        lines = ["\t".join(["index", "sentence1", "sentence2", *(["label"] if header else [])])]
        for number in range(count):
            second, label = pairs[number % 2]
            lines.append(
                "\t".join([str(number), f'Dog {number} of the "farm sleeps .', second, *([label] if header else [])])
            )
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    walk.run(f"classify --model TinyBERT --task_name rte --data_dir RTE {BRIEF} --output runs/rte")
    metrics = walk.metrics("runs/rte")
    walk.found("rows", metrics["data"]["rows"], metrics["data"]["rows"] == {"train": 60, "validation": 20, "test": 12})
    walk.found("labels", metrics["labels"], metrics["labels"] == ["entailment", "not_entailment"])
    words = metrics["baselines"]["tfidf"]["validation"]["accuracy"]
    walk.found("bag of words", words, words == 1.0)
    (first, *rest) = walk.lines("runs/rte/predictions/test.jsonl")
    assert len(rest) == 11 and first["gold"] is None and '"farm' in json.dumps(first).replace('\\"', '"')


PYTHON = """
import json
import hftune

words, labels = ("awful", "great"), ("bad", "good")
rows = [{"text": f"the soup was {words[n % 2]} on day {n}", "label": labels[n % 2]} for n in range(60)]
settings = dict(data=rows, model="TinyBERT", max_steps=8, eval_steps=4, batch_size=8, max_seq_length=24, progress=False)
full = hftune.train(**settings, output_dir="runs/python")
lora = hftune.train(**settings, method="lora", output_dir="runs/python-lora")
table = hftune.compare(full, lora).table()
again = hftune.load("runs/python")
print(json.dumps({
    "verified": full.metrics["verified"],
    "labels": sorted(again.predict(["the soup was great"])[0].probabilities),
    "rows": len(full.predictions("test")),
    "settings": len(table),
    "lora": lora.metrics["parameters"]["trainable"],
}))
"""


def python(walk: Walk) -> None:
    """The same from Python, with rows in memory."""
    (walk.folder / "student.py").write_text(PYTHON, encoding="utf-8")
    out = json.loads(walk.process([sys.executable, "student.py"], "python student.py").splitlines()[-1])
    expected = {
        "verified": True,
        "labels": ["bad", "good"],
        "rows": 6,
        "settings": 2,
        "lora": 4 * LAYERS * 8 * D + 2 * D + 2,
    }
    walk.found("found", out, out == expected)


SECTIONS: tuple[Callable[[Walk], None], ...] = (
    files,
    yelp,
    joint,
    boolq,
    births,
    language_model,
    attention_sweep,
    baselines,
    attention,
    messy_csv,
    glue,
    python,
)
"""In this order: the first makes the files of the others, which do not depend on each other."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("student")
    files(Walk(folder))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("section", SECTIONS[1:], ids=lambda section: section.__name__)
def test_the_path_of_a_student(section: Callable[[Walk], None], folder: Path) -> None:
    section(Walk(folder))


def main(names: list[str]) -> None:
    """Run sections (all by default) and print what was found."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for section in SECTIONS:
            if names and section.__name__ not in names and section is not files:
                continue
            walk = Walk(Path(folder), section.__name__)
            section(walk)
            rows += walk.rows
            for _, command, seconds, what in walk.rows:
                print(f"| {section.__name__} | `{command}` | {seconds:.0f} s | {what} |", flush=True)
    print(f"{len(rows)} commands, {sum(row[2] for row in rows):.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
