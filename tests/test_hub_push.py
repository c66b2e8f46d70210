"""Publishing to a hub on 127.0.0.1: what arrives, what is borne, what is refused, and where the token goes."""

from __future__ import annotations

import json
import re
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from facts import hftune_error
from finished_run import LABELS, TEXTS, finished_run
from hub_client import Client

from hftune.errors import HftuneError
from hftune.hub import contents, publish
from hftune.hub.client import HubClient, RetryPolicy
from hftune.hub.contents import published_files, refuse_secret
from hftune.progress import ProgressReporter
from hftune.recipe import HubSection
from hftune.runs.directory import RunDir

PUBLISHED = {"README.md", "config.json", "hftune.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}

PRELUDE = """
import json, os, sys, time
from pathlib import Path
from types import SimpleNamespace
from hftune.recipe import HubSection
from hftune.models.settings import NO_TRUST
from hftune.errors import HftuneError
from huggingface_hub import constants
from huggingface_hub.utils import _http
from hftune.hub.client import RetryPolicy
from hftune.hub.publish import push
from hftune.progress import ProgressReporter
from hftune.recipe import HubSection
from hftune.runs.directory import RunDir

class Silent:
    stage = note = lambda self, text: None

seen = {}
swift = dict(first_wait=0.05, read_timeout=30.0)
# huggingface_hub's own waits between attempts are not what is tested.
_http.time = SimpleNamespace(**{**vars(time), "sleep": lambda seconds: None})

def attempt(name, section, path="run", attempts=2):
    try:
        done = push(RunDir.open(Path(path)), HubSection(**section), Silent(), retry=RetryPolicy(attempts, **swift))
        seen[name] = [done.revision, done.commit, done.url, done.verified]
    except HftuneError as error:
        seen[name] = [error.exit_code, error.message, error.hint]
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    run = finished_run(tmp_path_factory.mktemp("made") / "run")
    return run


@pytest.fixture
def home(tmp_path: Path, finished: RunDir) -> Path:
    """A folder of the test's own, with the run in it."""
    shutil.copytree(finished.path, tmp_path / "run")
    return tmp_path


def script(
    client: Client, home: Path, source: str, token: str | None, **environment: str
) -> tuple[dict[str, Any], str]:
    """What a script saw, and everything it printed."""
    done = client.python(f"{PRELUDE}\n{source}\nprint(json.dumps(seen))", token=token, cwd=home, **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stdout + done.stderr


def token_in_files(folder: Path, token: str) -> list[str]:
    return [str(path) for path in folder.rglob("*") if path.is_file() and token.encode() in path.read_bytes()]


LOAD = """
import json
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline
model = AutoModelForSequenceClassification.from_pretrained("tester/reviews")
tokenizer = AutoTokenizer.from_pretrained("tester/reviews")
answers = pipeline("text-classification", model="tester/reviews", top_k=None)(TEXTS)
print(json.dumps([model.config.id2label[0], tokenizer.model_max_length, answers]))
"""


def test_push_and_use(client: Client, home: Path) -> None:
    hub = client.hub
    (home / "run" / "model" / "notes.txt").write_text("mine")
    (home / "json.py").write_text("raise SystemExit('a file of the current folder was imported')")
    done = client.hftune("push", "run", "tester/reviews", "--private", "--json", token=hub.token, cwd=home)
    assert done.returncode == 0, done.stderr
    (home / "json.py").unlink()
    answer = json.loads(done.stdout)
    assert (answer["repo"], answer["revision"], answer["verified"]) == ("tester/reviews", "main", True)
    assert answer["url"] == f"{hub.url}/tester/reviews"
    commits = hub.commits("tester/reviews")
    assert [commit.title for commit in commits] == ["Publish run with hftune", "initial commit"]
    assert answer["commit"] == commits[0].oid
    assert hub.repo("tester/reviews").private
    files = hub.files("tester/reviews")
    assert set(files) == PUBLISHED | {".gitattributes"}
    assert "not published: notes.txt" in done.stderr
    assert b'model="tester/reviews")' in files["README.md"]
    assert files["model.safetensors"] == (home / "run" / "model" / "model.safetensors").read_bytes()

    loaded = client.python(LOAD.replace("TEXTS", repr(list(TEXTS))), token=hub.token, cwd=home)
    assert loaded.returncode == 0, loaded.stderr
    first, length, answers = json.loads(loaded.stdout.splitlines()[-1])
    expected = RunDir(home / "run").read_predictions("validation")
    assert (first, length) == (LABELS[0], 16)
    for row, scores in zip(expected, answers, strict=True):
        assert {score["label"]: pytest.approx(score["score"], abs=1e-4) for score in scores} == row["probabilities"]

    messages = client.hftune("predict", "tester/reviews", *TEXTS, "--json", token=hub.token, cwd=home)
    assert messages.returncode == 0, messages.stderr
    lines = [json.loads(line) for line in messages.stdout.splitlines()]
    assert [line["label"] for line in lines] == [row["label"] for row in expected]

    assert token_in_files(home, hub.token) == token_in_files(client.caches, hub.token) == []
    assert hub.token not in done.stdout + done.stderr + messages.stdout + messages.stderr


def test_the_token_of_the_login_goes_nowhere_else(client: Client, home: Path) -> None:
    """As `hf auth login` leaves it; nothing in the environment, and no second copy on disk."""
    login = client.caches / "huggingface" / "token"
    login.parent.mkdir(exist_ok=True)
    login.write_text(client.hub.token)
    try:
        done = client.hftune("push", "run", "tester/logged-in", "--json", cwd=home)
        assert done.returncode == 0, done.stderr
        assert token_in_files(client.caches, client.hub.token) == [str(login)]
    finally:
        login.unlink()
    assert token_in_files(home, client.hub.token) == [] and client.hub.token not in done.stdout + done.stderr
    record = json.loads((home / "run" / "hub.json").read_text())
    assert (record["repo"], record["step"]) == ("tester/logged-in", None)
    assert record["commit"] == client.hub.commits("tester/logged-in")[0].oid


FAULTS = """
swift["read_timeout"] = 5.0
from safetensors.torch import load_file, save_file
weights = "run/model/model.safetensors"  # with bytes that the hub has not seen: it would not ask for them
save_file(load_file(weights), weights, metadata={"format": "pt", "of": "this test"})
attempt("push", dict(hub_model_id="tester/faults", hub_revision="trial"), attempts=6)
attempt("again", dict(hub_model_id="tester/faults", hub_revision="trial"))
"""


def test_failed_requests_are_repeated_and_one_commit_is_made(client: Client, home: Path) -> None:
    hub, commit = client.hub, "/commit/trial"
    hub.fail("/api/whoami-v2", status=503)
    hub.fail("/preupload/", status=500, times=8)  # more than huggingface_hub itself repeats
    hub.cut("^/objects/", after=1000, method="PUT")
    hub.fail(commit, status=500)
    hub.cut(commit, after=10)
    hub.stall(commit, 15)  # longer than the read timeout: the attempt is given up
    hub.lose_answer(commit)

    seen, printed = script(client, home, FAULTS, hub.token)

    assert seen["push"][0] == "trial" and seen["push"][3] is True
    assert seen["push"][2] == f"{hub.url}/tester/faults/tree/trial"
    titles = [made.title for made in hub.commits("tester/faults", "trial")]
    assert titles == ["Publish run with hftune", "initial commit"]  # the lost answer's commit, found and not repeated
    assert seen["push"][1] == hub.commits("tester/faults", "trial")[0].oid
    assert seen["again"][1] == seen["push"][1]  # nothing changed: no empty commit
    assert set(hub.files("tester/faults", "trial")) == PUBLISHED | {".gitattributes"}
    assert set(hub.files("tester/faults", "main")) == {".gitattributes"}
    assert b'"tester/faults", revision="trial")' in hub.files("tester/faults", "trial")["README.md"]
    assert "trying again" in printed
    assert token_in_files(home, hub.token) == [] and hub.token not in printed


def test_a_new_push_takes_the_place_of_the_old(client: Client, home: Path) -> None:
    hub = client.hub
    old = {"hftune.json": b"{}", "adapter_config.json": b"{}", "adapter_model.safetensors": b"x", "LICENSE": b"mine"}
    hub.add_model("tester/again", old)
    seen, _ = script(client, home, 'attempt("push", dict(hub_model_id="tester/again"))', hub.token)
    assert seen["push"][3] is True
    assert set(hub.files("tester/again")) == PUBLISHED | {".gitattributes", "LICENSE"}


def test_a_name_without_an_owner_is_yours_and_no_name_is_the_runs(client: Client, home: Path) -> None:
    asked = 'attempt("short", dict(hub_model_id="short"))\nattempt("none", dict(push_to_hub=True))'
    seen, _ = script(client, home, asked, client.hub.token)
    assert [seen[name][2] for name in ("short", "none")] == [f"{client.hub.url}/tester/{x}" for x in ("short", "run")]
    assert b'model="tester/short")' in client.hub.files("tester/short")["README.md"]
    assert json.loads((home / "run" / "hub.json").read_text())["repo"] == "tester/run"


REFUSALS = """
good = os.environ.pop("HF_TOKEN")
attempt("no token", dict(hub_model_id="tester/x"))
os.environ["HF_TOKEN"] = "hf_wrong"
attempt("wrong token", dict(hub_model_id="tester/x"))
os.environ["HF_TOKEN"] = "hf_wr\\u00f6ng"
attempt("odd token", dict(hub_model_id="tester/x"))
os.environ["HF_TOKEN"] = os.environ["READ_TOKEN"]
attempt("read token", dict(hub_model_id="tester/x"))
os.environ["HF_TOKEN"] = good
attempt("not yours", dict(hub_model_id="other/x"))
attempt("taken", dict(hub_model_id="tester/taken"))
attempt("public", dict(hub_model_id="tester/public", hub_private_repo=True))
attempt("three parts", dict(hub_model_id="tester/reviews/a"))
attempt("bad name", dict(hub_model_id="tester/a b"))
Path("run/model/hftune.json").write_text(good)
attempt("token inside", dict(hub_model_id="tester/x"))
Path("run/model/README.md").write_text("---\\nmodel-index: 5\\n---\\n")
Path("run/model/hftune.json").write_text('{"version": 1}')
attempt("bad card", dict(hub_model_id="tester/x"))
metrics = json.loads(Path("run/metrics.json").read_text())
Path("run/metrics.json").write_text(json.dumps(metrics | {"verified": False}))
attempt("incomplete", dict(hub_model_id="tester/x"))
"""


def test_refusals(client: Client, home: Path) -> None:
    hub = client.hub
    hub.add_user("other")
    hub.add_model("tester/taken", {"config.json": b"{}", "pytorch_model.bin": b"x"})
    hub.add_model("tester/public", {"README.md": b"hello"})
    reader = hub.add_user("tester", role="read")

    seen, printed = script(client, home, REFUSALS, hub.token, READ_TOKEN=reader)

    expected = {
        "no token": "Hub token",
        "wrong token": "401",
        "odd token": "characters",
        "read token": "only read",
        "not yours": "other/x is not yours",
        "taken": "tester/taken holds a model",
        "public": "tester/public exists and is public",
        "three parts": "USER/NAME, got 'tester/reviews/a'",
        "bad name": "'tester/a b'",
        "token inside": "hftune.json",
        "bad card": "model card",
        "incomplete": "is not complete",
    }
    assert {name: found[0] for name, found in seen.items()} == dict.fromkeys(expected, 2)
    assert [name for name, text in expected.items() if text not in seen[name][1]] == []
    for name in ("no token", "wrong token", "odd token", "read token", "not yours"):
        assert "hf auth login" in seen[name][2] and "HF_TOKEN" in seen[name][2]
    assert set(hub.files("tester/taken")) == {".gitattributes", "config.json", "pytorch_model.bin"}
    assert hub.token not in printed and "hf_wr" not in printed


OFFLINE = """
constants.HF_HUB_OFFLINE = True
attempt("push", dict(hub_model_id="tester/down"))
"""


def test_giving_up_leaves_nothing_and_is_reported(client: Client, home: Path) -> None:
    hub = client.hub
    hub.fail("tester/down/commit/", status=502, times=2)
    seen, _ = script(client, home, 'attempt("push", dict(hub_model_id="tester/down"))', hub.token)
    code, message, hint = seen["push"]
    assert code == 1 and "in 2 attempts" in message and "502" in message and "hftune push" in hint
    assert set(hub.files("tester/down")) == {".gitattributes"}
    assert sum("tester/down/commit/" in request.path for request in hub.requests) == 2

    seen, _ = script(client, home, OFFLINE, hub.token)
    assert seen["push"][0] == 2 and "HF_HUB_OFFLINE" in seen["push"][1]


PROVE = """
import shutil, torch
from safetensors.torch import load_file, save_file
from hftune.hub.client import HubClient
from hftune.hub.publish import verify_published
attempt("push", dict(hub_model_id="tester/proof"))
sent = {path.name: path for path in Path("run/model").iterdir() if path.name != "README.md"}
def again(name, files):
    try:
        client = HubClient(os.environ["HF_TOKEN"])
        verify_published(client, RunDir(Path("run")), files, "tester/proof", seen["push"][1], trust=NO_TRUST)
    except HftuneError as error:
        seen[name] = [error.exit_code, error.message]
shutil.copytree("run/model", "sent")
Path("other.json").write_text("{}")
again("another file", {**sent, "hftune.json": Path("other.json")})
weights = load_file("run/model/model.safetensors")
weights["classifier.bias"] += 1
save_file(weights, "run/model/model.safetensors", metadata={"format": "pt"})
again("another model", {name: Path("sent") / name for name in sent})
"""


def test_something_else_on_the_hub_is_noticed(client: Client, home: Path) -> None:
    seen, _ = script(client, home, PROVE, client.hub.token)
    assert seen["another file"][0] == 1 and "hftune.json on the Hub" in seen["another file"][1]
    assert seen["another model"][0] == 1 and "outputs differ" in seen["another model"][1]


def test_only_named_files_are_published(home: Path) -> None:
    folder = home / "run" / "model"
    own = Path(contents.__file__).parent.parent / "models" / "mingpt" / "modeling_mingpt.py"
    shutil.copy(own, folder / own.name)
    strange = (
        "evil.py",
        "deep/er/modeling_mingpt.py",
        "deep/config.json",
        "model-1/x-of-2.safetensors",
        "trainer_state.json",
    )
    for name in strange:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    files, left_out = published_files(folder)
    assert set(files) == PUBLISHED - {"README.md"} | {"modeling_mingpt.py"} and sorted(left_out) == sorted(strange)
    refuse_secret(files, "hf_not_there")
    with pytest.raises(HftuneError, match=r"config\.json"):
        refuse_secret(files, "BertForSequenceClassification")


def test_only_our_own_code_is_published(home: Path) -> None:
    folder = home / "run" / "model"
    (folder / "modeling_mingpt.py").write_text("import os")
    with pytest.raises(HftuneError, match=r"modeling_mingpt\.py"):
        published_files(folder)
    (folder / "modeling_mingpt.py").rename(folder / "modeling_own.py")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoModel": "modeling_own.Model"}}))
    with pytest.raises(HftuneError, match=r"modeling_own\.py"):
        published_files(folder)


SECRET = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz01234567"
WRITTEN = {
    "plain": SECRET,
    "json": "".join(f"\\u{ord(one):04x}" for one in SECRET),
    "upper case": "".join(f"\\u{ord(one):04X}" for one in SECRET),
    "one character": f"\\u0068{SECRET[1:]}",
    "json in json": json.dumps({"a": f"\\u0068{SECRET[1:]}"}),
    "three layers": json.dumps(json.dumps({"a": f"\\u0068{SECRET[1:]}"})),
    "python": "".join(f"\\x{ord(one):02x}" for one in SECRET),
    "wide": f"\\U00000068{SECRET[1:]}",
    "url": f"https://x/?t=%68%66{SECRET[2:]}",
    "html": f"&#104;&#x66;{SECRET[2:]}",
    "underscore": SECRET.replace("_", "\\_"),
}


@pytest.mark.parametrize("how", WRITTEN)
@pytest.mark.parametrize("name", ["tokenizer_config.json", "README.md", "model.safetensors"])
def test_a_token_is_found_however_it_is_written(tmp_path: Path, how: str, name: str) -> None:
    path = tmp_path / name
    content = f'{{"note": "{WRITTEN[how]}"}}'.encode()
    path.write_bytes(len(content).to_bytes(8, "little") + content + b"\0" * 64 if name.endswith("tensors") else content)
    with pytest.raises(HftuneError, match=re.escape(name)):
        refuse_secret({name: path}, SECRET)
    refuse_secret({name: path}, SECRET[:-1] + "8")


@pytest.mark.parametrize("name", ["training_args.bin", "optimizer.pt", "rng_state.pth", "sub/model.PKL"])
def test_pickles_are_refused(home: Path, name: str) -> None:
    (home / "run" / "model" / name).parent.mkdir(exist_ok=True)
    (home / "run" / "model" / name).write_bytes(b"x")
    with pytest.raises(HftuneError, match=name):
        published_files(home / "run" / "model")


def test_links_and_empty_folders_are_refused(home: Path) -> None:
    folder = home / "run" / "model"
    (home / "private.txt").write_text("secret")
    (folder / "vocab.txt").symlink_to(home / "private.txt")
    with pytest.raises(HftuneError, match="link"):
        published_files(folder)
    (folder / "vocab.txt").unlink()
    (folder / "model.safetensors").unlink()
    with hftune_error(str(folder)):
        published_files(folder)


def test_retry_policy() -> None:
    retry = RetryPolicy(first_wait=2.0, longest_wait=10.0)
    assert 1.5 <= retry.wait(1) <= 2.5 and 3 <= retry.wait(2) <= 5
    assert 7.5 <= retry.wait(9) <= 12.5
    assert retry.wait(1, 30.0) == 30.0  # Retry-After
    assert retry.limit(5_000_000) == 5 * 60 + 100


def test_an_attempt_that_hangs_is_given_up(tmp_path: Path) -> None:
    release = threading.Event()
    reported: list[str] = []
    retry = RetryPolicy(attempts=2, first_wait=0, read_timeout=0.01)
    client = HubClient("hf_x", retry, report=reported.append, sleep=lambda seconds: None)
    try:
        with hftune_error("2 attempts", code=1):
            client._call(lambda api: release.wait(60), "me/it")
    finally:
        release.set()
    assert len(reported) == 1 and "TimeoutError" in reported[0]


def test_a_cancelled_upload_makes_no_commit(client: Client, home: Path) -> None:
    source = """
from hftune.hub.client import Cancelled, HubClient
from hftune.hub.contents import published_files
files, _ = published_files(Path("run/model"))
client = HubClient(os.environ["HF_TOKEN"], is_cancelled=lambda: True)
try:
    client.upload("tester/cancelled", files, revision="main", private=None, message="x")
except Cancelled:
    seen["cancelled"] = True
"""
    seen, _ = script(client, home, source, client.hub.token)
    assert seen == {"cancelled": True}
    assert set(client.hub.files("tester/cancelled")) == {".gitattributes"}


def test_the_name_is_checked_before_the_token(finished: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise HftuneError("there is no token", hint="log in")

    monkeypatch.setattr(publish, "require_token", none)
    for name, expected in (("a//b", "a//b"), ("jane/reviews", "there is no token")):
        with pytest.raises(HftuneError, match=expected):
            publish.push(finished, HubSection(hub_model_id=name), ProgressReporter())
        with pytest.raises(HftuneError, match=expected):
            publish.check_access(HubSection(hub_model_id=name), "run")
