"""Consent to the code of an adapter is no consent to the code of the base that it names: each is named by who asks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from facts import hftune_error, mentions
from finished_run import finished_run
from hub_client import Client
from test_hostile_paths import change, save_adapter
from tiny import BRIEF, csv_folder

from hftune.models.settings import ModelSection
from hftune.models.trust import base_on_hub

CODE = """
from pathlib import Path
from transformers import BertConfig, BertForSequenceClassification
Path({mark!r}).touch()
class MineConfig(BertConfig):
    model_type = "mine"
class Mine(BertForSequenceClassification):
    config_class = MineConfig
"""
AUTO_MAP = {"AutoConfig": "mine.MineConfig", "AutoModelForSequenceClassification": "mine.Mine"}
BASE, ADAPTER = "evil/coded", "good/adapter"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_run(tmp_path_factory.mktemp("made") / "run").model


def with_code(folder: Path, mark: Path) -> Path:
    """A model that can't be loaded without its code, which leaves a file."""
    (folder / "mine.py").write_text(CODE.format(mark=str(mark)))
    change(folder / "config.json", model_type="mine", auto_map=AUTO_MAP)
    return folder


@pytest.fixture
def mark(client: Client) -> Path:
    return client.home / "code-ran"


@pytest.fixture
def commits(client: Client, original: Path, mark: Path) -> tuple[str, str]:
    """An adapter whose base brings code, both on the Hub: their commits."""
    made = Path(shutil.copytree(original, client.home / "made"))
    base = client.hub.add_model(BASE, with_code(made / ".", mark))
    adapter = client.hub.add_model(ADAPTER, save_adapter(client.home / "adapter", original, BASE))
    for left in client.home.iterdir():
        shutil.rmtree(left)
    csv_folder(client.home / "rows")
    return adapter, base


def commands(adapter: str, model: str = ADAPTER) -> dict[str, list[str]]:
    """Every command that loads an adapter, with consent to the code of the adapter."""
    used = ["--trust-remote-code", "--revision", adapter]
    rows = ["--data", "rows"]
    return {
        "predict": ["predict", model, "a text", *used],
        "evaluate": ["evaluate", model, *rows, *used],
        "export": ["export", model, "--onnx", *rows, "--split", "validation", *used],
        "generate": ["generate", model, "--prompt", "a text", *used],
        "classify": [
            *("classify", "--model", model, *rows, *BRIEF, "--output", "run"),
            *("--trust-remote-code", "--set", f"model.model_revision={adapter}"),
        ],
    }


def test_consent_to_an_adapter_does_not_include_its_base(client: Client, commits: tuple[str, str], mark: Path) -> None:
    adapter, base = commits
    for command in commands(adapter).values():
        done = client.hftune(*command)
        message = " ".join(done.stderr.split())
        assert done.returncode == 2 and mentions(message, BASE, base), (command, done.stderr)
        assert f"--trust-base-code {BASE}@{base}" in message and not mark.exists(), (command, done.stderr)
    assert not (client.home / "run").exists()


def test_an_adapter_can_not_choose_the_commit_either(
    client: Client, original: Path, commits: tuple[str, str], mark: Path
) -> None:
    made = save_adapter(client.home / "made", original, BASE, revision=commits[1])
    adapter = client.hub.add_model("evil/pinned", made)
    shutil.rmtree(made)
    done = client.hftune(*commands(adapter, "evil/pinned")["predict"])
    assert done.returncode == 2 and f"{BASE}@{commits[1]}" in done.stderr and not mark.exists(), done.stderr
    other = ["--trust-base-code", f"{BASE}@{COMMIT}"]
    done = client.hftune("predict", "evil/pinned", "a text", *other)
    message = " ".join(done.stderr.split())
    assert done.returncode == 2 and mentions(message, f"{BASE}@{COMMIT}") and not mark.exists(), message


def test_consent_that_names_the_base(client: Client, commits: tuple[str, str], mark: Path) -> None:
    """It suffices: the adapter itself has no code. The base is read at the commit that was named."""
    adapter, base = commits
    consent = ["--trust-base-code", f"{BASE}@{base}"]
    moved = {**client.hub.files(BASE), "mine.py": b"raise SystemExit('other code')"}
    client.hub.add_model(BASE, moved)
    for name, command in commands(adapter).items():
        if name in ("generate", "export"):  # it labels texts; and no model with code of its own is exported
            continue
        mark.unlink(missing_ok=True)
        plain = [word for word in command if word != "--trust-remote-code"]
        done = client.hftune(*plain, *consent)
        assert done.returncode == 0 and mark.exists(), (command, done.stderr)
    # The trained model has the code in its own folder now.
    assert (client.home / "run" / "model" / "mine.py").is_file()
    assert client.hftune("predict", "run", "a text").returncode == 2
    assert client.hftune("predict", "run", "a text", "--trust-remote-code").returncode == 0


