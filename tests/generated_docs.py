"""The tables of docs/methods.md, made from the methods: ``python tests/generated_docs.py`` writes them into the page.

``test_docs.py`` compares the page with what is made here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hftune.config.settings import setting_rows
from hftune.methods import METHODS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "methods.md"
HEAD = "2d+2"
MARKS = "<!-- generated: {} -->\n", "<!-- end of generated: {} -->\n"


def methods() -> str:
    """One line per method."""
    lines = [
        "| `--method` | what is trained | trainable parameters, 2 labels, BERT | "
        "learning rate: pretrained, from scratch | saved as |",
        "| --- | --- | --- | --- | --- |",
    ]
    for kind, method in METHODS.items():
        papers = ", ".join(f"[{number}](https://arxiv.org/abs/{number})" for number in method.papers)
        text = " ".join((method.__doc__ or "").split()).rstrip(".") + (f" ({papers})" if papers else "")
        count = "all" if kind == "full" else " + ".join(filter(None, (method.formula, HEAD)))
        rates = f"{method.pretrained_learning_rate:g}, {method.scratch_learning_rate:g}"
        saved = "checkpoint"
        if method.is_adapter:
            saved = "adapter, or checkpoint with `--merge`" if "merge" in method.model_fields else "adapter"
        lines.append(f"| `{kind}` | {text} | {count} | {rates} | {saved} |")
    return "\n".join(lines) + "\n"


def settings() -> str:
    """One line per setting; methods that share its meaning and its default share the line."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for row in setting_rows("method"):
        name = row.path.removeprefix("method.")
        found.setdefault((name, row.default, " ".join(row.meaning.split())), []).append(f"`{row.kind}`")
    lines = ["| setting | of | default | meaning |", "| --- | --- | --- | --- |"]
    lines += [
        f"| `{name}` | {', '.join(kinds)} | {default} | {meaning} |"
        for (name, default, meaning), kinds in sorted(found.items(), key=lambda one: one[0][0])
    ]
    return "\n".join(lines) + "\n"


TABLES: dict[str, Callable[[], str]] = {"methods": methods, "settings": settings}


def filled(page: str) -> str:
    """The page with its tables made anew."""
    for name, make in TABLES.items():
        start, end = (mark.format(name) for mark in MARKS)
        before, found, rest = page.partition(start)
        _, ends, after = rest.partition(end)
        assert found and ends, f"the page has no place for {name}"
        page = f"{before}{start}{make()}{end}{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
