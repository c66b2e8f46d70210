"""The private names of transformers that hftune can't do without: one test names each when a new version drops it.

Those of Trainer and of configurations can change in any release. Those that transformers documents for the authors of
models, such as ``_init_weights``, are listed apart.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import pytest
from transformers import BertConfig, GenerationMixin, PreTrainedConfig, PreTrainedModel, Trainer, TrainingArguments
from transformers.cache_utils import DynamicLayer

from hftune.models.cls_only import attention_implementation
from hftune.models.joint import FAMILIES

PACKAGE = Path(__file__).parent.parent / "hftune"
PARAMETERS = {
    "_load_from_checkpoint": ["self", "resume_from_checkpoint", "model"],
    "_save_optimizer_and_scheduler": ["self", "output_dir"],
    "save_model": ["self", "output_dir", "_internal_call"],
}
PLACES = {
    "_load_from_checkpoint": "training/trainer.py",
    "_save_optimizer_and_scheduler": "training/trainer.py",
    "_internal_call": "training/trainer.py",
    "_n_gpu": "training/arguments.py",
    "_attn_implementation": "models/cls_only.py",
}
CONTRACT = {
    "_init_weights": {"models/classifier.py", "models/mingpt/modeling_mingpt.py", "models/pooled/modeling_pooled.py"},
    "_tied_weights_keys": {"models/joint.py", "models/mingpt/modeling_mingpt.py"},
    "_no_split_modules": {"models/mingpt/modeling_mingpt.py"},
    "_supports_sdpa": {"models/mingpt/modeling_mingpt.py", "models/pooled/modeling_pooled.py"},
    **{
        f"_supports_{name}": {"models/pooled/modeling_pooled.py"}
        for name in ("flash_attn", "flex_attn", "attention_backend")
    },
}
"""What a model class has to define: https://huggingface.co/docs/transformers/custom_models."""
OTHERS = {
    ("accelerate.commands.launch", "_validate_launch_command"): "training/launch.py",
    ("torch", "_foreach_lerp"): "training/muon.py",
    ("torch", "_foreach_lerp_"): "training/muon.py",
}
PUBLIC = {"_replace", "_asdict", "_fields", "_exit"}
"""Public in spite of their names: those of named tuples, and ``os._exit``."""


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_methods_are_there(name: str) -> None:
    method = getattr(Trainer, name, None)
    assert method is not None, f"this version of transformers has no Trainer.{name}: see {PLACES.get(name)}"
    assert list(inspect.signature(method).parameters) == PARAMETERS[name]


def test_data_parallelism_can_be_avoided(tmp_path: Path) -> None:
    made = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    assert made.n_gpu == 0
    made._n_gpu = 3
    assert made.n_gpu == 3, "this version of transformers does not read TrainingArguments._n_gpu"


def test_trainer_begins_a_checkpoint_with_save_model_and_calls_what_is_overridden() -> None:
    saving = inspect.getsource(Trainer._save_checkpoint)
    first, later = saving.index("self.save_model(output_dir, _internal_call=True)"), saving.index("save_to_json")
    assert first < saving.index("self._save_optimizer_and_scheduler(output_dir)") < later
    assert "self._load_from_checkpoint(resume_from_checkpoint)" in inspect.getsource(Trainer.train)