def test_an_adapter_that_was_trained_here(client: Client, commits: tuple[str, str], mark: Path) -> None:
    """The user who trains names the base; another user of the run has to name it too."""
    base = commits[1]
    model = [
        "--model",
        BASE,
        "--set",
        f"model.model_revision={base}",
        "--method",
        "lora",
        "--set",
        "method.target_modules=[query]",
    ]
    done = client.hftune("classify", *model, "--trust-remote-code", "--data", "rows", *BRIEF, "--output", "run")
    assert done.returncode == 0, done.stderr
    assert json.loads((client.home / "run" / "model" / "adapter_config.json").read_text())["revision"] == base
    mark.unlink()
    done = client.hftune("predict", "run", "a text", "--trust-remote-code")
    assert done.returncode == 2 and f"--trust-base-code {BASE}@{base}" in done.stderr and not mark.exists()
    done = client.hftune("predict", "run", "a text", "--trust-base-code", f"{BASE}@{base}")
    assert done.returncode == 0 and mark.exists(), done.stderr
    push = ["push", "run", "tester/coded"]
    done = client.hftune(*push, token=client.hub.token)
    assert done.returncode == 1 and mentions(" ".join(done.stderr.split()), BASE, base), done.stderr
    done = client.hftune(*push, "--trust-base-code", f"{BASE}@{base}", token=client.hub.token)
    assert done.returncode == 0, done.stderr


def test_code_in_the_same_repository_needs_no_further_consent(client: Client, original: Path, mark: Path) -> None:
    made = save_adapter(client.home / "made", original, "./base")
    with_code(Path(shutil.copytree(original, made / "base")), mark)
    commit = client.hub.add_model("good/both", made)
    csv_folder(client.home / "rows")
    for command in (["predict", "good/both", "a text"], ["predict", "made", "a text"]):
        done = client.hftune(*command)
        assert done.returncode == 2 and mentions(done.stderr, "Python code") and not mark.exists(), done.stderr
    # At a moving revision it does not run, whatever brings the tokenizer.
    moving = ["--model", "good/both", "--tokenizer", "made", "--data", "rows", *BRIEF, "--trust-remote-code"]
    done = client.hftune("classify", *moving)
    assert done.returncode == 2 and "revision" in done.stderr and not mark.exists(), done.stderr
    done = client.hftune("predict", "good/both", "a text", "--trust-remote-code", "--revision", commit)
    assert done.returncode == 0 and mark.exists(), done.stderr


def test_a_base_that_transformers_knows_runs_no_code(client: Client, original: Path, mark: Path) -> None:
    """Its code is left alone: the class of transformers is used, with consent to the adapter and without."""
    made = Path(shutil.copytree(original, client.home / "made"))
    with_code(made, mark)
    change(made / "config.json", model_type="bert")
    client.hub.add_model("someone/known", made)
    adapter = client.hub.add_model("good/plain", save_adapter(client.home / "adapter", original, "someone/known"))
    for trust in ([], ["--trust-remote-code", "--revision", adapter]):
        done = client.hftune("predict", "good/plain", "a text", *trust)
        assert done.returncode == 0 and not mark.exists(), done.stderr


@pytest.mark.parametrize(
    "text", ["someone/x", "someone/x@main", f"someone/x@{COMMIT[:10]}", f"@{COMMIT}", f"/x@{COMMIT}"]
)
def test_consent_is_to_a_repository_at_a_commit(here: Path, hftune: Any, text: str) -> None:
    (here / "model").mkdir()
    (here / "model" / "config.json").write_text("{}")
    for command in (("predict", "model", "a text"), ("classify", "--model", "model", "--data", "reviews")):
        code, _, err = hftune(*command, "--trust-base-code", text)
        assert code == 2 and "REPO@COMMIT" in err, err


def test_consent_is_to_one_base_at_one_commit(here: Path) -> None:
    given = f"someone/x@{COMMIT}"
    adapter = ModelSection(
        model_name_or_path="adapter", model_revision="b" * 40, trust_remote_code=True, trust_base_code=given
    )
    for name, revision in (("someone/x", None), ("someone/x", "main"), ("someone/x", COMMIT)):
        base = base_on_hub(adapter, name, revision)
        assert (base.model_name_or_path, base.model_revision, base.trust_remote_code) == (name, COMMIT, True)
    for name, revision in (("someone/y", None), ("someone/x", "b" * 40), ("x", COMMIT)):
        base = base_on_hub(adapter, name, revision)
        assert (base.model_name_or_path, base.model_revision, base.trust_remote_code) == (name, revision, False)
    (here / "someone").mkdir()
    (here / "someone" / "x").touch()
    with hftune_error("someone/x", "Hub"):
        base_on_hub(adapter, "someone/x", COMMIT)
