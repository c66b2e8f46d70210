"""Scores against values worked out by hand, and which metric code may run."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from facts import hftune_error, mentions
from scipy.special import softmax
from sklearn import metrics as sk

from hftune.cli.tables import SHOWN
from hftune.errors import HftuneError
from hftune.evaluation import metrics
from hftune.evaluation.scores import LOWER_IS_BETTER

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
    scores = metrics.classification_scores(logits_for([0, 1, 2, 0]), gold, LABELS, extra=suitable(LABELS))
    assert {*scores} | {*metrics.FOR_SEVERAL_LABELS, "top_3_accuracy", "top_5_accuracy"} == {
        *metrics.METRICS,
        "per_class",
    }
    assert scores["balanced_accuracy"] == pytest.approx((1 + 1 + 0.5) / 3)
    assert scores["mean_absolute_error"] == pytest.approx(0.5)
    assert scores["precision_macro"] == pytest.approx((0.5 + 1 + 1) / 3)
    assert scores["f1_weighted"] == pytest.approx((2 / 3 + 1 + 2 * 2 / 3) / 4)
    # The squared distances add up to 4; by chance they would to what the margins (2, 1, 1) and (1, 1, 2) give.
    expected = sum(p * t * (i - j) ** 2 for i, p in enumerate((2, 1, 1)) for j, t in enumerate((1, 1, 2))) / 4
    assert scores["quadratic_kappa"] == pytest.approx(1 - 4 / expected)


def suitable(labels: tuple[str, ...]) -> list[str]:
    """The built-in metrics that fit the number of labels."""
    found = []
    for name in metrics.METRICS:
        with contextlib.suppress(HftuneError):
            metrics.refuse_unsuitable([name], labels)
            found.append(name)
    return found


def planted(labels: int, rows: int = 800, imbalanced: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Logits that know something about the gold labels."""
    rng = np.random.default_rng(labels)
    shares = np.arange(1, labels + 1) ** (1.5 if imbalanced else 0.0)
    gold = rng.choice(labels, rows, p=shares / shares.sum())
    return rng.normal(size=(rows, labels)) + np.eye(labels)[gold], gold


@pytest.mark.parametrize("imbalanced", [False, True])
@pytest.mark.parametrize("labels", [2, 3, 7])
def test_every_metric_is_that_of_scikit_learn(labels: int, imbalanced: bool) -> None:
    logits, gold = planted(labels, imbalanced=imbalanced)
    names = tuple(f"label {index}" for index in range(labels))
    scores = metrics.classification_scores(logits, gold, names, suitable(names))
    predicted, probabilities = logits.argmax(axis=1), softmax(logits, axis=1)
    for name, function in (("f1", sk.f1_score), ("precision", sk.precision_score), ("recall", sk.recall_score)):
        for average in ("macro", "micro", "weighted"):
            if (found := scores.get(f"{name}_{average}")) is not None:
                assert found == pytest.approx(function(gold, predicted, average=average, zero_division=0)), name
        assert (name in scores) == (labels == 2)
        if labels == 2:
            assert scores[name] == pytest.approx(function(gold, predicted)) != scores["f1_macro"]
    assert scores["balanced_accuracy"] == pytest.approx(sk.balanced_accuracy_score(gold, predicted))
    assert scores["matthews_correlation"] == pytest.approx(sk.matthews_corrcoef(gold, predicted)) == scores["mcc"]
    assert scores["quadratic_kappa"] == pytest.approx(sk.cohen_kappa_score(gold, predicted, weights="quadratic"))
    tops = {name: k for name, k in metrics.TOP.items() if name in scores}
    assert set(tops.values()) == {k for k in (2, 3, 5) if k < labels}
    for name, k in tops.items():
        assert scores[name] == pytest.approx(sk.top_k_accuracy_score(gold, logits, k=k))
    if labels == 2:
        assert scores["roc_auc"] == pytest.approx(sk.roc_auc_score(gold, probabilities[:, 1]))
        assert scores["roc_auc_ovr"] == pytest.approx(scores["roc_auc"])
    else:
        assert scores["roc_auc_ovr"] == pytest.approx(sk.roc_auc_score(gold, probabilities, multi_class="ovr"))


@pytest.mark.parametrize("name", metrics.FOR_SEVERAL_LABELS)
def test_a_metric_of_two_labels_is_refused_for_more(name: str) -> None:
    instead = metrics.FOR_SEVERAL_LABELS[name]
    with hftune_error(repr(name), "3 labels") as caught:
        metrics.classification_scores(logits_for([0, 1, 2]), [0, 1, 2], LABELS, [name])
    assert all(other in caught.value.hint for other in instead)
    metrics.refuse_unsuitable(instead, LABELS)


@pytest.mark.parametrize(("name", "labels"), [("top_k_accuracy", 2), ("top_5_accuracy", 5), ("roc_auc_ovr", 101)])
def test_a_metric_that_does_not_fit_the_number_of_labels_is_refused(name: str, labels: int) -> None:
    with hftune_error(repr(name), f"{labels} labels") as caught:
        metrics.refuse_unsuitable([name], [str(index) for index in range(labels)])
    assert "accuracy" in caught.value.hint


