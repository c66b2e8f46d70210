"""How to make the run again: the command, the recipe, and the machine and versions it was made with."""

from __future__ import annotations

import shlex

from hftune.config.kinds import task_class
from hftune.runs.facts import RunFacts
from hftune.runs.page import Section

CHANGED = {True: " with changes", False: "", None: " (not checked for changes)"}
"""After the commit: whether files differed from it."""


def reproduce(facts: RunFacts) -> Section:
    """The command that was given, the one that runs the resolved recipe again, and that recipe."""
    path = shlex.quote(f"runs/{facts.name}/recipe.yaml")
    return Section(
        id="reproduce",
        title="Make it again",
        template="reproduce.html.j2",
        lead="The recipe states every setting; the same recipe, versions and machine give the same weights.",
        values={
            "given": facts.environment.get("command", ""),
            "recipe": facts.recipe_text,
            "again": f"hftune {task_class(facts.task).command} --recipe {path}",
        },
    )


def environment(facts: RunFacts) -> Section | None:
    """Versions and machine."""
    found = facts.environment
    if not found:
        return None
    cores, git = found.get("cores") or {}, found.get("git")
    devices = [
        f"{one['name']} ({one['memory_gb']} GB)" if one.get("memory_gb") else one["name"]
        for one in found.get("devices", [])
    ]
    machine = [
        ("System", found.get("platform")),
        ("Processor", found.get("cpu")),
        ("Cores", f"{cores['usable']} of {cores['total']}" if cores else None),
        ("Memory", f"{found['memory_gb']} GB" if found.get("memory_gb") else None),
        ("Accelerators", ", ".join(devices) or "none"),
        ("Commit", f"{git['commit'][:12]}{CHANGED.get(git.get('changed'), '')}" if git else None),
    ]
    software = [("hftune", found.get("hftune")), ("Python", found.get("python")), *found.get("libraries", {}).items()]
    return Section(
        id="environment",
        title="Environment",
        template="environment.html.j2",
        values={
            "machine": [(name, value) for name, value in machine if value],
            "software": [(name, value) for name, value in software if value],
        },
    )
