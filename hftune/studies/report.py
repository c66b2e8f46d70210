"""The results of a study or a comparison in files: comparison.{json,csv,md}, figures as PNG, and the HTML page."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hftune.files import write_json, write_text
from hftune.recipe import read_recipe
from hftune.runs.directory import RunDir
from hftune.runs.formatting import number, score_name, sentence
from hftune.runs.group import group_summary, seed_runs
from hftune.runs.page import Banner, HtmlPage, PageSection, Picture
from hftune.runs.report import write_report
from hftune.studies import plots
from hftune.studies.compare import Compared, compare_study, compare_systems
from hftune.studies.folder import StudyDir
from hftune.studies.plan import PLAN, axis_title
from hftune.studies.systems import System, of_study, training_seconds
from hftune.studies.tables import (
    baseline_rows,
    csv_text,
    difference_rows,
    interval_note,
    markdown_text,
    numeric_axes,
    pivot_table,
)

PAGE = "report.html"


def write_study(study: StudyDir) -> Compared:
    """Compare the settings of a study and write all results into its folder."""
    compared, systems = compare_study(study), of_study(study)
    for system in systems:
        for run in system.runs:
            # A study that was killed between a run's scores and its page leaves the page missing or outdated.
            if not run.report.is_file() or run.report.stat().st_mtime_ns < run.metrics.stat().st_mtime_ns:
                write_report(run)
    write_results(study.path, compared, systems, study)
    return compared


def write_results(folder: Path, compared: Compared, systems: Sequence[System], study: StudyDir | None = None) -> Path:
    """Write tables, figures and the page into a folder; returns the path of the page."""
    write_json(folder / "comparison.json", compared.as_dict())
    write_text(folder / "comparison.csv", csv_text(compared))
    write_text(folder / "comparison.md", markdown_text(compared))
    page = comparison_page(folder.resolve().name, compared, systems, study)
    return page.write(folder / PAGE, folder / "plots")


def study_report(study: StudyDir, output: Path) -> Path:
    """Write only the page of a study, to another path."""
    return comparison_page(study.path.resolve().name, compare_study(study), of_study(study), study).write(output)


def write_group_page(group: Path, output: Path | None = None) -> Path:
    """Write the page of a group of seeds: the means of all scores, curves, and the runs of the seeds.

    Args:
        group: The folder; runs that are not complete are listed only.
        output: Another path of the page; report.html and plots/ in the group then stay as they are.
    """
    runs = seed_runs(group)
    complete = tuple(run for run in runs if run.complete)
    summary = group_summary(complete)
    name = group.resolve().name
    systems = [System(name, complete, {})]
    compared = compare_systems(systems)
    every = [(run.path.name, read_recipe(run).train.seed, run) for run in runs]
    sections = [
        _comparison(compared),
        _all_scores(summary),
        _curves(compared, systems),
        _runs(group, every, compared.metric, {}),
        _group_recipe(complete[0]),
    ]
    recipe = read_recipe(complete[0])
    names = (recipe.task.kind, recipe.data.dataset_name, recipe.model.model_name_or_path, recipe.method.kind)
    page = HtmlPage(
        title=name,
        kind="Group of seeds",
        subtitle=" · ".join([*names, f"seeds {', '.join(map(str, summary['seeds']))}"]),
        sections=[section for section in sections if section is not None],
        banners=_banners(compared, None),
        source="the folders of the runs",
    )
    return page.write(group / PAGE, group / "plots") if output is None else page.write(output)


def _all_scores(summary: Mapping[str, Any]) -> PageSection:
    splits = summary["splits"]
    names = list(dict.fromkeys(name for scores in splits.values() for name in scores))
    rows = [(name, [scores.get(name) for scores in splits.values()]) for name in names]
    lead = "Mean ± standard deviation of every score over the seeds."
    return PageSection("scores", "All scores", "group_scores", lead, values={"splits": list(splits), "rows": rows})


def _group_recipe(run: RunDir) -> PageSection:
    seeds = ",".join(str(read_recipe(one).train.seed) for one in seed_runs(run.path.parent))
    recipe, folder = shlex.quote(str(_from_here(run.recipe))), shlex.quote(f"{_from_here(run.path.parent)}-again")
    values = {
        "file": run.recipe.name,
        "plan": run.recipe.read_text(encoding="utf-8"),
        "again": f"hftune train {recipe} --seeds {seeds} --output {folder}",
    }
    lead = "The runs differ in the seed only; this is the recipe of the first."
    return PageSection("reproduce", "Reproduce", "study_plan", lead, values=values)


def comparison_page(
    title: str, compared: Compared, systems: Sequence[System], study: StudyDir | None = None
) -> HtmlPage:
    """The page of a comparison; of a study also with its runs and its plan."""
    sections = [
        _comparison(compared),
        _differences(compared),
        _verdicts(compared),
        _pivot(compared),
        _values(compared),
        _curves(compared, systems),
        _cost(compared),
        *([_study_runs(study, compared.metric), _plan(study)] if study is not None else []),
    ]
    return HtmlPage(
        title=title,
        kind="Study" if study is not None else "Comparison",
        subtitle=_subtitle(compared, study),
        sections=[section for section in sections if section is not None],
        banners=_banners(compared, study),
        source="the folders of the runs",
    )


def _subtitle(compared: Compared, study: StudyDir | None) -> str:
    seeds = sorted({seed for row in compared.rows for seed in row.seeds})
    parts = [
        f"{len(compared.rows)} setting{'s' * (len(compared.rows) > 1)}",
        f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}",
    ]
    if study is not None:
        plan = study.plan()
        search = f"search of {plan.search} trials" if plan.search else f"grid of {', '.join(plan.grid)}"
        parts = [plan.recipe or "default recipe", *parts, search]
    return " · ".join(parts)


def _banners(compared: Compared, study: StudyDir | None) -> list[Banner]:
    found = []
    collapsed = sum(row.collapsed for row in compared.rows)
    if collapsed:
        runs = sum(len(row.seeds) for row in compared.rows)
        text = f"{collapsed} of {runs} runs predict (nearly) one label."
        found.append(Banner("Collapsed runs.", text, alarm=True))
    failures = study.failures() if study is not None else []
    if failures:
        found.append(Banner("Not all runs succeeded.", f"{len(failures)} failed; they are listed under Runs."))
    return found


def _comparison(compared: Compared) -> PageSection:
    best = compared.rows[0]
    metric = score_name(compared.metric)
    cut = f"; the first {plots.MOST_ROWS} settings" if len(compared.rows) > plots.MOST_ROWS else ""
    mean = ": mean over seeds" if not compared.one_seed else ""
    picture = Picture(
        "scores",
        plots.scores(compared),
        alt=f"Dot chart of {len(compared.rows)} settings. Best on validation: {best.name}, with {compared.split} "
        f"{metric} {number(best.scores[compared.split].mean)}.",
        caption=f"{compared.split.capitalize()} {metric}{mean} and 95 % interval{cut}",
    )
    baselines = [
        {"name": name, "scores": [scores.get(split) for split in compared.splits]}
        for name, scores in baseline_rows(compared)
    ]
    order = "Settings in the order of their validation scores. " if len(compared.rows) > 1 else ""
    lead = f"{order}{interval_note(compared)}."
    values = {"compared": compared, "baselines": baselines}
    title = "Comparison" if len(compared.rows) > 1 else "Score"
    return PageSection("comparison", title, "study_comparison", lead, (picture,), values)


def _differences(compared: Compared) -> PageSection | None:
    rows = difference_rows(compared)
    names = [row.name for row in compared.rows]
    lead = "Settings, data and rows that are not the same in all runs; everything else is."
    return (
        PageSection("differences", "What differs", "study_differences", lead, values={"names": names, "rows": rows})
        if rows
        else None
    )


def _verdicts(compared: Compared) -> PageSection | None:
    if not compared.pairs:
        return None
    several = len(compared.pairs) > 1
    corrected = " p-values are corrected for the number of tests (Holm)." if several else ""
    lead = f"Differences on the same {compared.split} rows: first − second.{corrected}"
    values = {"pairs": compared.pairs, "several": several}
    return PageSection("verdicts", "Significance tests", "study_pairs", lead, values=values)


def _pivot(compared: Compared) -> PageSection | None:
    table = pivot_table(compared)
    if table is None:
        return None
    caption = f"{compared.split.capitalize()} {score_name(compared.metric)}: mean ± std over seeds, 95 % interval"
    values = {"pivot": table, "caption": caption}
    return PageSection("pivot", f"Score by {table.name}", "study_pivot", values=values)


def _values(compared: Compared) -> PageSection | None:
    pictures = []
    for axis in numeric_axes(compared):
        name = axis_title(list(compared.rows[0].values), axis)
        values = sorted({row.values[axis] for row in compared.rows})
        slug = "".join(character if character.isalnum() else "-" for character in axis).strip("-") or "axis"
        picture = Picture(
            f"by-{slug}",
            plots.by_value(compared, axis),
            alt=f"Line chart of {compared.split} {score_name(compared.metric)} against {name}, from {values[0]:g} to "
            f"{values[-1]:g}. The best setting on validation has {name} {compared.rows[0].values[axis]:g}.",
            caption=f"Score against {name}; the band spans the seeds",
        )
        pictures.append(picture)
    return PageSection("values", "Score against values", "pictures", pictures=tuple(pictures)) if pictures else None


def _curves(compared: Compared, systems: Sequence[System]) -> PageSection | None:
    order = {row.name: place for place, row in enumerate(compared.rows)}
    ranked = sorted(systems, key=lambda system: order[system.name])
    count = min(len(ranked), plots.MOST_LINES)
    shown = f"{count} setting{'s' * (count > 1)}"
    band = "; the band spans the seeds" if not compared.one_seed else ""
    cut = f"; the best {shown}" if len(ranked) > count else ""
    mean = "" if compared.one_seed else ", mean over seeds with a band from the lowest to the highest"
    pictures = []
    # The loss is drawn below.
    figure = plots.curves(ranked, compared.metric) if compared.metric != "loss" else None
    if figure is not None:
        name = f"validation {score_name(compared.metric)}"
        alt = f"Learning curves of {shown}: {name} over steps{mean}."
        pictures.append(Picture("curves", figure, alt, f"{sentence(name)} during training{band}{cut}"))
    for key, figure in plots.losses(ranked).items():
        name = "training and validation loss" if key == "losses" else key.replace("-", " ")
        alt = f"Learning curves of {shown}: {name} over steps{mean}."
        pictures.append(Picture(key, figure, alt, f"{sentence(name)}{band}{cut}"))
    return PageSection("training", "Training", "pictures", pictures=tuple(pictures)) if pictures else None


def _cost(compared: Compared) -> PageSection | None:
    pictures = []
    for against, name in (("seconds", "training time"), ("trainable", "trained parameters")):
        figure = plots.trade_off(compared, against)
        if figure is None:
            continue
        front = plots.pareto(plots.points_of(compared, against), lower_is_better=not compared.higher_is_better)
        named = f"On the front: {', '.join(one.name for one in front)}." if front else "Every run collapsed."
        caption = f"Score against {name}; numbers as in the table, bars span the seeds"
        alt = f"Scatter chart of score against {name}. {named}"
        pictures.append(Picture(f"against-{against}", figure, alt, caption))
    lead = "No setting is both cheaper and better than one on the line. Collapsed settings are never on it."
    return PageSection("cost", "Score against cost", "pictures", lead, tuple(pictures)) if pictures else None


def _study_runs(study: StudyDir, metric: str) -> PageSection:
    plan = study.plan()
    failed = {(one["setting"], one["seed"]): one["reason"] for one in study.failures()}
    every = [
        (f"depends_on: {name}", seed, study.stage_run(name, seed)) for name in plan.depends_on for seed in plan.seeds
    ]
    every += [(one.name, seed, study.run(one, seed)) for one in study.settings() for seed in plan.seeds]
    return _runs(study.path, every, metric, failed, study.trials())


def _runs(
    folder: Path,
    every: Sequence[tuple[str, int, RunDir]],
    metric: str,
    failed: Mapping[tuple[str, int], str],
    trials: Sequence[Mapping[str, Any]] = (),
) -> PageSection:
    """Every run in a folder, complete or not, with a link to its page."""
    rows: list[dict[str, Any]] = []
    for setting, seed, run in every:
        row: dict[str, Any] = {"setting": setting, "seed": seed, "splits": {}, "seconds": None, "link": None}
        if run.complete:
            metrics = run.read_metrics()
            row |= {"state": "complete", "splits": metrics["splits"], "seconds": training_seconds(metrics)}
            row["link"] = run.report.relative_to(folder).as_posix()
        else:
            row["state"] = f"failed: {failed[setting, seed]}" if (setting, seed) in failed else "not run"
        rows.append(row)
    return PageSection("runs", "Runs", "study_runs", values={"rows": rows, "trials": trials, "metric": metric})


def _plan(study: StudyDir) -> PageSection:
    path = _from_here(study.path)
    values = {
        "file": PLAN,
        "plan": (study.path / PLAN).read_text(encoding="utf-8"),
        "again": f"hftune sweep {path / PLAN} --output {path}-again",
    }
    lead = "The plan has what was varied; the folder of each run has its whole recipe."
    return PageSection("reproduce", "Reproduce", "study_plan", lead, values=values)


def _from_here(path: Path) -> Path:
    """Relative to the current folder, so that a command with it can be typed there."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
