"""Simple baselines, fitted on train only: the majority label, TF-IDF with logistic regression."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from hftune.errors import HftuneError
from hftune.evaluation.metrics import METRICS, scores_in_parts

logger = logging.getLogger(__name__)

ITERATIONS = 1000
# With more rows or features than these the baseline would take longer than the model that it is compared with.
MOST_ROWS = 100_000
MOST_FEATURES = 50_000
# Words of any length, and every other visible character as a token: "I", "!" and emoji are informative too.
TOKEN = r"(?u)\w+|[^\w\s]"
UNSEEN = 1e-12
# The solver (L-BFGS) holds the weights, their gradient, a search direction and ten earlier steps of each.
WEIGHT_COPIES = 30
MOST_MEMORY = 4 * 2**30
"""Bytes that fitting the bag of words may take, or half of the free memory if that is less."""
MOST_WORK = 10_000_000
"""Training rows times labels: above, the bag of words takes longer than the model that it is compared with."""
CELLS = 1 << 22
"""Logits that are in memory at once while a baseline is scored."""

Split = tuple[Sequence[str], Sequence[str] | None, Sequence[int]]
"""Texts, second texts of pairs or None, gold label indices (-1 if there is none)."""


@dataclass(frozen=True)
class Majority:
    """Always the label most frequent in train, with the training frequencies as its probabilities."""

    log_prior: NDArray[np.float64]
    note: str | None = None

    @classmethod
    def fit(cls, gold: Sequence[int], labels: int) -> Majority:
        """Count the labels, each once more than it occurs: unseen in train is unlikely, not impossible."""
        counts = np.bincount(np.asarray(gold, dtype=np.int64), minlength=labels) + 1
        return cls(np.log(counts / counts.sum()))

    def logits(self, texts: Sequence[str], pairs: Sequence[str] | None) -> NDArray[np.float64]:
        """Log probabilities ``[rows, labels]``: the same row for every text, in memory once."""
        return np.broadcast_to(self.log_prior, (len(texts), len(self.log_prior)))


@dataclass(frozen=True)
class BagOfWords:
    """TF-IDF of words and word pairs, separate for the two texts of a pair, and logistic regression."""

    pipeline: Pipeline
    labels: int
    note: str | None = None

    @classmethod
    def fit(cls, texts: Sequence[str], pairs: Sequence[str] | None, gold: Sequence[int], labels: int) -> BagOfWords:
        """Fit both parts on the training rows.

        Raises:
            TooLarge: That would take too much memory or time.
            HftuneError: Train has one label only, or no text.
        """
        rows = _columns(texts, pairs)
        if len(set(gold)) < 2:
            raise HftuneError(
                f"A bag of words can't be fitted: all {len(gold):,} training rows have one label.",
                hint="Check the label column: a classifier needs training rows of at least two labels.",
            )
        used = [index for index in range(rows.shape[1]) if any(text.strip() for text in rows[:, index])]
        if not used:
            raise HftuneError(
                f"A bag of words can't be fitted: all {len(gold):,} training texts are blank.",
                hint="Check the text column.",
            )
        _refuse_too_large(rows[:, used], labels)
        how = {"ngram_range": (1, 2), "token_pattern": TOKEN, "max_features": MOST_FEATURES, "sublinear_tf": True}
        vectors = [(f"text_{index}", TfidfVectorizer(**how), index) for index in used]
        pipeline = Pipeline(
            [("tfidf", ColumnTransformer(vectors)), ("logistic", LogisticRegression(max_iter=ITERATIONS))]
        )
        truth, notes = np.asarray(gold), []
        if len(rows) > MOST_ROWS:
            chosen = np.random.default_rng(0).choice(len(rows), MOST_ROWS, replace=False)
            notes.append(f"fitted on {MOST_ROWS:,} of {len(rows):,} training rows")
            rows, truth = rows[chosen], truth[chosen]
        # One thread: the matrices are small, and on a busy machine threads mostly wait for each other.
        with threadpool_limits(limits=1), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pipeline.fit(rows, truth)
        if any(issubclass(warning.category, ConvergenceWarning) for warning in caught):
            notes.append(f"logistic regression had not converged after {ITERATIONS:,} iterations")
        for note in notes:
            logger.warning("The bag of words may be too low a baseline: %s.", note)
        return cls(pipeline, labels, "; ".join(notes) or None)

    def logits(self, texts: Sequence[str], pairs: Sequence[str] | None) -> NDArray[np.float64]:
        """Log probabilities ``[rows, labels]``; a label that train lacks gets almost none."""
        # LogisticRegression has columns for the labels that it was fitted on only, in the order of classes_.
        found = np.full((len(texts), self.labels), UNSEEN)
        known = self.pipeline.named_steps["logistic"].classes_
        found[:, known] = np.maximum(self.pipeline.predict_proba(_columns(texts, pairs)), UNSEEN)
        return np.asarray(np.log(found))


class TooLarge(HftuneError):
    """A baseline that is too large for this machine; the message is the reason in metrics.json."""


def _refuse_too_large(rows: NDArray[np.object_], labels: int) -> None:
    """Estimate the cost of fitting before it begins: the weights are dense, one for each label and feature."""
    if min(len(rows), MOST_ROWS) * labels > MOST_WORK:
        reason = f"{len(rows):,} training rows with {labels:,} labels would take too long"
    else:
        features = min(MOST_FEATURES, 2 * sum(len(str(text)) for text in rows.ravel().tolist()) + 1) * rows.shape[1]
        # Two labels share one set of weights.
        needed = 8 * features * (labels if labels > 2 else 1) * WEIGHT_COPIES
        spare = min(MOST_MEMORY, int(psutil.virtual_memory().available) // 2)
        if needed <= spare:
            return
        reason = (
            f"{labels:,} labels with up to {features:,} words and word pairs would take {needed / 2**30:.1f} GB, "
            f"and {spare / 2**30:.1f} GB are allowed"
        )
    raise TooLarge(reason, hint="train on fewer rows or labels, or switch baselines off with task.baselines=false")


Baseline = Majority | BagOfWords


def classification_baselines(
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    gold: Sequence[int],
    splits: Mapping[str, Split],
    labels: Sequence[str],
    metrics: Sequence[str] = (),
) -> dict[str, dict[str, dict[str, Any]]]:
    """Score the baselines on every split that has labels.

    Args:
        texts: Training texts.
        pairs: The second training texts, or None where rows are single texts.
        gold: Training labels, indices into labels.
        splits: The splits to score, by name.
        labels: Label names.
        metrics: Metrics in addition to the standard ones; only the built-in ones are computed.

    Returns:
        ``{"majority": {"validation": scores, …}, "tfidf": {…}}``; a split with unlabeled rows is not
        scored. A caveat is under ``note``; a baseline that was too large has only a note.
    """
    scored = {name: split for name, split in splits.items() if len(split[2]) and min(split[2]) >= 0}
    majority = Majority.fit(gold, len(labels))
    # The code of a metric that is loaded runs for the model only.
    extra = [name for name in metrics if name in METRICS]
    result = {"majority": {name: _scores(majority, split, labels, extra) for name, split in scored.items()}}
    try:
        words = BagOfWords.fit(texts, pairs, gold, len(labels))
    except TooLarge as reason:
        logger.warning("The bag of words baseline is left out: %s.", reason.message)
        return result | {"tfidf": {name: {"note": f"left out: {reason.message}"} for name in scored}}
    return result | {"tfidf": {name: _scores(words, split, labels, extra) for name, split in scored.items()}}


def _scores(baseline: Baseline, split: Split, labels: Sequence[str], metrics: Sequence[str]) -> dict[str, Any]:
    """Scores of a baseline on a split, a few rows at a time."""
    texts, pairs, gold = split
    step = max(1, CELLS // len(labels))
    slices = (slice(start, start + step) for start in range(0, len(gold), step))
    parts = ((baseline.logits(texts[part], None if pairs is None else pairs[part]), gold[part]) for part in slices)
    found = scores_in_parts(parts, labels, metrics)
    return found if baseline.note is None else found | {"note": baseline.note}


def _columns(texts: Sequence[str], pairs: Sequence[str] | None) -> NDArray[np.object_]:
    """The texts as [rows, 1], or [rows, 2] for pairs: scikit-learn vectorizes each column separately."""
    columns = [list(texts)] if pairs is None else [list(texts), list(pairs)]
    return np.array(columns, dtype=object).T
