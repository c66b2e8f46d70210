"""A comparison as CSV and Markdown. Names come from recipes and data, so they are made harmless for both.

Written by ``hftune.studies.results``, printed by ``hftune compare --format``.
"""

from __future__ import annotations

import csv
import io
from typing import Any

from hftune.escapes import spreadsheet_cell
from hftune.evaluation.significance import Estimate
from hftune.hub.markdown import inline
from hftune.runs.wording import baseline_name, duration, score_name
from hftune.studies.compare import Compared, Row
from hftune.studies.cross import crossed


def score_text(found: Estimate | None) -> str:
    """Mean ± std over seeds."""
    if found is None:
        return "–"
    return f"{found.mean:.4f}" if found.std is None else f"{found.mean:.4f} ± {found.std:.4f}"


def interval_text(found: Estimate | None) -> str:
    """The 95 % interval."""
    return "–" if found is None else f"{found.low:.4f} … {found.high:.4f}"


def interval_words(compared: Compared) -> str:
    """What scores and intervals are over."""
    if compared.one_seed:
        return "One seed; intervals allow for other rows, and know nothing of other seeds"
    return "Mean ± std over seeds; intervals allow for other rows and other seeds"


def memory_text(gigabytes: float | None) -> str:
    """The peak of memory."""
    return "–" if gigabytes is None else f"{gigabytes:.2f} GB"


def csv_text(compared: Compared) -> str:
    """One line a setting, numbers unrounded."""
    axes = list(dict.fromkeys(axis for row in compared.rows for axis in row.values))
    scores = [f"{split}_{part}" for split in compared.splits for part in ("mean", "std", "low", "high")]
    header = ["setting", *axes, "metric", *scores, "seeds", "trainable", "total", "seconds", "memory_gb"]
    header += ["collapsed", "selected"]
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow([_cell(name) for name in header])
    for row in compared.rows:
        cells: list[Any] = [row.name, *(row.values.get(axis) for axis in axes), compared.metric]
        for split in compared.splits:
            found = row.scores.get(split)
            cells += [None] * 4 if found is None else [found.mean, found.std, found.low, found.high]
        seeds = " ".join(map(str, row.seeds))
        cells += [seeds, row.trainable, row.total, round(row.seconds, 3), row.memory, row.collapsed, row.selected]
        writer.writerow([_cell(cell) for cell in cells])
    return written.getvalue()


def markdown_text(compared: Compared) -> str:
    """The table, the verdicts and the notes."""
    header = ["setting"]
    for split in compared.splits:
        header.append(f"{split} {score_name(compared.metric)}")
    header += ["95 % interval", "seeds", "trained", "time", "memory"]
    lines = [_line(header), _line(["---", *["---:"] * (len(header) - 1)])]
    lines += [_line(_cells(row, compared)) for row in compared.rows]
    for name, scores in compared.baselines.items():
        shown = [f"{scores[split]:.4f}" if split in scores else "–" for split in compared.splits]
        lines.append(_line([f"*{baseline_name(name)}*", *shown, "", "", "", "", ""]))
    lines += ["", f"{interval_words(compared)}; the interval is that of {compared.split}."]
    lines += _crossed(compared)
    if compared.pairs:
        lines += ["", *(f"- {inline(pair.words)}" for pair in compared.pairs)]
    if compared.notes:
        lines += ["", *(f"- {inline(note)}" for note in compared.notes)]
    return "\n".join(lines) + "\n"


def _crossed(compared: Compared) -> list[str]:
    """One axis against the other, where the study is such a one."""
    cross = crossed(compared)
    if cross is None:
        return []
    lines = ["", _line([inline(cross.name), *cross.columns]), _line(["---", *["---:"] * len(cross.columns)])]
    for name, scores in cross.rows:
        cells = [f"{score_text(one)} ({interval_text(one)})" if one is not None else "–" for one in scores]
        lines.append(_line([inline(name), *cells]))
    for name, found in cross.baselines:
        lines.append(_line([f"*{name}*", *("–" if one is None else f"{one:.4f}" for one in found)]))
    return [*lines, "", f"{compared.split.capitalize()} {score_name(compared.metric)}, with the 95 % interval."]


def _cells(row: Row, compared: Compared) -> list[str]:
    name = f"**{inline(row.name)}**" if row.selected else inline(row.name)
    scores = [score_text(row.scores.get(split)) for split in compared.splits]
    interval = interval_text(row.scores.get(compared.split))
    return [
        name,
        *scores,
        interval,
        str(len(row.seeds)),
        f"{row.trainable:,}",
        duration(row.seconds),
        memory_text(row.memory),
    ]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(value: Any) -> Any:
    """A text that a spreadsheet would compute is marked as text; numbers stay numbers."""
    if not isinstance(value, str):
        return value
    return spreadsheet_cell(value)
