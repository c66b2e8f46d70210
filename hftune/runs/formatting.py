"""Format numbers and names for pages, tables and model cards."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

SCORE_NAMES = {
    "accuracy": "accuracy",
    "f1": "F1",
    "f1_macro": "macro F1",
    "f1_micro": "micro F1",
    "f1_weighted": "weighted F1",
    "precision_macro": "macro precision",
    "precision_weighted": "weighted precision",
    "recall_macro": "macro recall",
    "recall_weighted": "weighted recall",
    "mcc": "MCC",
    "matthews_correlation": "Matthews correlation",
    "roc_auc": "ROC AUC",
    "roc_auc_ovr": "ROC AUC, one against the rest",
    "top_k_accuracy": "top-2 accuracy",
    "top_3_accuracy": "top-3 accuracy",
    "top_5_accuracy": "top-5 accuracy",
    "ece": "ECE",
    "loss": "loss",
    "perplexity": "perplexity",
    "word_perplexity": "word perplexity",
    "bits_per_byte": "bits per byte",
    "exact_match": "exact match",
    "aurc": "AURC",
    "sentence_agreement": "agreement on sentences",
}
BASELINE_NAMES = {
    "majority": "majority label",
    "majority of split": "majority label of the split",
    "tfidf": "bag of words",
    "constant": "most frequent answer",
    "uniform": "uniform guess",
    "unigram": "unigram counts",
    "bigram": "bigram counts",
}
REFERENCES = frozenset({"teacher"})
"""What is scored next to the baselines and need not be beaten."""


def score_name(name: str) -> str:
    """The name of a metric for readers."""
    return SCORE_NAMES.get(name, name.replace("_", " "))


def sentence(text: str) -> str:
    """The text with a capital first; names such as MCC stay as they are."""
    return text[:1].upper() + text[1:]


def baseline_name(name: str) -> str:
    """The name of a baseline for readers."""
    return BASELINE_NAMES.get(name, name.replace("_", " "))


def number(value: Any) -> str:
    """A score with three digits after the point; large numbers with fewer, missing ones as a dash."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return minus(f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3f}")


def minus(text: str) -> str:
    """A true minus sign, which lines up with digits."""
    return text.replace("-", "−")


def signed(value: float) -> str:
    """A difference, with its sign."""
    return minus(f"{value:+.3f}")


def duration(seconds: float) -> str:
    """Seconds, minutes or hours."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def size(count: int) -> str:
    """Bytes in a suitable unit."""
    amount = float(count)
    for unit in ("bytes", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"


def percent(share: float) -> str:
    """A share in percent, with enough digits that a small one does not vanish."""
    value = 100 * share
    digits = 1 if value >= 1 or value == 0 else 2 if value >= 0.1 else 4
    return f"{value:.{digits}f} %"


def baseline_notes(baselines: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """Notes on a baseline, such as why it was left out; each note once."""
    notes = [
        f"{baseline_name(name)}: {scores['note']}"
        for name, splits in baselines.items()
        for scores in splits.values()
        if "note" in scores
    ]
    return list(dict.fromkeys(notes))


def was_left_out(scores: Mapping[str, Any]) -> bool:
    """Whether a baseline has no scores, only the note why."""
    return scores.keys() == {"note"}
