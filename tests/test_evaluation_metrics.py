"""Scores against values worked out by hand, and which metric code may run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hftune.errors import HftuneError, RunFailed
from hftune.evaluation import metrics
from hftune.evaluation.scores import plain_scores

pytestmark = pytest.mark.numeric

LABELS = ("bad", "fair", "good")


def logits_for(predicted: list[int], labels: int = 3, height: float = 2.0) -> np.ndarray:
    return np.eye(labels)[predicted] * height


def test_scores_equal_hand_computed_values() -> None:
    gold = np.array([0, 0, 1, 1, 2, 2])
    scores = metrics.classification_scores(logits_for([0, 1, 1, 1, 2, 0]), gold, LABELS)
    assert list(scores) == ["accuracy", "f1_macro", "mcc", "ece", "loss", "per_class"]
    assert scores["accuracy"] == pytest.approx(4 / 6)
    # precision 1/2, 2/3, 1; recall 1/2, 1, 1/2
    assert scores["per_class"]["bad"] == pytest.approx({"precision": 0.5, "recall": 0.5, "f1": 0.5, "support": 2})
    assert scores["per_class"]["fair"]["f1"] == pytest.approx(0.8)
    assert scores["per_class"]["good"] == pytest.approx({"precision": 1, "recall": 0.5, "f1": 2 / 3, "support": 2})
    assert scores["f1_macro"] == pytest.approx((0.5 + 0.8 + 2 / 3) / 3)
    # (c·s − Σ p·t) / √((s² − Σp²)(s² − Σt²)) = (24 − 12) / √((36 − 14)(36 − 12))
    assert scores["mcc"] == pytest.approx(12 / np.sqrt(22 * 24))
    sure = np.exp(2) / (np.exp(2) + 2)
    assert scores["ece"] == pytest.approx(abs(sure - 4 / 6))
    assert scores["loss"] == pytest.approx(-(4 * np.log(sure) + 2 * np.log((1 - sure) / 2)) / 6)


def test_every_metric_of_the_table_computes_under_its_own_name() -> None:
    gold = np.array([0, 1, 2, 2])
    scores = metrics.classification_scores(logits_for([0, 1, 2, 0]), gold, LABELS, extra=tuple(metrics.METRICS))
    assert set(scores) == {*metrics.METRICS, "per_class"}
    assert scores["balanced_accuracy"] == pytest.approx((1 + 1 + 0.5) / 3)
    assert scores["mean_absolute_error"] == pytest.approx(0.5)
    assert scores["precision_macro"] == pytest.approx((0.5 + 1 + 1) / 3)
    assert scores["f1_weighted"] == pytest.approx((2 / 3 + 1 + 2 * 2 / 3) / 4)
    # The squared distances add up to 4; by chance they would to what the margins (2, 1, 1) and (1, 1, 2) give.
    expected = sum(p * t * (i - j) ** 2 for i, p in enumerate((2, 1, 1)) for j, t in enumerate((1, 1, 2))) / 4
    assert scores["quadratic_kappa"] == pytest.approx(1 - 4 / expected)


def test_built_ins_take_label_indices_as_evaluate_metrics_do() -> None:
    found = metrics.load_metric("accuracy").compute(predictions=[0, 1, 1], references=[0, 1, 0])
    assert found == {"accuracy": pytest.approx(2 / 3)}


def test_scores_through_evaluate_equal_the_plain_ones() -> None:
    rng = np.random.default_rng(3)
    logits, gold = rng.normal(size=(200, 3)), rng.integers(0, 3, 200)
    assert metrics.classification_scores(logits, gold, LABELS) == plain_scores(logits, gold, LABELS)


def test_scoring_leaves_the_random_state_alone() -> None:
    np.random.seed(5)
    before = np.random.get_state()[1].copy()
    metrics.classification_scores(logits_for([0, 1]), [0, 1], LABELS)
    assert (np.random.get_state()[1] == before).all()


def test_label_absent_from_split_is_listed_and_does_not_lower_macro_f1() -> None:
    scores = metrics.classification_scores(logits_for([0, 0, 1, 1]), [0, 0, 1, 1], LABELS)
    assert scores["f1_macro"] == 1.0
    assert scores["per_class"]["good"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 0}
    kappa = metrics.load_metric("quadratic_kappa")
    predicted, gold = [0, 2, 3, 3], [0, 2, 3, 2]
    observed = np.mean([(p - g) ** 2 for p, g in zip(predicted, gold, strict=True)])
    expected = np.mean([(p - g) ** 2 for p in predicted for g in gold])
    found = kappa.compute(predictions=predicted, references=gold)
    assert found["quadratic_kappa"] == pytest.approx(1 - observed / expected)


@pytest.mark.parametrize("predicted", [[1, 1, 1], [1, 1, 0]])
def test_split_of_one_class_scores_without_warnings(predicted: list[int], recwarn: pytest.WarningsRecorder) -> None:
    scores = metrics.classification_scores(logits_for(predicted), [1, 1, 1], LABELS, ["quadratic_kappa"])
    assert scores["mcc"] == 0.0
    assert scores["accuracy"] == pytest.approx(np.mean(np.array(predicted) == 1))
    assert not [warning for warning in recwarn if "sklearn" in str(warning.filename)]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_logits_that_are_no_numbers_fail_the_run_in_words(bad: float) -> None:
    logits = logits_for([0, 1, 2])
    logits[1, 0] = bad
    with pytest.raises(RunFailed, match="NaN or infinite logits for 1 of 3 rows") as caught:
        metrics.classification_scores(logits, [0, 1, 2], LABELS)
    assert "learning_rate" in caught.value.hint


def test_rows_without_gold_and_no_rows_are_refused() -> None:
    with pytest.raises(HftuneError, match="1 of 2 rows have no gold label"):
        metrics.classification_scores(logits_for([0, 1]), [0, -1], LABELS)
    with pytest.raises(HftuneError, match="no rows to score"):
        metrics.classification_scores(np.zeros((0, 3)), [], LABELS)


SCRIPT = """
import datasets
import evaluate
from pathlib import Path

