"""Recipe text to plain values and back: YAML 1.2 scalars, no Python objects, no key twice. Used by ``load``.

PyYAML speaks YAML 1.1, where ``no`` is false, ``1e-5`` is text and ``1:30`` is ninety. Here label names such
as yes and no stay what they are, and numbers are numbers.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import yaml

from hftune.config.problems import Problem
from hftune.escapes import UNSAFE

LARGEST_FILE = 1_000_000
MOST_NODES = 50_000
DEEPEST = 50

_NULL = "tag:yaml.org,2002:null"
_SCALARS: tuple[tuple[str, str, str], ...] = (
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("tag:yaml.org,2002:int", r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))"
        r"|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
    ),
)


class DocumentError(Exception):
    """The text is not a recipe document at all."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2 scalars, whose mapping keys are always text and never occur twice."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def fetch_flow_collection_start(self, token_class: Any) -> None:
        """PyYAML takes seconds over a thousand open brackets; no recipe has ten."""
        if self.flow_level >= DEEPEST:
            raise yaml.scanner.ScannerError(None, None, "brackets nested too deeply", self.get_mark())
        super().fetch_flow_collection_start(token_class)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """A dict of the node; keys are names, so ``no: 1`` and ``5: 1`` keep their text."""
        values: dict[Hashable, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a name", key_node.start_mark)
            if key_node.value in values:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key_node.value!r} is given twice", key_node.start_mark
                )
            values[key_node.value] = self.construct_object(value_node, deep=True)
        return values


class _Dumper(yaml.SafeDumper):
    """Quotes whatever YAML 1.1 or our loader would take for something other than text."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write every value out: a reader should not have to follow anchors."""
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        """Text; with escapes where it holds line ends, which PyYAML's other styles do not all bring back, or steers."""
        style = '"' if data and (data.splitlines() != [data] or UNSAFE.search(data)) else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _Dumper.represent_str)
_Loader.add_implicit_resolver(_NULL, re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
for _tag, _pattern, _first in _SCALARS:
    _Loader.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), list(_first))
    _Dumper.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), list(_first))


def parse(text: str, source: str) -> tuple[Any, dict[str, int]]:
    """Plain values of a YAML text, and the line on which each dotted path begins.

    Raises:
        DocumentError: It is not YAML, wants to build Python objects, repeats a key, or unfolds without end.
    """
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None, {}
            if _size(node, {}, set()) > MOST_NODES:
                raise DocumentError(Problem("", "aliases unfold to an enormous document", source=source))
            return loader.construct_document(node), dict(_lines(node, ""))
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{source}:{mark.line + 1}" if mark and source.endswith((".yaml", ".yml")) else source
        reason = error.problem or error.context or "not valid YAML"
        if "tag:yaml.org,2002:python" in reason:
            raise DocumentError(
                Problem(
                    "",
                    "expected plain values, got a tag that builds a Python object",
                    "Recipes hold text, numbers, true/false, lists and mappings only; nothing was run.",
                    place,
                )
            ) from error
        raise DocumentError(Problem("", f"expected YAML, got a syntax error: {reason}", source=place)) from error
    except (yaml.YAMLError, ValueError) as error:
        raise DocumentError(Problem("", f"expected YAML, got: {str(error).splitlines()[0]}", source=source)) from error
    except RecursionError as error:
        raise DocumentError(
            Problem("", "expected a recipe, got a document nested too deeply", source=source)
        ) from error


def read(path: Path) -> tuple[Any, dict[str, int]]:
    """Like ``parse``, for a file."""
    name = str(path)
    try:
        raw = path.read_bytes() if path.stat().st_size <= LARGEST_FILE else None
    except OSError as error:
        raise DocumentError(Problem("", f"can't read the recipe file: {error.strerror}", source=name)) from error
    if raw is None:
        raise DocumentError(Problem("", f"expected a recipe of at most {LARGEST_FILE} bytes", source=name))
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError(
            Problem("", f"expected UTF-8 text, got the byte 0x{raw[error.start]:02x}", source=name)
        ) from error
    return parse(text, name)


def dump(value: dict[str, Any]) -> str:
    """YAML of plain values, keys in their order; ``parse`` gives an equal value back."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    # What is left of these stands between double quotes, where YAML takes escapes.
    return UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _size(node: yaml.Node, known: dict[int, int], open_nodes: set[int]) -> int:
    """Nodes of the document with aliases unfolded, counted without unfolding them."""
    if id(node) in open_nodes:
        return MOST_NODES + 1  # It holds itself.
    if id(node) not in known:
        open_nodes.add(id(node))
        children: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            children = [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            children = node.value
        known[id(node)] = 1 + sum(_size(child, known, open_nodes) for child in children)
        open_nodes.discard(id(node))
    return known[id(node)]


def _lines(node: yaml.Node, prefix: str) -> Iterator[tuple[str, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            path = f"{prefix}{key.value}"
            yield path, key.start_mark.line + 1
            yield from _lines(value, f"{path}.")
