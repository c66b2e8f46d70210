"""A minGPT on the Hub and back: with its code, loaded by transformers alone, taught to answer from there, writing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hub_client import Client

REPO = "tester/mingpt"
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
BRIEF = ("-s", "train.max_steps=1", "--eval-steps", "1", "--batch-size", "8")
NAMES = ("Ann Ash", "Bob Birch", "Cy Cole", "Dee Dun")

# Somebody who has transformers and nothing of ours.
LOAD = f"""
import sys

class NoHftune:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "hftune":
            raise ImportError("hftune is not installed here")

for name in [name for name in sys.modules if name.partition(".")[0] == "hftune"]:
    del sys.modules[name]
sys.meta_path.insert(0, NoHftune())
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained("{REPO}", trust_remote_code=False)
model = AutoModelForCausalLM.from_pretrained("{REPO}", trust_remote_code=True).eval()
batch = tokenizer(["Ann Ash was"], return_tensors="pt")
made = model.generate(batch["input_ids"], max_new_tokens=5, do_sample=False)
print(type(model).__module__.partition(".")[0], tokenizer.decode(made[0][batch["input_ids"].shape[1]:]).encode())
"""


@pytest.fixture(scope="module")
def trained(hub_client: Client, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where it was trained; it was published by `hftune push` afterwards, on a branch as well."""
    home = tmp_path_factory.mktemp("mingpt")
    (home / "people").mkdir()
    for split in ("train", "validation"):
        (home / "people" / f"{split}.tsv").write_text("".join(f"Where was {one} born?\tRome\n" for one in NAMES))
    text = "".join(f"{one} was born in Rome. Where was this?\n" for one in NAMES * 5)
    (home / "people" / "wiki.txt").write_text(text)
    corpus = ("--objective", "span", "--corpus", "people/wiki.txt", "--model", "scratch:mingpt")
    done = hub_client.hftune("pretrain", *corpus, *SMALL, *BRIEF, "--output", "run", cwd=home)
    assert done.returncode == 0, done.stderr
    for more in ((), ("--revision", "trial")):
        done = hub_client.hftune("push", "run", REPO, *more, "--json", token=hub_client.hub.token, cwd=home)
        assert done.returncode == 0 and json.loads(done.stdout)["verified"] is True, done.stderr
    return home


def test_it_carries_its_code(client: Client, trained: Path) -> None:
    for revision in ("main", "trial"):
        files = client.hub.files(REPO, revision)
        assert {"modeling_mingpt.py", "configuration_mingpt.py", "attention_rope.py", "model.safetensors"} <= set(files)
        assert "auto_map" in json.loads(files["config.json"])
    card = client.hub.files(REPO, "trial")["README.md"].decode()
    assert f'model="{REPO}", revision="trial", trust_remote_code=True' in card


def test_it_writes_the_same_with_and_without_us(client: Client, trained: Path) -> None:
    asked = ("--prompt", "Ann Ash was", "--max-new-tokens", "5")
    ours = client.hftune("generate", REPO, *asked)
    assert ours.returncode == 0, ours.stderr
    local = client.hftune("generate", "run", *asked, cwd=trained)
    assert json.loads(ours.stdout) == json.loads(local.stdout)
    plain = client.python(LOAD)
    assert plain.returncode == 0, plain.stderr
    module, written = plain.stdout.split(" ", 1)
    assert module == "transformers_modules"
    assert written.strip() == str(json.loads(ours.stdout)["text"].encode())


def test_it_is_taught_to_answer_from_there(client: Client, trained: Path, tmp_path: Path) -> None:
    done = client.hftune("finetune", "--from", REPO, "--data", str(trained / "people"), *BRIEF, "--output", "answers")
    assert done.returncode == 0, done.stderr
    recipe = (tmp_path / "answers" / "recipe.yaml").read_text()
    assert f"model_name_or_path: {REPO}" in recipe and "trust_remote_code: false" in recipe  # our own code
