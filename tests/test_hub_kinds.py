"""Every kind of run on the Hub and back: pushed along the way and at the end, loaded from there by whatever uses it.

Ten trainings and forty commands: run with -m slow. test_hub_best.py, test_hub_adapter.py and test_hub_mingpt.py take
one kind each.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from finished_run import tokenizer
from hub_client import Client
from loopback.card import card_data
from tiny import BRIEF, QUICK, csv_folder
from transformers import BertConfig, BertModel

pytestmark = pytest.mark.slow

BASE = "someone/encoder"
NAMES = ("Ann Ash", "Bob Birch", "Cy Cole", "Dee Dun")
SMALL = (
    "-s",
    "model.num_hidden_layers=1",
    "-s",
    "model.hidden_size=32",
    "-s",
    "model.num_attention_heads=2",
    "-s",
    "model.block_size=64",
)
STEPS = ("-s", "train.max_steps=1", "--eval-steps", "1", "--batch-size", "8", "--hub-strategy", "best")
MINGPT = ("--model", "scratch:mingpt", *SMALL)
CLM = ("--corpus", "texts.txt", "-s", "task.max_new_tokens=0", "-s", "data.validation_size=0.2")
WHOLE, ADAPTER = "model.safetensors", "adapter_model.safetensors"

RUNS: dict[str, tuple[str, ...]] = {
    "classifier": ("classify", "--data", "rows", *QUICK),
    "adapter": ("classify", "--data", "rows", "--model", BASE, "--method", "lora", *BRIEF),
    "merged": ("classify", "--data", "rows", "--model", BASE, "--method", "lora", "--merge", *BRIEF),
    "prefix": ("classify", "--data", "rows", "--method", "prefix", *QUICK),
    "joint": ("joint", "--data", "rows", "--unlabeled", "texts.txt", *QUICK),
    "mlm": ("pretrain", "--objective", "mlm", "--corpus", "texts.txt", "-s", "model.vocab_size=300"),
    "span": ("pretrain", "--objective", "span", "--corpus", "people/wiki.txt", *MINGPT),
    "clm": ("pretrain", "--objective", "clm", *CLM, "-s", "model.vocab_size=300", *MINGPT),
    "answers": ("finetune", "--from", "tester/span", "--data", "people"),
    "writer": ("pretrain", "--objective", "clm", *CLM, "--model", "tester/clm", "--method", "lora"),
}
"""What is trained, in an order in which each finds what it starts from."""

USES: dict[str, tuple[tuple[str, ...], ...]] = {
    "classifier": (("predict", "{}", "great food"), ("classify", "--model", "{}", "--data", "rows", *BRIEF)),
    "adapter": (("predict", "{}", "great food"), ("classify", "--model", "{}", "--data", "rows", *BRIEF)),
    "merged": (("predict", "{}", "great food"),),
    "prefix": (("predict", "{}", "great food"), ("evaluate", "{}", "--data", "rows", "--json")),
    "joint": (("predict", "{}", "great food"), ("classify", "--model", "{}", "--data", "rows", *BRIEF)),
    "mlm": (("classify", "--model", "{}", "--data", "rows", *BRIEF),),
    "span": (("finetune", "--from", "{}", "--data", "people"),),
    "clm": (("generate", "{}", "--prompt", "the food", "--max-new-tokens", "3"),),
    "answers": (("predict", "{}", "Where was Ann Ash born?"), ("finetune", "--from", "{}", "--data", "people")),
    "writer": (("generate", "{}", "--prompt", "the food", "--max-new-tokens", "3"),),
}
"""What each kind is for; {} is where it was published."""

REFUSED = (
    ("classify", "--model", "tester/prefix", "--data", "rows", "PREFIX_TUNING"),
    ("classify", "--model", "tester/span", "--data", "rows", *BRIEF, "is a minGPT"),
    ("finetune", "--from", "tester/classifier", "--data", "people", "is a classifier"),
    ("generate", "tester/classifier", "--prompt", "x", "is a classifier"),
    ("predict", "tester/mlm", "great food", "train it further"),
    ("predict", "tester/clm", "great food", "hftune generate tester/clm"),
    ("predict", BASE, "great food", "has no weights for"),
)

# What somebody does who has transformers and peft and nothing of ours; REPO at COMMIT is a commit from mid-training.
PLAIN = {
    "classifier": "m = AutoModelForSequenceClassification.from_pretrained(REPO, revision=COMMIT)",
    "adapter": (
        "b = AutoModelForSequenceClassification.from_pretrained('someone/encoder', num_labels=2)\n"
        "m = PeftModel.from_pretrained(b, REPO, revision=COMMIT)"
    ),
    "joint": (
        "m = AutoModelForSequenceClassification.from_pretrained(REPO, revision=COMMIT)\n"
        "AutoModelForMaskedLM.from_pretrained(REPO, revision=COMMIT, subfolder='mlm')"
    ),
    "mlm": "m = AutoModelForMaskedLM.from_pretrained(REPO, revision=COMMIT)",
    "span": "m = AutoModelForCausalLM.from_pretrained(REPO, revision=COMMIT, trust_remote_code=True)",
    "answers": "m = AutoModelForCausalLM.from_pretrained(REPO, revision=COMMIT, trust_remote_code=True)",
}
IMPORTS = """
import transformers
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer
transformers.utils.logging.set_verbosity_error()
tokenizer = AutoTokenizer.from_pretrained(REPO, revision=COMMIT, trust_remote_code=False)
"""
ASK = """
m(**{k: v for k, v in tokenizer(["great food"], return_tensors="pt").items() if k != "token_type_ids"})
print(m.num_parameters())
"""


# Training waits for the upload of each best checkpoint, which the finished model could otherwise overtake.
PATIENT = """
import sys, time
from hftune.cli import main
from hftune.hub.publication import Publication

