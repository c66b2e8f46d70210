"""The Hub's check of a README's metadata, as far as hftune's cards go; tests/loopback_routes.py calls it.

The real check runs on the server, so a card that it would refuse must be refused here too.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

_FRONT_MATTER = re.compile(r"\A\s*---\s*\n(.*?)\n---\s*(?:\n|\Z)", re.DOTALL)
_RESULT_FIELDS = {"task": ("type",), "dataset": ("type", "name")}


def card_data(content: str) -> dict[str, Any]:
    """The metadata block of a README; empty where there is none.

    Raises:
        ValueError: the block is not YAML, or not a mapping.
    """
    match = _FRONT_MATTER.match(content)
    if match is None:
        return {}
    try:
        data = yaml.safe_load(match.group(1))
    except yaml.YAMLError as error:
        raise ValueError(f"YAML metadata is invalid: {error}") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ValueError("YAML metadata must be an object")
    return data


def _index_errors(index: object) -> list[str]:
    if not isinstance(index, list):
        return ['"model-index" must be an array']
    errors = []
    for i, model in enumerate(index):
        where = f"model-index[{i}]"
        if not isinstance(model, dict) or not isinstance(model.get("name"), str):
            errors.append(f'"{where}.name" is required')
            continue
        results = model.get("results")
        if not isinstance(results, list):
            errors.append(f'"{where}.results" is required')
            continue
        for j, result in enumerate(results):
            errors += _result_errors(f"{where}.results[{j}]", result)
    return errors


def _result_errors(where: str, result: object) -> list[str]:
    if not isinstance(result, dict):
        return [f'"{where}" must be an object']
    errors = []
    for part, names in _RESULT_FIELDS.items():
        value = result.get(part)
        errors += [
            f'"{where}.{part}.{name}" is required'
            for name in names
            if not isinstance(value, dict) or not isinstance(value.get(name), str)
        ]
    metrics = result.get("metrics")
    if not isinstance(metrics, list) or not metrics:
        return [*errors, f'"{where}.metrics" is required']
    for k, metric in enumerate(metrics):
        if not isinstance(metric, dict) or not isinstance(metric.get("type"), str):
            errors.append(f'"{where}.metrics[{k}].type" is required')
        elif metric.get("value") is None:
            errors.append(f'"{where}.metrics[{k}].value" is required')
    return errors


def card_problems(content: str) -> tuple[list[str], list[str]]:
    """Errors, which make the Hub refuse the commit, and warnings, which it only shows."""
    try:
        data = card_data(content)
    except ValueError as error:
        return [str(error)], []
    if not data:
        return [], ["empty or missing yaml metadata in repo card"]
    errors = []
    for name in ("tags", "datasets", "metrics"):
        value = data.get(name)
        if value is not None and not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
            errors.append(f'"{name}" must be an array of strings')
    if "license" in data and not isinstance(data["license"], str | list):
        errors.append('"license" must be a string or an array')
    if data.get("model-index") is not None:
        errors += _index_errors(data["model-index"])
    return errors, []
