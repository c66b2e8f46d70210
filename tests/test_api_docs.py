"""The examples of the Python API's docstrings and of docs/python.md, run; and that every public name has one.

They are run with a loopback hub by a process that has imported everything, so that publishing is among them.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch
from finished_run import tokenizer
from hub_client import Client
from transformers import BertConfig, BertModel

import hftune

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
TINYBERT, SMALLER = "huawei-noah/TinyBERT_General_4L_312D", "someone/tiny-for-pages"
OF_CONFIG = {"Recipe", "load_recipe"}
"""Public names whose docstrings belong to the settings."""

# Worker processes take long to start; test_study_runs.py has real ones.
NO_WORKERS = """
from hftune.studies import executors, worker
executors.LocalExecutor.run = lambda self, job, callback: worker.run_job(job, lambda message: callback(job, message))
"""
EXAMPLES = """
import doctest, hftune
rows = [
    {"text": f"the {what} was {how} {number}", "label": label}
    for number in range(20)
    for what, how, label in (("food", "great", "good"), ("soup", "cold", "bad"))
]
names = {"hftune": hftune, "rows": rows}
found = {}
for name in hftune.__all__:
    for test in doctest.DocTestFinder().find(getattr(hftune, name), name, module=False, globs=names):
        if test.examples:
            found[test.name] = test
quick = {"data": rows, "model": "scratch:bert-tiny", "max_steps": 2, "progress": False}
runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
first = ["Run", "RunGroup", "Study"]  # those that the others use
hftune.train(output_dir="runs/second", learning_rate=1e-4, **quick)
for name in [*first, *sorted(set(found) - set(first))]:
    test = found[name]
    test.globs = names
    runner.run(test, clear_globs=False)
print(len(found), runner.summarize(verbose=False))
"""


def public() -> dict[str, Any]:
    """Functions, classes and their public methods, by dotted name."""
    found: dict[str, Any] = {}
    for name in hftune.__all__:
        value = getattr(hftune, name)
        if name in OF_CONFIG or not callable(value):
            continue
        found[name] = value
        if inspect.isclass(value) and not issubclass(value, Exception):
            own = {key: part for key, part in vars(value).items() if not key.startswith("_")}
            found |= {f"{name}.{key}": part for key, part in own.items() if inspect.isfunction(part)}
    return found


@pytest.mark.parametrize("name", public())
def test_everything_public_is_typed_and_has_an_example(name: str) -> None:
    value = public()[name]
    if name in ("RunFailed", "Interrupted"):
        return  # an HftuneError like any other
    assert ">>> " in (value.__doc__ or ""), f"{name} has no Examples"
    function = value if inspect.isfunction(value) else value.__init__
    signature = inspect.signature(inspect.unwrap(function))
    for parameter in list(signature.parameters.values()):
        assert parameter.name == "self" or parameter.annotation is not inspect.Parameter.empty, parameter
    assert signature.return_annotation is not inspect.Signature.empty
    if not inspect.isclass(value) and len(signature.parameters) > 1:
        assert "Args:" in value.__doc__


def test_the_examples_of_the_docstrings(client: Client) -> None:
    token = client.hub.add_user("user")
    done = client.python(NO_WORKERS + EXAMPLES, token=token)
    assert done.returncode == 0, done.stdout + done.stderr
    number, _, results = done.stdout.strip().splitlines()[-1].partition(" ")
    assert "failed=0" in results, done.stdout
    assert int(number) >= 20


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    words = tokenizer(folder.parent / "words", max_length=512)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    BertModel(config).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def test_the_page(client: Client, encoder: Path) -> None:
    token = client.hub.add_user("user")
    client.hub.add_model(SMALLER, encoder)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 13
    done = client.python(NO_WORKERS + "\n".join(blocks).replace(TINYBERT, SMALLER), token=token)
    assert done.returncode == 0, done.stderr
    assert "learning_rate?" in done.stdout
    assert client.hub.repo("user/name").private is True
    folders = {path.name for path in (client.home / "runs").iterdir()}
    assert folders == {"a", "again", "lora", "seeds", "study", "by-hand", "answers"}


def test_the_hints_of_types_can_be_read() -> None:
    from hftune.api import call

    assert get_type_hints(call.ResolvedCall)["overrides"]
    assert call.ProgressOption is not None
