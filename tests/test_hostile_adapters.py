"""Adapters whose configuration would keep a machine busy for hours, or take all of its memory."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from facts import hftune_error
from finished_run import LABELS
from method_case import model, tokenizer
from peft import IA3Config, LoraConfig, PeftConfig, get_peft_model
from safetensors.torch import load_file, save_file

from hftune import methods
from hftune.errors import HftuneError
from hftune.methods.lora import LoraMethod
from hftune.methods.peft import PeftMethod
from hftune.methods.prefix import PrefixMethod
from hftune.methods.prompt import PromptMethod
from hftune.methods.ptuning import PTuningMethod
from hftune.models.adapter import WEIGHTS
from hftune.models.adapter_limits import MOST_WAYS, ways_to_match
from hftune.models.classifier import Classifier, load_sequence_classifier
from hftune.models.hub_files import ADAPTER as CONFIG
from hftune.models.load import load_tokenizer
from hftune.models.settings import ModelSection

Hftune = Callable[..., tuple[int, str, str]]
METHODS = {
    "lora": LoraMethod(r=4),
    "prefix": PrefixMethod(num_virtual_tokens=2),
    "prompt": PromptMethod(num_virtual_tokens=2),
    "ptuning": PTuningMethod(num_virtual_tokens=2),
    "vera": PeftMethod(peft_type="VERA", r=4),
    "peanut": PeftMethod(peft_type="PEANUT", r=4),
    "hira": PeftMethod(peft_type="HIRA", r=4),
    "osf": PeftMethod(peft_type="OSF"),
}


@pytest.fixture(autouse=True)
def stopped() -> Iterator[None]:
    """A test that hangs fails, where the system has alarms."""

    def stop(*_: Any) -> None:
        pytest.fail("it hangs")

    if hasattr(signal, "alarm"):
        before = signal.signal(signal.SIGALRM, stop)
        signal.alarm(60)
    yield
    if hasattr(signal, "alarm"):
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("adapters")
    for name, section in METHODS.items():
        torch.manual_seed(0)
        adapted = methods.apply(model("bert"), section, ("classifier",)).model
        made = Classifier(adapted, tokenizer(root / "words"), LABELS, 16, "longest_first")
        made.save(root / name, base=ModelSection(model_name_or_path="scratch:bert-tiny"))
    return root


@pytest.fixture
def adapter(originals: Path, tmp_path: Path) -> Callable[..., Path]:
    def make(kind: str = "lora", **values: Any) -> Path:
        folder = Path(shutil.copytree(originals / kind, tmp_path / "adapter", dirs_exist_ok=True))
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        (folder / CONFIG).write_text(json.dumps({**config, **values}), encoding="utf-8")
        return folder

    return make


SLOW = {
    "nested": "(.+)+X",
    "nested group": "((a|e|t|b)*)*X",
    "polynomial": ".*" * 9 + "X",
    "alternatives": "(.|.)" * 40 + "X",
    "optional": ".?" * 40 + "." * 40 + "X",
    "lookahead": "(?=(.+)+X).*",
    "counted": "(.{1,30}){1,30}X",
    "back reference": r"(.+)(\1)+X",
    "long": "a|" * 5000 + "a",
    "verbose": "(?x) ( .+ )+ X",
}


@pytest.mark.parametrize("pattern", SLOW)
def test_a_regular_expression_that_could_take_forever_is_refused(adapter: Callable[..., Path], pattern: str) -> None:
    folder = adapter(target_modules=SLOW[pattern])
    with hftune_error("target_modules", "adapter", "regular expression") as caught:
        Classifier.load(str(folder), device="cpu")
    assert str(folder) in str(caught.value) and repr(SLOW[pattern][:40])[1:-1] in str(caught.value)
    assert len(str(caught.value)) < 400 + len(str(folder)) and "target_modules" in caught.value.hint


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("exclude_modules", SLOW["nested"]),
        ("modules_to_save", ["classifier", SLOW["nested"]]),
        ("layers_pattern", SLOW["nested"]),
        ("rank_pattern", {SLOW["nested"]: 4}),
        ("alpha_pattern", {SLOW["nested"]: 4}),
        ("rank_pattern", {f".*{number}.*.*": 4 for number in range(400)}),
        ("rank_pattern", {f"query{number}": 4 for number in range(5000)}),
        ("modules_to_save", [f"{number}.*" for number in range(500)]),
        ("target_modules", [f"query{number}" for number in range(100_000)]),
        ("layer_replication", [[0, 2]] * 10_000),
        ("layer_replication", [[0, 10**12]]),
        ("layer_replication", "many"),
        ("init_lora_weights", "pissa_niter_1000000"),
        ("init_lora_weights", "pissa_niter_1_000_000"),
        ("corda_config", {"cache_file": "/etc/passwd"}),
        ("loftq_config", {"loftq_iter": 10**9}),
        ("trainable_token_indices", [0] * 10**6),
        ("monteclora_config", {"num_samples": 10**9}),
        ("r", 10**9),
        ("r", 100),
        ("r", -1),
        ("r", "8" * 100),
        ("rank_pattern", {"query": 10**9}),
        ("peft_type", "POLY"),
        ("peft_type", "XLORA"),
        ("peft_type", None),
    ],
)
def test_no_setting_takes_unbounded_time_or_memory(adapter: Callable[..., Path], field: str, value: Any) -> None:
    folder = adapter(**{field: value})
    with hftune_error(f"{field} of", str(folder)) as caught:
        Classifier.load(str(folder), device="cpu")
    assert caught.value.hint and len(str(caught.value)) < 400 + len(str(folder))


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("vera", "r", 10**9),
        ("vera", "r", "8"),
        ("vera", "target_modules", SLOW["nested"]),
        ("peanut", "depth", 10**9),
        ("peanut", "act_fn", ["relu"] * 3),
        ("hira", "rank_pattern", {"query": 10**9}),
        ("hira", "rank_pattern", {SLOW["nested"]: 4}),
        ("osf", "effective_rank", 10**9),
        ("osf", "target_svd_config", {"query": 10**9}),
    ],
)
def test_the_settings_of_other_types_are_bounded(
    adapter: Callable[..., Path], kind: str, field: str, value: Any
) -> None:
    Classifier.load(str(adapter(kind)), device="cpu")
    folder = adapter(kind, **{field: value})
    with pytest.raises(HftuneError) as caught:
        Classifier.load(str(folder), device="cpu")
    assert field in str(caught.value) or kind == "peanut"


@pytest.mark.parametrize("kind", ["prefix", "prompt", "ptuning"])
@pytest.mark.parametrize("field", ["num_virtual_tokens", "token_dim", "num_transformer_submodules", "num_layers"])
def test_a_prompt_has_the_size_of_its_weights(adapter: Callable[..., Path], kind: str, field: str) -> None:
    folder = adapter(kind, **{field: 10**9})
    if field == "num_layers" and kind != "prefix":
        Classifier.load(str(folder), device="cpu")  # nothing is made of it
        return
    with pytest.raises(HftuneError, match=f"^{field} of the adapter"):
        Classifier.load(str(folder), device="cpu")


def test_a_large_weight_does_not_allow_a_large_rank(adapter: Callable[..., Path]) -> None:
    """A megabyte of numbers in one row, and one without numbers at all: both would allow a rank of a million."""
    folder = adapter(r=10**6)
    row = {"row": torch.zeros(1, 10**6, dtype=torch.uint8), "none": torch.zeros(10**6, 0), "line": torch.zeros(10**6)}
    save_file({**load_file(folder / WEIGHTS), **row}, folder / WEIGHTS)
    with hftune_error("r of", "from 1 to 1024"):
        Classifier.load(str(folder), device="cpu")


def test_every_way_to_load_one_is_checked(adapter: Callable[..., Path], here: Path, hftune: Hftune) -> None:
    folder = adapter(target_modules=SLOW["nested"])
    section = ModelSection(model_name_or_path=str(folder))
    with pytest.raises(HftuneError, match=r"^target_modules of the adapter"):
        load_sequence_classifier(section, load_tokenizer(section, []), LABELS)
    (here / "rows.csv").write_text("text,label\n" + "".join(f"row {n},{LABELS[n % 2]}\n" for n in range(30)))
    for command in (
        ("predict", str(folder), "a text"),
        ("evaluate", str(folder), "--data", "rows.csv"),
        ("classify", "--model", str(folder), "--data", "rows.csv"),
        ("generate", str(folder), "--prompt", "a"),
    ):
        code, _, err = hftune(*command)
        assert code == 2 and "target_modules" in err, (command, err)


USUAL = (
    r".*\.(query|value)",
    r".*attention\.self\.(?:query|value)$",
    r"bert\.encoder\.layer\.\d+\.attention\.self\.(query|value)",
    r"(?!.*pooler).*(query|value)",
    r".*encoder.*(attention|crossattention).*(query|value)$",
    r"^bert.encoder.layer.[0-9]{1,2}.*\.(query|key|value|dense)$",
    "all-linear",
)


@pytest.mark.parametrize("pattern", USUAL)
def test_usual_patterns_are_allowed(pattern: str) -> None:
    assert ways_to_match(pattern) <= MOST_WAYS


@pytest.mark.parametrize(
    "config",
    [
        LoraConfig(r=4, target_modules=USUAL[0], rank_pattern={"query": 2}, alpha_pattern={".*value": 4}),
        LoraConfig(r=4, target_modules="all-linear", exclude_modules="bert.pooler.dense", use_dora=True),
        LoraConfig(r=4, target_modules=["query"], init_lora_weights="pissa", layers_to_transform=[1]),
        LoraConfig(
            r=4, target_modules=["query"], init_lora_weights="pissa_niter_4", layer_replication=[[0, 2], [1, 2]]
        ),
        LoraConfig(r=20, target_modules=["query"], use_rslora=True, bias="lora_only"),
        IA3Config(target_modules=["key", "output.dense"], feedforward_modules=["output.dense"]),
    ],
)
def test_adapters_that_peft_saved_are_loaded(config: PeftConfig, originals: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    base = model("bert")
    config.task_type = "SEQ_CLS"
    base.save_pretrained(tmp_path / "made" / "base")
    for name in ("hftune.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(originals / "lora" / name, tmp_path / "made" / name)
    adapted = get_peft_model(base, config)
    for name, value in adapted.named_parameters():
        if "lora_B" in name or "ia3" in name:
            torch.nn.init.normal_(value)
    config.base_model_name_or_path = "./base"
    adapted.save_pretrained(tmp_path / "made", save_embedding_layers=False)
    texts = ["great food", "the soup was cold"]
    made = Classifier(adapted, tokenizer(tmp_path / "words"), LABELS, 16, "longest_first")
    found = Classifier.load(str(tmp_path / "made"), device="cpu").logits(texts)
    if "niter" not in str(getattr(config, "init_lora_weights", "")):  # peft draws from chance there
        assert found == pytest.approx(made.logits(texts), abs=1e-5)


def test_the_slowest_allowed_patterns_finish() -> None:
    name = "base_model.model.bert.encoder.layer.11.attention.output.LayerNorm"
    for pattern in (".*.*.*(a|b|c)X", "(.|.|.|.)" * 7 + "(.|.|.)X", ".?" * 15 + "X", "(?=.*.*X).*(a|b)"):
        assert MOST_WAYS / 4 < ways_to_match(pattern) <= MOST_WAYS
        assert not re.match(rf"(.*\.)?({pattern})$", name)  # as peft does it