def patient(self, *args, **kwargs):
    saved(self, *args, **kwargs)
    while not self.uploads.is_idle():
        time.sleep(0.01)

saved, Publication.on_save = Publication.on_save, patient
"""


@pytest.fixture(scope="module")
def place(hub_client: Client, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where everything was trained and pushed: one run of each kind, in one fork."""
    folder = tmp_path_factory.mktemp("kinds")
    csv_folder(folder / "rows")
    (folder / "texts.txt").write_text("".join(f"the food was great on day {day}\n" for day in range(40)))
    (folder / "people").mkdir()
    for split in ("train", "validation"):
        (folder / "people" / f"{split}.tsv").write_text("".join(f"Where was {one} born?\tRome\n" for one in NAMES))
    lines = [f"{name} was born in Rome. Where was this?\n" for name in NAMES * 5]
    (folder / "people" / "wiki.txt").write_text("".join(lines))
    words = tokenizer(folder / "words", max_length=64)
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=len(words), **shape)).save_pretrained(folder / "encoder")
    words.save_pretrained(folder / "encoder")
    hub_client.hub.add_model(BASE, folder / "encoder")
    for kind, command in RUNS.items():
        there = ("--output", kind, "--hub-model-id", f"tester/{kind}")
        source = f"{PATIENT}\nmain({[*command, *STEPS, *there]!r})"
        done = hub_client.python(source, token=hub_client.hub.token, cwd=folder)
        assert done.returncode == 0, (kind, done.stderr)
        assert "verified" in done.stderr, kind
    return folder


def test_what_is_published_of_each_kind(client: Client, place: Path) -> None:
    for kind in RUNS:
        last, *before = client.hub.commits(f"tester/{kind}")
        local = {path.relative_to(place / kind / "model").as_posix() for path in (place / kind / "model").rglob("*.*")}
        assert set(last.files) == local | {".gitattributes"}, kind
        expected = ADAPTER if kind in ("adapter", "prefix", "writer") else WHOLE
        assert expected in last.files and "hftune.json" in last.files, kind
        for commit in (last, *before[:-1]):
            pickled = [name for name in commit.files if re.search(r"\.(bin|pt|pth|pkl)$|optimizer|trainer_state", name)]
            assert pickled == [], kind
        assert ("modeling_mingpt.py" in last.files) == (kind in ("span", "clm", "answers")), kind
        assert ("base/model.safetensors" in last.files) == (kind == "prefix"), kind