def test_an_area_of_sure_predictions_has_no_ties_and_one_of_a_single_label_is_left_out() -> None:
    logits = np.array([[0.0, 50.0], [0.0, 60.0]])  # both probabilities are 1 to sixteen digits
    assert metrics.classification_scores(logits, [0, 1], LABELS[:2], ["roc_auc"])["roc_auc"] == 1.0
    for name in ("roc_auc", "roc_auc_ovr"):
        assert name not in metrics.classification_scores(logits, [1, 1], LABELS[:2], [name])


def test_equal_scores_rank_as_in_the_prediction() -> None:
    names = tuple("abcdef")
    scores = metrics.classification_scores(np.zeros((6, 6)), list(range(6)), names, list(metrics.TOP))
    assert [scores[name] for name in ("accuracy", *metrics.TOP)] == pytest.approx([1 / 6, 2 / 6, 3 / 6, 5 / 6])


def test_losses_and_errors_are_better_when_lower() -> None:
    known = set()
    for labels in (2, 7):
        gold = [*range(labels), *range(labels)]
        names = tuple(f"label {index}" for index in range(labels))
        good, bad = (
            metrics.classification_scores(logits_for(predicted, labels, 9.0), gold, names, suitable(names))
            for predicted in (gold, gold[::-1])
        )
        known |= good.keys() - {"per_class"}
        lower = {name for name in suitable(names) if good[name] < bad[name]}
        assert lower == {"loss", "ece", "mean_absolute_error"} == LOWER_IS_BETTER & set(metrics.METRICS)
        assert all(good[name] != bad[name] for name in suitable(names))
    assert known == set(metrics.METRICS)


def test_every_metric_has_a_column_on_the_terminal() -> None:
    assert set(metrics.METRICS) <= set(SHOWN)


def test_scores_in_parts_equal_those_of_the_whole() -> None:
    rng = np.random.default_rng(3)
    logits, gold = rng.normal(size=(200, 3)), rng.integers(0, 3, 200)
    whole = metrics.classification_scores(logits, gold, LABELS)
    assert metrics.scores_in_parts([(logits, gold)], LABELS) == whole


def test_scoring_leaves_the_random_state_alone() -> None:
    np.random.seed(5)
    before = np.random.get_state()[1].copy()
    metrics.classification_scores(logits_for([0, 1]), [0, 1], LABELS)
    assert (np.random.get_state()[1] == before).all()


def test_label_absent_from_split_is_listed_and_does_not_lower_macro_f1() -> None:
    scores = metrics.classification_scores(logits_for([0, 0, 1, 1]), [0, 0, 1, 1], LABELS)
    assert scores["f1_macro"] == 1.0
    assert scores["per_class"]["good"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 0}
    predicted, gold = np.array([0, 2, 3, 3]), np.array([0, 2, 3, 2])
    observed = np.mean([(p - g) ** 2 for p, g in zip(predicted, gold, strict=True)])
    expected = np.mean([(p - g) ** 2 for p in predicted for g in gold])
    assert metrics.quadratic_kappa(predicted, gold) == pytest.approx(1 - observed / expected)


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
    with hftune_error("NaN", "1 of 3", code=1) as caught:
        metrics.classification_scores(logits, [0, 1, 2], LABELS)
    assert "learning_rate" in caught.value.hint


def test_rows_without_gold_and_no_rows_are_refused() -> None:
    with hftune_error("1 of 2", "label"):
        metrics.classification_scores(logits_for([0, 1]), [0, -1], LABELS)
    with hftune_error("no rows"):
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
    with hftune_error("frobnicate.py", "current folder") as caught:
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


def test_a_metric_that_returns_no_numbers_or_breaks_is_reported(folder: Path) -> None:
    write_script(folder, "listing", '{"scores": [1.0, 2.0]}')
    write_script(folder, "broken", "1 / 0")
    for name in ("listing", "broken"):
        with hftune_error(f"{name}'", "labels") as caught:
            metrics.classification_scores(logits_for([0, 1]), [0, 1], LABELS, [f"./{name}"])
        assert "single numbers" in caught.value.hint
    (folder / "syntax.py").write_text("import no_such_module_at_all\n")
    with hftune_error("syntax.py", "no_such_module_at_all"):
        metrics.load_metric("./syntax.py")


@pytest.mark.parametrize("name", ["acuracy", "somebody/acuracy", "./acuracy.py", "..", ""])
def test_unknown_metric_offline_names_the_built_ins(folder: Path, name: str) -> None:
    with pytest.raises(HftuneError) as caught:
        metrics.load_metric(name)
    assert all(known in caught.value.hint for known in metrics.METRICS)
    assert (mentions(caught.value.hint, "mean 'accuracy'")) == ("acuracy" in name)


def test_baselines_and_statistics_do_not_import_evaluate_or_transformers() -> None:
    names = "baselines, collapse, metrics, significance"
    probe = f"import sys; from hftune.evaluation import {names}; print({{'evaluate', 'torch'}} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
