"""A saved minGPT carries its code: it loads where hftune is not installed, and generates the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from trained_tokenizers import char_tokenizer
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from hftune.models.mingpt import ATTENTION, MinGPTConfig, MinGPTForCausalLM, MinGPTModel, register

TEXT = "ada lovelace was born in london⁇ the rest of the world knows it.\n"
LOAD_ELSEWHERE = """
import json, sys

class NoHftune:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "hftune":
            raise ImportError("hftune is not installed here")

sys.meta_path.insert(0, NoHftune())
try:
    import hftune
except ImportError:
    pass
else:
    raise SystemExit("hftune could be imported")

import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

answers = {}
for folder in sys.argv[1:]:
    # False: the tokenizer needs no code of ours, though the model's config next to it does.
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
    batch = tokenizer(["ada lovelace was", "the rest"], return_tensors="pt", padding=True)
    made = model.generate(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=8, do_sample=False
    )
    answers[folder] = {"made": made.tolist(), "module": type(model).__module__}
base = AutoModel.from_pretrained(folder, trust_remote_code=True)
answers["base"] = type(base).__name__
assert not any(name.partition(".")[0] == "hftune" for name in sys.modules)
print(json.dumps(answers))
"""


def save(attention: str, folder: Path) -> list[list[int]]:
    """Save a small model and its tokenizer; return what it generates here."""
    torch.manual_seed(0)
    tokenizer = char_tokenizer([TEXT], block_size=40)
    config = MinGPTConfig(
        attention=attention,
        vocab_size=len(tokenizer),
        block_size=40,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        linformer_block=8,
        bigbird_block=4,
        performer_features=16,
        initializer_range=0.5,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = MinGPTForCausalLM(config).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    batch = tokenizer(["ada lovelace was", "the rest"], return_tensors="pt", padding=True)
    made = model.generate(batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=8, do_sample=False)
    rows: list[list[int]] = made.tolist()
    return rows


def test_saved_models_load_and_generate_without_hftune(tmp_path: Path) -> None:
    register()
    here = {str(tmp_path / attention): save(attention, tmp_path / attention) for attention in ATTENTION}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", LOAD_ELSEWHERE, *here],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout.splitlines()[-1])
    for folder, expected in here.items():
        assert answers[folder]["made"] == expected, folder
        assert answers[folder]["module"].startswith("transformers_modules.")
    assert answers["base"] == "MinGPTModel"


def test_saved_folder_holds_the_code_it_needs_and_no_more(tmp_path: Path) -> None:
    register()
    save("rope", tmp_path)
    names = {path.name for path in tmp_path.glob("*.py")}
    files = {f"attention_{name}.py" for name in ATTENTION if name != "vanilla"}  # that one is in the base
    assert names == {"configuration_mingpt.py", "modeling_mingpt.py", "attention_base.py", *files}
    auto_map = json.loads((tmp_path / "config.json").read_text())["auto_map"]
    assert auto_map == {
        "AutoConfig": "configuration_mingpt.MinGPTConfig",
        "AutoModel": "modeling_mingpt.MinGPTModel",
        "AutoModelForCausalLM": "modeling_mingpt.MinGPTForCausalLM",
    }


@pytest.mark.parametrize("folder_kind", ["causal", "base"])
def test_auto_classes_use_our_own_code_here(tmp_path: Path, folder_kind: str) -> None:
    register()
    register()
    config = MinGPTConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, block_size=16)
    assert type(AutoModelForCausalLM.from_config(config)) is MinGPTForCausalLM
    model = MinGPTForCausalLM(config) if folder_kind == "causal" else MinGPTModel(config)
    model.save_pretrained(tmp_path)
    assert type(AutoConfig.from_pretrained(tmp_path)) is MinGPTConfig
    base = AutoModel.from_pretrained(tmp_path)
    assert type(base) is MinGPTModel
    weight = (model.model if isinstance(model, MinGPTForCausalLM) else model).token_embedding.weight
    assert torch.equal(base.token_embedding.weight, weight)
