"""The tables of docs/methods.md, made from the methods: ``python tests/generated_docs.py`` writes them into the page.

``test_docs.py`` compares the page with what is made here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hftune.config.section import setting_rows
from hftune.methods import METHODS
from hftune.methods.method import AdapterMethod
from hftune.methods.peft import CONTROLLED, REFUSED, config_fields, trainable_types
from hftune.recipe import Recipe

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
        count = (
            "all"
            if kind == "full"
            else "measured"
            if kind == "peft"
            else " + ".join(filter(None, (method.formula, HEAD)))
        )
        rates = f"{method.pretrained_learning_rate:g}, {method.scratch_learning_rate:g}"
        saved = "checkpoint"
        if issubclass(method, AdapterMethod):
            saved = "adapter, or checkpoint with `--merge`" if "merge" in method.model_fields else "adapter"
        lines.append(f"| `{kind}` | {text} | {count} | {rates} | {saved} |")
    return "\n".join(lines) + "\n"


def settings() -> str:
    """One line per setting; methods that share its meaning and its default share the line."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for row in setting_rows(Recipe, "method"):
        name = row.path.removeprefix("method.")
        found.setdefault((name, row.default, " ".join(row.meaning.split())), []).append(f"`{row.kind}`")
    lines = ["| setting | of | default | meaning |", "| --- | --- | --- | --- |"]
    lines += [
        f"| `{name}` | {', '.join(kinds)} | {default} | {meaning} |"
        for (name, default, meaning), kinds in sorted(found.items(), key=lambda one: one[0][0])
    ]
    return "\n".join(lines) + "\n"


def peft_types() -> str:
    """One line per type of the installed peft."""
    everywhere = {*CONTROLLED, "peft_type", "target_modules", "exclude_modules"}
    lines = ["| `method.peft_type` | its own settings, or why it can't be trained |", "| --- | --- |"]
    for kind in trainable_types():
        own = [f"`{name}`" for name in config_fields(kind) if name not in everywhere]
        lines.append(f"| `{kind}` | {', '.join(own) or 'none'} |")
    lines += [f"| {kind} | no: {reason} |" for kind, reason in REFUSED.items()]
    return "\n".join(lines) + "\n"


TABLES: dict[str, Callable[[], str]] = {"methods": methods, "settings": settings, "peft types": peft_types}


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