def test_cards_of_each_kind(client: Client, place: Path) -> None:
    tags = {"mlm": "fill-mask", "span": "text-generation", "clm": "text-generation", "answers": "text-generation"}
    for kind in RUNS:
        text = client.hub.files(f"tester/{kind}")["README.md"].decode()
        header = card_data(text)
        assert header["pipeline_tag"] == tags.get(
            kind, "text-generation" if kind == "writer" else "text-classification"
        )
        scores = json.loads((place / kind / "metrics.json").read_text())["splits"]
        reported = {result["dataset"]["split"] for result in header["model-index"][0]["results"]}
        assert reported == {split for split, found in scores.items() if found}, kind
        assert f"tester/{kind}" in text and "USER/NAME" not in text, kind
        for heading in ("## Use", "## Scores", "## Training", "### Data", "### Recipe", "## Limitations"):
            assert heading in text, (kind, heading)
        recipe = re.search(r"```yaml\n(.*?)\n```", text, re.DOTALL)
        assert recipe is not None and "hub_model_id: null" in recipe[1]


@pytest.mark.parametrize("kind", [kind for kind in RUNS if kind not in ("prefix",)])
def test_the_lines_in_the_card_run(client: Client, place: Path, kind: str) -> None:
    text = client.hub.files(f"tester/{kind}")["README.md"].decode()
    snippet = re.search(r"```(python|sh)\n(.*?)\n```", text, re.DOTALL)
    assert snippet is not None
    if snippet[1] == "sh":
        words = snippet[2].partition("  #")[0].replace('"', "").split()
        done = client.hftune(words[1], words[2], "--prompt", "There once was", "--max-new-tokens", "3")
    else:
        done = client.python(snippet[2])
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


@pytest.mark.parametrize("kind", USES)
def test_each_kind_is_used_from_the_hub(client: Client, place: Path, kind: str) -> None:
    for number, use in enumerate(USES[kind]):
        trains = use[0] in ("classify", "finetune")
        more = ("-s", "train.max_steps=1", "--output", f"{kind}-{number}") if trains else ()
        words = [word.format(f"tester/{kind}") for word in use]
        done = client.hftune(*words, *more, cwd=place)
        assert done.returncode == 0, (use, done.stderr)
        if use[0] == "predict" and (place / kind / "predictions" / "dev.jsonl").is_file():
            local = client.hftune("predict", kind, *words[2:], cwd=place)
            assert json.loads(local.stdout) == json.loads(done.stdout)


@pytest.mark.parametrize("refused", REFUSED, ids=lambda words: f"{words[0]} {words[1]} {words[2]}")
def test_what_a_kind_is_not_for_is_reported(client: Client, place: Path, refused: tuple[str, ...]) -> None:
    done = client.hftune(*refused[:-1], cwd=place)
    assert done.returncode == 2 and refused[-1] in done.stderr, done.stderr
    assert len(done.stderr) < 1500  # no wall of class names


@pytest.mark.parametrize("kind", PLAIN)
def test_mid_training_loads_without_us(client: Client, place: Path, kind: str) -> None:
    _, middle, _ = client.hub.commits(f"tester/{kind}")
    assert "step 1, not finished" in middle.title
    source = f"REPO, COMMIT = 'tester/{kind}', '{middle.oid}'\n{IMPORTS}{PLAIN[kind]}\n{ASK}"
    done = client.python(source, cwd=place)
    assert done.returncode == 0, done.stderr
    total = json.loads((place / kind / "metrics.json").read_text())["parameters"]["total"]
    assert int(done.stdout) > 0.9 * total
