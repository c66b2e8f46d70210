"""What costs nothing to reach: the majority label, a bag of words, a constant answer. Fitted on train only.

Called by the tasks, so that every run stands beside them, and by ``hftune baseline``.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

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
from hftune.evaluation.scores import scores_in_parts

logger = logging.getLogger(__name__)

ITERATIONS = 1000
# More rows or features than these would keep a laptop busy for longer than the model beside them.
MOST_ROWS = 100_000
MOST_FEATURES = 50_000
# Words of any length and every other visible sign on its own: "I", "!" and emoji carry opinion too.
TOKEN = r"(?u)\w+|[^\w\s]"
UNSEEN = 1e-12
# The solver (L-BFGS) holds the weights, their gradient, a search direction and ten earlier steps of each.
WEIGHT_COPIES = 30
MOST_MEMORY = 4 * 2**30
"""Bytes that fitting the bag of words may take, on a machine that has that many to spare."""
MOST_WORK = 10_000_000
"""Training rows times labels: above, the bag of words takes longer than the model that it is compared with."""
CELLS = 1 << 22
"""Logits that are held at once while a baseline is scored."""

Split = tuple[Sequence[str], Sequence[str] | None, Sequence[int]]
"""Texts, second texts of pairs or None, gold label indices (-1 where there is none)."""


class Baseline(Protocol):
    """Something fitted on the training rows."""

    @property
    def note(self) -> str | None:
        """What a reader of its scores must know, or None."""
        ...

    def logits(self, texts: Sequence[str], pairs: Sequence[str] | None) -> NDArray[np.float64]:
        """Log probabilities ``[rows, labels]``."""
        ...


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
        """The same row for every text, in memory once."""
        return np.broadcast_to(self.log_prior, (len(texts), len(self.log_prior)))


@dataclass(frozen=True)
class BagOfWords:
    """TF-IDF of words and word pairs, the two texts of a pair apart, and logistic regression."""

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
        vectors = [(f"text_{index}", _tfidf(), index) for index in used]
        pipeline = Pipeline(
            [("tfidf", ColumnTransformer(vectors)), ("logistic", LogisticRegression(max_iter=ITERATIONS))]
        )
        truth, notes = np.asarray(gold), []
        if len(rows) > MOST_ROWS:
            chosen = np.random.default_rng(0).choice(len(rows), MOST_ROWS, replace=False)
            notes.append(f"fitted on {MOST_ROWS:,} of {len(rows):,} training rows")
            rows, truth = rows[chosen], truth[chosen]
        # One thread: the sums are small, and on a busy machine threads mostly wait for each other.
        with threadpool_limits(limits=1), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pipeline.fit(rows, truth)
        if any(issubclass(warning.category, ConvergenceWarning) for warning in caught):
            notes.append(f"logistic regression had not converged after {ITERATIONS:,} iterations")
        for note in notes:
            logger.warning("The bag of words may be too low a baseline: %s.", note)
        return cls(pipeline, labels, "; ".join(notes) or None)

    def logits(self, texts: Sequence[str], pairs: Sequence[str] | None) -> NDArray[np.float64]:
        """Log probabilities; a label that train does not hold gets next to none."""
        found = np.full((len(texts), self.labels), UNSEEN)
        known = self.pipeline.named_steps["logistic"].classes_
        found[:, known] = np.maximum(self.pipeline.predict_proba(_columns(texts, pairs)), UNSEEN)
        return np.asarray(np.log(found))


class TooLarge(HftuneError):
    """A baseline that this machine should not be asked for; the message is the reason that readers get."""


def _refuse_too_large(rows: NDArray[np.object_], labels: int) -> None:
    """Estimate what fitting costs before it begins: the weights are dense, one for each label and feature."""
    if min(len(rows), MOST_ROWS) * labels > MOST_WORK:
        reason = f"{len(rows):,} training rows with {labels:,} labels would take too long"
    else:
        features = min(MOST_FEATURES, 2 * sum(len(str(text)) for text in rows.ravel().tolist()) + 1) * rows.shape[1]
        # Between two labels there is one set of weights.
        needed = 8 * features * (labels if labels > 2 else 1) * WEIGHT_COPIES
        spare = min(MOST_MEMORY, int(psutil.virtual_memory().available) // 2)
        if needed <= spare:
            return
        reason = (
            f"{labels:,} labels with up to {features:,} words and word pairs would take {needed / 2**30:.1f} GB, "
            f"and {spare / 2**30:.1f} GB are allowed"
        )
    raise TooLarge(reason, hint="train on fewer rows or labels, or switch baselines off with task.baselines=false")


def fit_baselines(
    texts: Sequence[str], pairs: Sequence[str] | None, gold: Sequence[int], labels: Sequence[str]
) -> dict[str, Baseline]:
    """Both baselines fitted on the training rows, for their prediction of each row."""
    return {
        "majority": Majority.fit(gold, len(labels)),
        "tfidf": BagOfWords.fit(texts, pairs, gold, len(labels)),
    }


def classification_baselines(
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    gold: Sequence[int],
    splits: Mapping[str, Split],
    labels: Sequence[str],
) -> dict[str, dict[str, dict[str, Any]]]:
    """Score the baselines on every split that has labels.

    Args:
        texts: Training texts.
        pairs: The second training texts, or None where rows are single texts.
        gold: Training labels, indices into labels.
        splits: The splits to score, by name.
        labels: Label names.

    Returns:
        ``{"majority": {"validation": scores, …}, "tfidf": {…}}``; a split with unlabeled rows is not
        scored. Scores that need a warning carry it under ``note``; a baseline that was too large has a note only.
    """
    scored = {name: split for name, split in splits.items() if len(split[2]) and min(split[2]) >= 0}
    majority: Baseline = Majority.fit(gold, len(labels))
    result = {"majority": {name: _scores(majority, split, labels) for name, split in scored.items()}}
    try:
        words: Baseline = BagOfWords.fit(texts, pairs, gold, len(labels))
    except TooLarge as reason:
        logger.warning("The bag of words baseline is left out: %s.", reason.message)
        return result | {"tfidf": {name: {"note": f"left out: {reason.message}"} for name in scored}}
    return result | {"tfidf": {name: _scores(words, split, labels) for name, split in scored.items()}}


def _scores(baseline: Baseline, split: Split, labels: Sequence[str]) -> dict[str, Any]:
    """What a baseline scores on a split, a few rows at a time."""
    texts, pairs, gold = split
    step = max(1, CELLS // len(labels))
    parts = (slice(start, start + step) for start in range(0, len(gold), step))
    found = scores_in_parts(
        ((baseline.logits(texts[part], None if pairs is None else pairs[part]), gold[part]) for part in parts), labels
    )
    return found if baseline.note is None else found | {"note": baseline.note}


def constant_answer(gold: Sequence[str], answer: str) -> float:
    """Share of questions that one fixed answer gets right, surrounding blanks aside."""
    if not gold:
        raise HftuneError("There are no answers to score.", hint="Give a split that holds at least one row.")
    return sum(truth.strip() == answer.strip() for truth in gold) / len(gold)


def commonest_answer(train: Sequence[str]) -> str:
    """The answer most frequent in train; of equally frequent ones the first in the alphabet."""
    if not train:
        raise HftuneError("There are no training answers.", hint="Give a split that holds at least one row.")
    counts = Counter(answer.strip() for answer in train)
    return min(counts, key=lambda answer: (-counts[answer], answer))


def _tfidf() -> TfidfVectorizer:
    return TfidfVectorizer(ngram_range=(1, 2), token_pattern=TOKEN, max_features=MOST_FEATURES, sublinear_tf=True)


def _columns(texts: Sequence[str], pairs: Sequence[str] | None) -> NDArray[np.object_]:
    """The texts as one column an input, which is how scikit-learn tells them apart."""
    columns = [list(texts)] if pairs is None else [list(texts), list(pairs)]
    return np.array(columns, dtype=object).T
