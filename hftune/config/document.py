"""Recipe text to plain values and back: YAML 1.2 scalars, no Python objects, no duplicate keys; and its problems.

PyYAML reads YAML 1.1, where ``no`` is false, ``1e-5`` is text and ``1:30`` is ninety. Here label names such
as yes and no stay text, and all numbers are numbers.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hftune.errors import HftuneError, count
from hftune.sanitize import UNSAFE

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


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, where it is, and what to do about it."""

    path: str
    """Dotted path of the setting; empty for a problem of the file or the command line as a whole."""
    message: str
    """What was expected and what was found."""
    hint: str = ""
    """What to do; can be empty."""
    source: str = ""
    """Where the value came from: ``file.yaml:7``, ``--set`` or ``override``."""

    def __str__(self) -> str:
        """One line: path, message, source, hint."""
        where = f"{self.path}: " if self.path else ""
        source = f" ({self.source})" if self.source else ""
        hint = f" {self.hint}" if self.hint else ""
        return f"{where}{self.message}{source}.{hint}"


class RecipeError(HftuneError):
    """A recipe that can't be used, with all of its problems."""

    def __init__(self, name: str, problems: Sequence[Problem], *, hint: str | None = None) -> None:
        """``name`` is what the user typed for the recipe; ``hint`` replaces the usual one."""
        lines = "\n".join(f"  {problem}" for problem in problems)
        settings = any(problem.path for problem in problems)
        more = (
            "`hftune recipes schema` lists every setting" if settings else "`hftune recipes ls` lists what is shipped"
        )
        super().__init__(f"{name}: {count(len(problems), 'problem')}\n{lines}", hint=hint or more)
        self.problems = list(problems)


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2 scalars, whose mapping keys are always text and never occur twice."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def fetch_flow_collection_start(self, token_class: Any) -> None:
        """Limit nested brackets: PyYAML takes seconds for a thousand."""
        if self.flow_level >= DEEPEST:
            raise yaml.scanner.ScannerError(None, None, "brackets nested too deeply", self.get_mark())
        super().fetch_flow_collection_start(token_class)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """A dict of the node; keys stay text, as in ``no: 1`` and ``5: 1``."""
        values: dict[Hashable, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is None or key in values:
                reason = "a key must be a name" if key is None else f"the key {key!r} is given twice"
                raise yaml.constructor.ConstructorError(None, None, reason, key_node.start_mark)
            values[key] = self.construct_object(value_node, deep=True)
        return values


class _Dumper(yaml.SafeDumper):
    """A dumper that quotes strings which YAML 1.1 or our loader would not read as text."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write every value in full instead of anchors and aliases."""
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        """Write line ends and control characters as escapes: PyYAML's other styles do not preserve them."""
        style = '"' if data and (data.splitlines() != [data] or UNSAFE.search(data)) else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _Dumper.represent_str)
_Loader.add_implicit_resolver(_NULL, re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
for _tag, _pattern, _first in _SCALARS:
    _Loader.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), list(_first))
    _Dumper.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), list(_first))


def parse(text: str, source: str) -> tuple[Any, dict[str, int]]:
    """Plain values of a YAML text, and the line on which each dotted path begins."""
    try:
        loader = _Loader(text)
        try:
            # Nodes are not yet values: an alias is still a reference there, so that a document of a few lines that
            # expands to millions of values ("billion laughs") is refused before it takes memory.
            node = loader.get_single_node()
            if node is None:
                return None, {}
            if _size(node, {}, set()) > MOST_NODES:
                raise _refused(source, "aliases expand to an enormous document")
            return loader.construct_document(node), dict(_lines(node, ""))
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{source}:{mark.line + 1}" if mark and source.endswith((".yaml", ".yml")) else source
        reason = error.problem or error.context or "not valid YAML"
        message, hint = f"expected YAML, got a syntax error: {reason}", ""
        if "tag:yaml.org,2002:python" in reason:
            message = "expected plain values, got a tag that builds a Python object"
            hint = "Recipes hold text, numbers, true/false, lists and mappings only; nothing was run."
        raise _refused(source, message, hint, place) from error
    except (yaml.YAMLError, ValueError) as error:
        raise _refused(source, f"expected YAML, got: {str(error).splitlines()[0]}") from error
    except RecursionError as error:
        raise _refused(source, "expected a recipe, got a document nested too deeply") from error


def read(path: Path) -> tuple[Any, dict[str, int]]:
    """Like ``parse``, for a file."""
    name = str(path)
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise _refused(name, f"expected a recipe of at most {LARGEST_FILE} bytes")
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise _refused(name, f"can't read the recipe file: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise _refused(name, f"expected UTF-8 text, got the byte 0x{error.object[error.start]:02x}") from error
    return parse(text, name)


def _refused(source: str, message: str, hint: str = "", place: str = "") -> RecipeError:
    return RecipeError(source, [Problem("", message, hint, place or source)])


def dump(value: dict[str, Any]) -> str:
    """YAML of plain values, keys in their order; ``parse`` gives an equal value back."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    # All control characters that PyYAML did not escape are in double-quoted strings, where YAML reads escapes.
    return UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _size(node: yaml.Node, known: dict[int, int], open_nodes: set[int]) -> int:
    """Number of nodes of the document with expanded aliases, computed without expanding them."""
    if id(node) in open_nodes:
        return MOST_NODES + 1  # it contains itself
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
