"""The loopback hub against transformers and datasets: what they push and load through it."""

from __future__ import annotations

import io
import json

import pandas as pd
from hub_client import Client


def parquet(frame: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    frame.to_parquet(buffer)
    return buffer.getvalue()


LIBRARIES = """
import json
from pathlib import Path

import torch
from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig
from transformers import BertForSequenceClassification, BertTokenizerFast, pipeline

seen = {}
boolq = load_dataset("libraries/boolq")
seen["boolq"] = {split: boolq[split]["question"][:] for split in boolq}
seen["streamed"] = [row["answer"] for row in load_dataset("libraries/boolq", split="train", streaming=True)]
seen["csv"] = load_dataset("tester/library-rows", split="train")["text"][:]

words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad"]
Path("vocab.txt").write_text("\\n".join(words))
config = BertConfig.from_pretrained("library-bert")  # an id of one part; what it holds is a tiny BERT's
torch.manual_seed(0)
model = BertForSequenceClassification(config)
model.push_to_hub("tester/library-bert", private=True, revision="trial")
BertTokenizerFast("vocab.txt").push_to_hub("tester/library-bert", revision="trial")

loaded = AutoModelForSequenceClassification.from_pretrained("tester/library-bert", revision="trial")
pairs = zip(model.state_dict().values(), loaded.state_dict().values(), strict=True)
seen["same_weights"] = all(torch.equal(left, right) for left, right in pairs)
seen["tokens"] = AutoTokenizer.from_pretrained("tester/library-bert", revision="trial")("good bad")["input_ids"]
seen["label"] = pipeline("text-classification", model="tester/library-bert", revision="trial")("good")[0]["label"]
print(json.dumps(seen))
"""


def test_libraries_push_and_load(client: Client) -> None:
    hub, before = client.hub, len(client.hub.requests)
    train = pd.DataFrame({"question": ["q0", "q1"], "passage": ["p0", "p1"], "answer": [True, False]})
    files = {"train": train, "validation": train[:1]}
    parts = {f"data/{split}-00000-of-00001.parquet": parquet(frame) for split, frame in files.items()}
    hub.add_dataset("libraries/boolq", parts | {"README.md": b"---\nlicense: cc-by-sa-3.0\n---\nyes or no\n"})
    hub.add_dataset("tester/library-rows", {"train.csv": b"text,label\nfirst,1\nsecond,0\n"}, private=True)

    shape = {"vocab_size": 7, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    labels = {
        "id2label": {0: "worst", 1: "fine", 2: "best"},
        "intermediate_size": 16,
        "model_type": "bert",
    }
    hub.add_model("library-bert", {"config.json": json.dumps(shape | labels).encode()})

    done = client.python(LIBRARIES, token=hub.token)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])

    assert seen["boolq"] == {"train": ["q0", "q1"], "validation": ["q0"]}
    assert seen["streamed"] == [True, False]
    assert seen["csv"] == ["first", "second"]
    assert seen["same_weights"] is True
    assert seen["tokens"] == [2, 5, 6, 3]
    assert seen["label"] in {"worst", "fine", "best"}
    assert hub.repo("tester/library-bert").private
    assert set(hub.files("tester/library-bert", "main")) == {".gitattributes"}
    pushed = hub.files("tester/library-bert", "trial")
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= set(pushed)
    titles = [commit.title for commit in hub.commits("tester/library-bert", "trial")]
    assert titles[0].startswith("Upload ") and titles[1:] == [
        "Upload BertForSequenceClassification",
        "initial commit",
    ]
    ranges = [request for request in hub.requests[before:] if "range" in request.headers]
    assert {request.status for request in ranges if request.origin == "storage"} == {206}