Path({mark!r}).touch()


class Mine(evaluate.Metric):
    def _info(self):
        index = datasets.Value("int64")
        return evaluate.MetricInfo(description="", citation="", features=datasets.Features(
            {{"predictions": index, "references": index}}))

    def _compute(self, predictions, references):
        return {result}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, a cache of its own, and no way out."""
    import evaluate

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(evaluate.config, "HF_EVALUATE_OFFLINE", True)
    monkeypatch.setattr(evaluate.config, "HF_METRICS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(evaluate.loading, "init_dynamic_modules", lambda: _modules(tmp_path))
    monkeypatch.syspath_prepend(tmp_path / "modules")
    metrics.load_metric.cache_clear()
    return tmp_path


def _modules(folder: Path) -> str:
    package = folder / "modules" / f"metric_scripts_{folder.name}"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").touch()
    return str(package)


def write_script(folder: Path, name: str, result: str) -> Path:
    (folder / name).mkdir()
    script = folder / name / f"{name}.py"
    script.write_text(SCRIPT.format(mark=str(folder / "ran"), result=result))
    return script


def test_bare_name_never_runs_a_file_of_this_folder(folder: Path) -> None:
    write_script(folder, "frobnicate", '{"score": 1.0}')
    write_script(folder, "accuracy", '{"accuracy": 7.0}')
    with pytest.raises(HftuneError, match=r"frobnicate\.py of the current folder") as caught:
        metrics.classification_scores(logits_for([0, 1]), [0, 1], LABELS, ["frobnicate"])
    assert "./frobnicate" in caught.value.hint
    assert metrics.classification_scores(logits_for([0, 1]), [0, 1], LABELS)["accuracy"] == 1.0
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("name", ["./mine", "mine/mine.py"])
def test_explicit_path_is_loaded_and_its_scores_join_the_others(folder: Path, name: str) -> None:
    write_script(folder, "mine", '{"accuracy": 0.25, "hits": sum(p == r for p, r in zip(predictions, references))}')
    scores = metrics.classification_scores(logits_for([0, 1, 1]), [0, 1, 2], LABELS, [name])
    assert (folder / "ran").exists()
    assert scores["hits"] == 2.0
    assert scores["accuracy"] == pytest.approx(2 / 3)
    assert scores["mine_accuracy"] == 0.25


def test_metric_that_returns_no_numbers_or_breaks_is_told_in_words(folder: Path) -> None:
    write_script(folder, "listing", '{"scores": [1.0, 2.0]}')
    write_script(folder, "broken", "1 / 0")
    for name in ("listing", "broken"):
        with pytest.raises(HftuneError, match=f"{name}' does not work for these labels") as caught:
            metrics.classification_scores(logits_for([0, 1]), [0, 1], LABELS, [f"./{name}"])
        assert "single numbers" in caught.value.hint
    (folder / "syntax.py").write_text("import no_such_module_at_all\n")
    with pytest.raises(HftuneError, match="can't be loaded"):
        metrics.load_metric("./syntax.py")


@pytest.mark.parametrize("name", ["acuracy", "somebody/acuracy", "./acuracy.py", "..", ""])
def test_unknown_metric_offline_names_the_built_ins(folder: Path, name: str) -> None:
    with pytest.raises(HftuneError) as caught:
        metrics.load_metric(name)
    assert all(known in caught.value.hint for known in metrics.METRICS)
    assert ("did you mean 'accuracy'?" in caught.value.hint) == ("acuracy" in name)


def test_baselines_and_statistics_do_not_import_evaluate_or_transformers() -> None:
    names = "baselines, calibration, collapse, scores, significance"
    probe = f"import sys; from hftune.evaluation import {names}; print({{'evaluate', 'torch'}} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
