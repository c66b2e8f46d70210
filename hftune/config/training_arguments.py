"""The fields of TrainingArguments in the installed transformers, read from its source.

Importing the class takes seconds, because it imports torch; parsing the file takes 0.05 s.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib.util
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic import ConfigDict, TypeAdapter, ValidationError

ENUM = "ExplicitEnum"
"""The base of transformers' lists of names, such as OptimizerNames."""


@dataclass(frozen=True)
class ArgumentField:
    """One field of TrainingArguments."""

    name: str
    node: ast.expr
    """Its annotation in the source."""
    default: Any
    """Its default if the source has a plain value, else None."""
    help: str

    @functools.cached_property
    def annotation(self) -> Any:
        """Its type; names of an enumeration are a ``Literal`` of their values."""
        return _type(self.node, {**_enums("trainer_utils"), **_enums("training_args")})

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of an enumeration; empty for other types."""
        options = (self.annotation, *get_args(self.annotation))
        return next((get_args(option) for option in options if get_origin(option) is Literal), ())

    def problem(self, value: Any) -> str | None:
        """Why a value is invalid, or None. The dataclass itself accepts anything and fails during training."""
        try:
            TypeAdapter(self.annotation, config=ConfigDict(strict=True)).validate_python(value)
        except ValidationError as error:
            return error.errors(include_url=False)[0]["msg"]
        return None


@functools.cache
def argument_fields() -> Mapping[str, ArgumentField]:
    """Every field that can be given, by name, in the order of the class."""
    (found,) = (
        node
        for node in _tree("training_args").body
        if isinstance(node, ast.ClassDef) and node.name == "TrainingArguments"
    )
    return {
        field.name: field
        for node in found.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        for field in _field(node, node.target.id)
    }


@functools.cache
def _tree(module: str) -> ast.Module:
    package = importlib.util.find_spec("transformers")
    assert package is not None and package.origin is not None, "transformers is a dependency"
    return ast.parse((Path(package.origin).parent / f"{module}.py").read_text(encoding="utf-8"))


@functools.cache
def _enums(module: str) -> Mapping[str, Any]:
    """The enumerations that a module defines, each as a ``Literal`` of its values."""
    return {
        node.name: Literal[tuple(ast.literal_eval(one.value) for one in node.body if isinstance(one, ast.Assign))]
        for node in _tree(module).body
        if isinstance(node, ast.ClassDef) and any(isinstance(base, ast.Name) and base.id == ENUM for base in node.bases)
    }


def _field(node: ast.AnnAssign, name: str) -> list[ArgumentField]:
    """The field of an annotated assignment, in a list that is empty if the constructor does not take it."""
    given = {word.arg: word.value for word in node.value.keywords} if isinstance(node.value, ast.Call) else {}
    if "init" in given and ast.unparse(given["init"]) == "False":
        return []
    text = _plain(given.get("metadata"), {})
    text = text.get("help", "") if isinstance(text, dict) else ""
    return [ArgumentField(name, node.annotation, _plain(given.get("default")), " ".join(text.split()))]


def _plain(node: ast.expr | None, otherwise: Any = None) -> Any:
    try:
        return otherwise if node is None else ast.literal_eval(node)
    except ValueError:  # an expression, such as a default that depends on the environment
        return otherwise


def _type(node: ast.expr, enums: Mapping[str, Any]) -> Any:
    """An annotation as a type: plain names and enumerations; ``Any`` for a class of transformers."""
    parts = _alternatives(node)
    if any(isinstance(part, ast.Name) and part.id in enums for part in parts):
        # ``OptimizerNames | str`` is the enumeration: transformers turns the text into a member of it.
        parts = [part for part in parts if not (isinstance(part, ast.Name) and part.id == "str")]
    known = {**vars(builtins), "Any": Any, "Literal": Literal, **enums}
    types = []
    for part in parts:
        # eval is no risk here: the text comes from the installed transformers, whose code this process runs anyway.
        unknown = {one.id for one in ast.walk(part) if isinstance(one, ast.Name)} - known.keys()
        one = Any if unknown else eval(compile(ast.Expression(part), "annotation", "eval"), known)
        types.append(NoneType if one is None else one)
    return functools.reduce(operator.or_, types)


def _alternatives(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return [*_alternatives(node.left), *_alternatives(node.right)]
    return [node]
