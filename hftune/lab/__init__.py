"""The attention lab: what attention can and can't do, as experiments that run.

An experiment is one module, whose docstring states its claim and which ends with ``EXPERIMENT = Experiment(…)``, and
one line here.
"""

from __future__ import annotations

import ast
from pathlib import Path

MODULES = {
    "copy": "copy_value",
    "average": "average",
    "single-head": "single_head",
    "multi-head": "multi_head",
    "key-query-value": "key_query_value",
    "argmax": "argmax",
    "scaling": "scaling",
    "masking": "masking",
    "complexity": "complexity",
    "low-rank": "low_rank",
    "random-features": "random_features",
    "bptt": "bptt",
    "logit-bias": "logit_bias",
}
"""The experiments in their order, and the module of each."""


def claims() -> dict[str, str]:
    """The claim of every experiment by name; read from the source, because importing one imports torch."""
    files = {name: Path(__file__).with_name(f"{module}.py") for name, module in MODULES.items()}
    trees = {name: ast.parse(file.read_text(encoding="utf-8")) for name, file in files.items()}
    return {name: claim_of(ast.get_docstring(tree) or "") for name, tree in trees.items()}


def claim_of(docstring: str) -> str:
    """The claim that the docstring of an experiment states: its first paragraph, after the name."""
    return " ".join(docstring.partition("\n\n")[0].partition(": ")[2].split())