def test_no_other_private_name_of_trainer_is_used() -> None:
    """Names that Trainer or its instances have, in any module of the package."""
    source = ast.parse(inspect.getsource(inspect.getmodule(Trainer)))  # type: ignore[arg-type]
    private = {name for name in (*vars(Trainer), *vars(TrainingArguments)) if _is_private(name)}
    private |= {
        node.attr
        for node in ast.walk(source)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self" and _is_private(node.attr)
    }
    found: dict[str, set[str]] = {}
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 100
    for path in files:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        trainers = ("Trainer", "trainer", "arguments", "args", "super()")
        for node in ast.walk(tree):
            names = set()
            if isinstance(node, ast.Attribute) and node.attr in private | {"_n_gpu"}:
                inside = path.name == "trainer.py" and ast.unparse(node.value) == "self"
                names = {node.attr} if inside or ast.unparse(node.value).endswith(trainers) else set()
            elif isinstance(node, ast.ClassDef) and any("Trainer" in ast.unparse(base) for base in node.bases):
                names = {one.name for one in node.body if isinstance(one, ast.FunctionDef)} & private
            elif isinstance(node, ast.arg) and node.arg == "_internal_call":
                names = {node.arg}
            for name in names:
                found.setdefault(name, set()).add(path.relative_to(PACKAGE).as_posix())
    expected = {name: [place] for name, place in PLACES.items() if name != "_attn_implementation"}
    assert {name: sorted(places) for name, places in found.items()} == expected


@pytest.mark.parametrize("name", CONTRACT)
def test_models_have_what_transformers_documents_for_their_authors(name: str) -> None:
    assert hasattr(PreTrainedModel, name), f"this version of transformers has no PreTrainedModel.{name}"


def test_weights_are_initialized_module_by_module() -> None:
    assert list(inspect.signature(PreTrainedModel._init_weights).parameters) == ["self", "module"]


@pytest.mark.parametrize("family", FAMILIES)
def test_tied_weights_are_named(family: str) -> None:
    names = FAMILIES[family].only_masked._tied_weights_keys
    assert any(name.endswith("decoder.weight") for name in names), f"{family}: _tied_weights_keys is {names}"


def test_a_config_has_the_attention_of_its_model() -> None:
    for name in ("eager", "sdpa"):
        config = BertConfig(attn_implementation=name)
        assert getattr(config, "_attn_implementation", None) == name, "no config._attn_implementation: see cls_only.py"
        assert attention_implementation(config) == name


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm_roberta", "camembert", "electra"])
def test_model_files_have_eager_attention(family: str) -> None:
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    assert hasattr(module, "eager_attention_forward"), f"{module.__name__} has no eager_attention_forward"


@pytest.mark.parametrize(("library", "name"), OTHERS)
def test_other_libraries_have_the_names(library: str, name: str) -> None:
    assert hasattr(importlib.import_module(library), name), f"{library} has no {name}: see {OTHERS[library, name]}"


def test_no_other_private_name_is_used() -> None:
    """Attributes that hftune does not define itself, and names that its models inherit."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
    own = {name for tree in trees.values() for node in ast.walk(tree) for name in _defined(node)}
    inherited = {
        name for kind in (PreTrainedModel, GenerationMixin, PreTrainedConfig, DynamicLayer) for name in dir(kind)
    }
    found: dict[str, set[str]] = {}
    for path, tree in trees.items():
        place = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(tree):
            names: set[str] = set()
            if isinstance(node, ast.Attribute) and _is_private(node.attr):
                foreign = ast.unparse(node.value) not in ("self", "cls") and node.attr in inherited
                names = {node.attr} if foreign or node.attr not in own else set()
            elif isinstance(node, ast.ClassDef) and place.startswith("models/"):
                names = {name for part in node.body for name in _defined(part) if _is_private(name)} & inherited
            for name in names - PUBLIC:
                found.setdefault(name, set()).add(place)
    expected = {name: {place} for name, place in PLACES.items() if name != "_internal_call"} | CONTRACT
    expected |= {name: {place} for (_, name), place in OTHERS.items()}
    assert found == {name: places for name, places in expected.items() if name in found}
    assert not set(expected) - set(found) - set(PARAMETERS), "names that are no longer used: take them off the tables"


def _defined(node: ast.AST) -> set[str]:
    """Names that a statement defines, ``self.name = …`` included."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        parts = [part for target in targets for part in (target.elts if isinstance(target, ast.Tuple) else [target])]
        return {part.id for part in parts if isinstance(part, ast.Name)} | {
            part.attr for part in parts if isinstance(part, ast.Attribute) and ast.unparse(part.value) == "self"
        }
    return set()


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")
