"""Each best checkpoint on the Hub during training: what is there, which failures it survives, what does not change."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from facts import hftune_error, mentions
from hub_client import Client
from loopback.card import card_data
from tiny import csv_folder

from hftune.hub.publish import describe_last_push
from hftune.recipe import load_recipe
from hftune.runs.directory import RunDir
from hftune.runs.schema import PushRecord

FILES = {"README.md", "config.json", "hftune.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}

# Every checkpoint is the best so far, and where WAITS training waits for its upload, which meets its planned fault.
TRAIN = """
import functools, hashlib, json, os, signal, sys, time
from pathlib import Path
from hftune import load_recipe
from hftune.pipeline.train import train
from hftune.errors import HftuneError
from hftune.hub import publication
from hftune.hub.client import RetryPolicy
from hftune.progress import ProgressReporter
from hftune.training.trainer import HftuneTrainer

class Told(ProgressReporter):
    lines = []
    def note(self, text): self.lines.append(text)
    def warn(self, text): self.lines.append(f"WARNING {text}")
    def advance(self, done, facts):
        if done == STOP_AT: os.kill(os.getpid(), signal.SIGTERM)

def always(self, metrics, trial):
    self.state.best_metric, self.state.best_global_step = metrics["eval_loss"], self.state.global_step
    return True

def patient(self, *args, **kwargs):
    saved(self, *args, **kwargs)
    while WAITS and not self.uploads.is_idle():
        time.sleep(0.01)
    self.report()

HftuneTrainer._determine_best_metric = always
saved, publication.Publication.on_save = publication.Publication.on_save, patient
swift = RetryPolicy(attempts=3, first_wait=0.05, read_timeout=READ_TIMEOUT)
publication.Publication = functools.partial(publication.Publication, retry=swift)
settings = {"data.dataset_name": "rows", "data.max_seq_length": 16, "model.vocab_size": 300,
            "train.metric_for_best_model": "loss", "train.max_steps": 3, "train.eval_steps": 1,
            "train.per_device_train_batch_size": 8, "train.learning_rate": 1e-3,
            "train.warmup_steps": 0.0, "train.lr_scheduler_type": "constant_with_warmup", **MORE}
seen = {}
try:
    seen["metrics"] = dict(train(load_recipe(None, settings), "run", progress=Told()).metrics)
except HftuneError as error:
    seen["error"] = [error.exit_code, error.message]
if Path("run/model/model.safetensors").is_file():
    seen["weights"] = hashlib.sha256(Path("run/model/model.safetensors").read_bytes()).hexdigest()
