"""Numbers, names and foreign text as a page shows them. Used by the report's sections and its templates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

SCORE_NAMES = {
    "accuracy": "accuracy",
    "f1_macro": "macro F1",
    "f1_weighted": "weighted F1",
    "mcc": "MCC",
    "ece": "ECE",
    "loss": "loss",
    "perplexity": "perplexity",
    "word_perplexity": "word perplexity",
    "bits_per_byte": "bits per byte",
    "exact_match": "exact match",
    "aurc": "AURC",
}
BASELINE_NAMES = {
    "majority": "majority label",
    "majority of split": "majority label of the split",
    "tfidf": "bag of words",
    "constant": "constant answer",
    "uniform": "uniform guess",
    "unigram": "unigram counts",
    "bigram": "bigram counts",
}
# What could steer a reader's eye or screen reader: control characters, direction overrides, invisible marks. The two
# joiners stay, which emoji and some scripts need.
_STEERING = (
    *(code for code in range(0x20) if chr(code) not in "\n\t"),
    *range(0x7F, 0xA0),
    0x200B,
    0x200E,
    0x200F,
    *range(0x2028, 0x202F),
    *range(0x2060, 0x206A),
    0xFEFF,
)
_VISIBLE: dict[int, str] = {code: f"⟨U+{code:04X}⟩" for code in _STEERING}
# Half a surrogate pair can't be written as UTF-8 at all.
_VISIBLE |= dict.fromkeys(range(0xD800, 0xE000), "\ufffd")


def visible(text: str) -> str:
    """Text from outside with every control character made visible, so that it changes nothing around it."""
    return text.replace("\r\n", "\n").translate(_VISIBLE)


def score_name(name: str) -> str:
    """A score's name in words."""
    return SCORE_NAMES.get(name, name.replace("_", " "))


def baseline_name(name: str) -> str:
    """A baseline's name in words."""
    return BASELINE_NAMES.get(name, name.replace("_", " "))


def number(value: Any) -> str:
    """A score with three digits after the point; large numbers with fewer, what is missing as a dash."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if abs(value) >= 100:
        return minus(f"{value:,.1f}")
    return minus(f"{value:.3f}")


def minus(text: str) -> str:
    """A true minus sign, which lines up with digits."""
    return text.replace("-", "−")


def signed(value: float) -> str:
    """A difference, with its sign."""
    return minus(f"{value:+.3f}")


def duration(seconds: float) -> str:
    """Seconds as a person would say them."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def size(count: int) -> str:
    """Bytes in the unit that suits them."""
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
    """What must be known of a baseline, such as why it was left out; once, however many splits it holds for."""
    notes = [
        f"{baseline_name(name)}: {scores['note']}"
        for name, splits in baselines.items()
        for scores in splits.values()
        if "note" in scores
    ]
    return list(dict.fromkeys(notes))


def was_left_out(scores: Mapping[str, Any]) -> bool:
    """Whether these are not scores but the reason why a baseline has none."""
    return scores.keys() == {"note"}
