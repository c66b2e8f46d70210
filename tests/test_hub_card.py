"""The model card: every score in its header, plain words below, and foreign text that changes neither."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from facts import mentions
from finished_run import LABELS, finished_run, metrics
from huggingface_hub import ModelCard
from loopback.card import card_problems

from hftune.hub.card import card_text, fill_address, usage, write_card
from hftune.recipe import load_recipe

HOSTILE = "evil\n---\nlicense: stolen\n---\n# <script>alert(1)</script> | `x` [a](http://x) \x1b[31m {{ 7*7 }} \u202e"


def header(text: str) -> dict[str, Any]:
    block = re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)
    assert block is not None
    found = yaml.safe_load(block[1])
    assert isinstance(found, dict)
    return found


def test_header_holds_every_score(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "run")
    write_card(run)
    text = (run.model / "README.md").read_text()
    assert text == card_text(run)
    data = header(text)
    assert card_problems(text) == ([], [])
    assert (data["library_name"], data["pipeline_tag"]) == ("transformers", "text-classification")
    assert data["tags"] == ["hftune", "classify", "full"]
    assert "license" not in data and "base_model" not in data and "datasets" not in data
    results = {result["dataset"]["split"]: result["metrics"] for result in data["model-index"][0]["results"]}
    assert set(results) == {"validation", "test"}
    for split, found in results.items():
        written = {key: value for key, value in metrics()["splits"][split].items() if key != "per_class"}
        assert [metric["value"] for metric in found] == list(written.values())
        types = [metric["type"] for metric in found]
        assert types == ["accuracy", "f1", "matthews_correlation", "ece", "loss"]
    assert results["test"][1]["args"] == {"average": "macro"}


def test_body_has_what_a_reader_needs(tmp_path: Path) -> None:
    text = card_text(finished_run(tmp_path / "run"))
    assert "| **this model**, test | 0.625 | 0.700 | 0.600 | 0.100 | 0.900 |" in text
    assert "| majority label, test | 0.500 |" in text and "| bag of words, validation | 0.500 |" in text
    assert mentions(text, "better", "baseline") and "by 0.125" in text
    assert "1,000 of 1,000 parameters trained" in text and mentions(text, "step 30", "validation", "accuracy")
    assert "| train | 40 | `aa11` |" in text and mentions(text, "validation", "train")
    assert "overconfident" in text and mentions(text, "0.050", "1.300")
    assert "truncated to 128 tokens" in text and "collapsed" not in text
    assert "the architecture scratch:bert-tiny" in text
    fence = re.search(r"```yaml\n(.*?)\n```", text, re.DOTALL)
    assert fence is not None and yaml.safe_load(fence[1])["model"]["model_name_or_path"] == "scratch:bert-tiny"
    assert str(Path.home()) not in text


def test_a_collapsed_model_is_reported(tmp_path: Path) -> None:
    text = card_text(finished_run(tmp_path / "run", collapsed=True, collapse_reason="validation: all 4 are 'bad'"))
    assert mentions(text, "Warning", "collapsed")
    assert mentions(text, "validation", 4, "'bad'")
    worse = metrics()["splits"] | {"test": {"accuracy": 0.4}}
    text = card_text(finished_run(tmp_path / "worse", splits=worse))
    assert mentions(text, "worse", "baseline")


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    data = metrics()["data"] | {"source": HOSTILE.replace("/", ""), "notes": [HOSTILE, "```\n# not a heading"]}
    per_class = {HOSTILE: {"f1": 0.5}, "b": {"f1": 0.5}}
    splits = {"test": {"accuracy": 0.5, "per_class": per_class}}
    run = finished_run(tmp_path / "run", labels=(HOSTILE, "b"), data=data, splits=splits)
    text = card_text(run)
    found = header(text)
    assert "license" not in found and card_problems(text) == ([], [])
    assert found["model-index"][0]["results"][0]["dataset"]["name"].startswith("evil --- license: stolen")
    body = ModelCard(text).text
    assert "<script>" not in body and "\x1b" not in body and "\u202e" not in body and "http://" not in body
    assert "{{ 7&#42;7 }}" in body  # text, not a template
    headings = [line for line in body.splitlines() if line.startswith("#")]
    expected = ["# run", "## Use", "## Scores", "## Training", "### Data", "### Recipe", "## Limitations", "## License"]
    assert headings == expected
    cells = [line.count("|") for line in body.splitlines() if "evil" in line and line.startswith("|")]
    assert cells == [3]


def test_a_name_on_the_hub_is_linked_and_a_path_is_left_out(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "run")
    recipe = load_recipe(
        None, {"model.model_name_or_path": "huawei-noah/TinyBERT_General_4L_312D", "data.dataset_name": "google/boolq"}
    )
    run.write_recipe(recipe)
    found = header(card_text(run))
    assert found["base_model"] == "huawei-noah/TinyBERT_General_4L_312D" and found["datasets"] == ["google/boolq"]
    folder = tmp_path / "secret-place" / "encoder"
    run.write_recipe(load_recipe(None, {"model.model_name_or_path": str(folder)}))
    text = card_text(run)
    assert "base_model" not in header(text)
    assert str(folder) not in text.split("### Recipe")[0]


def test_the_snippet_runs(tmp_path: Path, capsys: Any) -> None:
    run = finished_run(tmp_path / "run")
    text = fill_address(card_text(run), str(run.model), None)
    snippet = re.search(r"```python\n(.*?)\n```", text, re.DOTALL)
    assert snippet is not None
    exec(snippet[1], {})
    output = re.search(r"'label': '(\w+)'", capsys.readouterr().out)
    assert output is not None and output[1] in LABELS


def test_snippets_of_other_models() -> None:
    pairs = usage({"architectures": ["BertForSequenceClassification"]}, adapter=False, pairs=True)
    assert '"text_pair"' in pairs.snippet and "trust_remote_code" not in pairs.snippet
    own = usage({"architectures": ["MinGPTForCausalLM"], "auto_map": {"A": "b"}}, adapter=False, pairs=False)
    assert own.pipeline_tag == "text-generation" and "trust_remote_code=True" in own.snippet
    adapter = usage({}, adapter=True, pairs=False)
    assert adapter.library == "peft" and "from hftune import predict" in adapter.snippet
    assert fill_address(own.snippet, "me/it", "v1").count('model="me/it", revision="v1", trust_remote_code') == 1