seen["told"], seen["left"] = Told.lines, sorted(path.name for path in Path("run").iterdir())
print(json.dumps(seen))
"""
LOAD = """
import json
from transformers import AutoModelForSequenceClassification, AutoTokenizer
model = AutoModelForSequenceClassification.from_pretrained(REPO, revision=COMMIT)
batch = AutoTokenizer.from_pretrained(REPO, revision=COMMIT)(["the food was great"], return_tensors="pt")
print(json.dumps([model.config.id2label["0" if "0" in model.config.id2label else 0], model(**batch).logits.tolist()]))
"""


def train(
    client: Client,
    folder: Path,
    repo: str | None,
    *,
    stop_at: int = -1,
    waits: bool = True,
    read_timeout: float = 30.0,
    **more: Any,
) -> dict[str, Any]:
    folder.mkdir()
    csv_folder(folder / "rows")
    hub = {} if repo is None else {"hub.hub_model_id": repo, "hub.hub_strategy": "best"}
    settings = {**hub, **more}
    start = f"STOP_AT, WAITS, READ_TIMEOUT, MORE = {stop_at}, {waits}, {read_timeout}, {settings!r}\n"
    done = client.python(start + TRAIN, token=client.hub.token, cwd=folder)
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


def test_each_best_arrives_whatever_fails_on_the_way(client: Client, tmp_path: Path) -> None:
    hub, repo = client.hub, "tester/each-best"
    commit = f"{repo}/commit/main"
    hub.cut("^/objects/", after=1000, method="PUT")  # the first best: its upload breaks off
    hub.fail(commit, status=500)  # and its commit fails: tried again,
    hub.fail(commit, status=403)  # refused, so reported and left
    hub.stall(commit, 12)  # the second: no answer within the read timeout, then it is accepted
    seen = train(client, tmp_path / "pushed", repo, read_timeout=4.0)

    assert hub.pending_faults() == 0
    assert "error" not in seen and seen["metrics"]["selection"]["step"] == 3
    title = "Best checkpoint so far of run: step {}, not finished"
    titles = [made.title for made in reversed(hub.commits(repo))]
    assert titles == ["initial commit", *(title.format(step) for step in (2, 3)), "Publish run with hftune"]
    reported = "\n".join(seen["told"])
    assert reported.count("trying again") >= 2
    assert mentions(reported, "WARNING", "step 1") and "403" in reported
    assert mentions(reported, "step 3", "validation loss")
    assert seen["told"][-1].startswith("published and verified: ")
    assert ".hub" not in seen["left"]

    # What was there in the middle of training loads, and its card marks it as not finished.
    middle = hub.commits(repo)[2]
    assert set(middle.files) == FILES | {".gitattributes"}
    card = middle.files["README.md"].content.decode()
    assert "**Not finished.**" in card and "step 2 of 3" in card and f'model="{repo}"' in card
    assert "unfinished" in card_data(card)["tags"]
    last = hub.files(repo)["README.md"].decode()
    assert "Not finished" not in last and "unfinished" not in card_data(last)["tags"]
    source = f"REPO, COMMIT = {repo!r}, {middle.oid!r}\n"
    loaded = client.python(source + LOAD)
    assert loaded.returncode == 0, loaded.stderr
    assert json.loads(loaded.stdout)[0] == "bad"

    # Training itself is what it would have been without the Hub, bit for bit.
    plain = train(client, tmp_path / "plain", None)
    assert plain["weights"] == seen["weights"]
    assert plain["metrics"]["splits"] == seen["metrics"]["splits"]
    searched = [path for path in (*tmp_path.rglob("*"), *client.caches.rglob("*")) if path.is_file()]
    assert [path for path in searched if hub.token.encode() in path.read_bytes()] == []


def test_a_run_that_is_stopped_reports_what_is_on_the_hub(client: Client, tmp_path: Path) -> None:
    seen = train(client, tmp_path / "here", "tester/stopped", stop_at=2)
    code, message = seen["error"]
    assert code == 128 + 15 and "stopped by SIGTERM" in message
    commit = client.hub.commits("tester/stopped")[0]
    assert mentions(seen["told"][-1], f"{commit.oid[:10]}", "best checkpoint")
    assert "not finished" in seen["told"][-1]
    assert ".hub" not in seen["left"] and "hub.json" in seen["left"]


def test_training_never_waits_for_the_hub(client: Client, tmp_path: Path) -> None:
    hub, repo = client.hub, "tester/slow"
    hub.stall(f"{repo}/preupload", 60)  # the first upload hangs for longer than all of training takes
    seen = train(client, tmp_path / "here", repo, waits=False, read_timeout=60)
    reported = "\n".join(seen["told"])
    assert mentions(reported, "newer")  # bests came while it hung
    assert [made.title for made in hub.commits(repo)] == ["Publish run with hftune", "initial commit"]


def test_the_last_word_when_the_finished_model_is_not_taken(client: Client, tmp_path: Path) -> None:
    hub, repo = client.hub, "tester/last"
    settings = {"train.max_steps": 1}
    first = train(client, tmp_path / "here", repo, **settings)
    assert "error" not in first
    hub.fail(f"{repo}/commit/main", status=502, times=3)
    (tmp_path / "here" / "run" / "metrics.json").unlink()
    again = TRAIN.replace('"run", progress', '"run", resume=True, progress')
    more = {"hub.hub_model_id": repo, **settings}
    start = f"STOP_AT, WAITS, READ_TIMEOUT, MORE = -1, True, 30.0, {more!r}\n"
    done = client.python(start + again, token=hub.token, cwd=tmp_path / "here")
    code, message = json.loads(done.stdout.splitlines()[-1])["error"]
    assert code == 1 and "in 3 attempts" in message and mentions(message, "finished model")  # of the first session


def test_what_is_there_is_reported_by_place(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run")
    assert mentions(describe_last_push(run, "me/it", "main"), "nothing of this run")
    run.write_published(PushRecord(repo="me/it", revision="main", commit="c" * 40, url="http://hub/me/it", step=7))
    reported = describe_last_push(run, "me/it", "main")
    assert mentions(reported, "http://hub/me/it", "cccccccccc", "step 7")
    assert mentions(describe_last_push(run, "me/it", "v2"), "nothing of this run")


def test_it_needs_a_place_and_a_whole_model(tmp_path: Path) -> None:
    from hftune.hub.publication import Publication
    from hftune.progress import ProgressReporter

    with hftune_error("hub_revision", "hub.push_to_hub"):
        load_recipe(None, {"hub.hub_strategy": "best"})
    recipe = load_recipe(None, {"hub.hub_strategy": "best", "hub.hub_model_id": "me/it"})
    sharded: Any = SimpleNamespace(trainer=SimpleNamespace(sharding="FSDP2"))
    with hftune_error("hub.hub_strategy", "best"):
        publication = Publication(recipe, RunDir(tmp_path), ProgressReporter())
        publication.follow(sharded, [])
