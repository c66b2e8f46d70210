"""Recipe files: what YAML means here, what is refused, and that a dumped recipe loads to an equal one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from facts import hftune_error
from hypothesis import given, settings
from hypothesis import strategies as st

from hftune.config import document
from hftune.config.document import RecipeError
from hftune.recipe import load_recipe, recipe_yaml

BOMB = "a: &a [1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{below}'] * 8)}]\n" for below, name in zip("abcdef", "bcdefg", strict=True)
)
REFUSED = {
    "object": ("train: !!python/object/apply:os.system ['touch owned']\n", "builds a Python object", "bad.yaml:1"),
    "name": ("train:\n  seed: !!python/name:os.system\n", "builds a Python object", "bad.yaml:2"),
    "new object": ("!!python/object/new:os._wrap_close [1]\n", "builds a Python object", "bad.yaml:1"),
    "own tag": ("train: !boom 1\n", "!boom", "bad.yaml:1"),
    "key twice": ("train: {seed: 1}\ntrain: {seed: 2}\n", "'train' is given twice", "bad.yaml:2"),
    "inner key twice": ("train:\n  seed: 1\n  seed: 2\n", "'seed' is given twice", "bad.yaml:3"),
    "list": ("- train\n", "expected sections such as task", "bad.yaml"),
    "text": ("just words\n", "got 'just words'", "bad.yaml"),
    "syntax": ("train: [1\n", "expected YAML", "bad.yaml:2"),
    "tab": ("train:\n\tseed: 1\n", "expected YAML", "bad.yaml:2"),
    "two documents": ("train: {}\n---\ntrain: {}\n", "expected YAML", "bad.yaml:2"),
    "bomb": (BOMB, "aliases expand", "bad.yaml"),
    "holds itself": ("train: &t [*t]\n", "aliases expand", "bad.yaml"),
    "deep brackets": ("[" * 1500, "nested too deeply", "bad.yaml:1"),
    "deep lists": ("- " * 1500, "nested too deeply", "bad.yaml"),
    "huge number": ("train: {seed: " + "9" * 6000 + "}\n", "expected YAML", "bad.yaml"),
    "odd key": ("? [1]\n: 2\n", "a key must be a name", "bad.yaml:1"),
    "control character": ("train: \x00\n", "expected YAML", "bad.yaml"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_documents(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text, reason, place = REFUSED[case]
    path = tmp_path / "bad.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    (problem,) = caught.value.problems
    assert reason in problem.message
    assert problem.source.endswith(place)
    assert [entry.name for entry in tmp_path.iterdir()] == ["bad.yaml"], "something was run"


def test_set_can_not_build_objects_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with hftune_error("Python object"):
        load_recipe(sets=["train.seed=!!python/object/apply:os.system ['touch owned']"])
    assert not list(tmp_path.iterdir())


def test_files_that_are_no_recipes(tmp_path: Path) -> None:
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("data: {dataset_name: café}\n".encode("latin-1"))
    huge = tmp_path / "huge.yaml"
    huge.write_text("#" * (document.LARGEST_FILE + 1))
    for path, expected in (
        (latin, ("UTF-8", "0xe9")),
        (huge, (document.LARGEST_FILE,)),
        (tmp_path, ("recipe.yaml",)),
        (tmp_path / "absent.yaml", ("absent.yaml",)),
    ):
        with hftune_error(*expected):
            load_recipe(path)


def test_empty_files_and_sections_are_all_defaults(tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    for text in ("", "# nothing\n", "train:\n", "\ufefftrain: {}\n"):
        path.write_text(text, encoding="utf-8")
        assert load_recipe(path) == load_recipe()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("1E+3", 1000.0),
        (".5", 0.5),
        ("-2", -2),
        ("+3", 3),
        ("1.", 1.0),
        ("no", "no"),
        ("on", "on"),
        ("1:30", "1:30"),
        ("2024-01-02", "2024-01-02"),
        ("010", "010"),
        ("true", True),
        ("~", None),
        ("", None),
        ("'1e-5'", "1e-5"),
        ("{no: 1, 5: 2}", {"no": 1, "5": 2}),
    ],
)
def test_scalars(text: str, value: Any) -> None:
    parsed = document.parse(text, "--set")[0]
    assert parsed == value
    assert type(parsed) is type(value)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats(allow_nan=False)
    | st.text()
    | st.sampled_from(["1e-5", "no", "1:30", "0x1f", "~", "2024-01-02", ".inf", "<<", "=", "0o17", "1_000", "012"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text(), plain, max_size=5))
def test_dumped_values_come_back(value: dict[str, Any]) -> None:
    assert document.parse(document.dump(value), "--set")[0] == value


@settings(max_examples=30, deadline=None)
@given(
    name=st.text(min_size=1),
    weights=st.dictionaries(st.text(), st.floats(0, 10), max_size=4),
    run_name=st.text(),
    kwargs=st.dictionaries(st.text(), plain, max_size=3),
)
def test_recipe_yaml_round_trips(
    name: str,
    weights: dict[str, float],
    run_name: str,
    kwargs: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    recipe = load_recipe(
        overrides={
            "data.dataset_name": name,
            "task.class_weights": weights,
            "train.lr_scheduler_kwargs": kwargs,
            "train.run_name": run_name,
        }
    )
    folder = tmp_path_factory.mktemp("run")
    (folder / "recipe.yaml").write_text(recipe_yaml(recipe), encoding="utf-8", newline="\n")
    assert load_recipe(folder) == recipe


def test_recipe_yaml_states_everything_and_any_yaml_reader_understands_it() -> None:
    recipe = load_recipe(sets=["task.class_weights={no: 2, yes: 1}", "train.run_name='1e-5'"])
    read = yaml.safe_load(recipe_yaml(recipe))
    assert list(read) == ["task", "data", "model", "method", "train", "hub"]
    assert read["train"]["learning_rate"] == 5e-4
    assert read["task"]["class_weights"] == {"no": 2.0, "yes": 1.0}
    assert read["train"]["run_name"] == "1e-5"
    assert set(read["train"]) == {*type(recipe.train).model_fields, "run_name"}
