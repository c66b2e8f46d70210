"""The page of a study or a comparison: one self-contained HTML text, made of nothing but the folders compared.

Called by ``hftune.studies.results`` at the end of a study, and so by ``hftune report STUDY``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hftune.runs.page import Banner, Picture, Section, render
from hftune.runs.wording import baseline_name, duration, number, score_name
from hftune.studies import plots
from hftune.studies.compare import Compared
from hftune.studies.cross import crossed, numeric_axes
from hftune.studies.folder import PLAN, StudyDir
from hftune.studies.settings import short_names
from hftune.studies.systems import System, training_seconds
from hftune.studies.tables import interval_words


def sections(compared: Compared, systems: Sequence[System], study: StudyDir | None) -> list[Section]:
    """The parts of the page, with their figures."""
    found = [
        _comparison(compared),
        _pairs(compared),
        _cross(compared),
        _values(compared),
        _curves(compared, systems),
        _cost(compared),
    ]
    if study is not None:
        found += [_runs(study), _plan(study)]
    return [section for section in found if section is not None]


def study_page(title: str, compared: Compared, parts: Sequence[Section], study: StudyDir | None) -> str:
    """The page as text."""
    return render(
        "study.html.j2",
        title=title,
        kind="Study" if study is not None else "Comparison",
        subtitle=_subtitle(compared, study),
        banners=_banners(compared, study),
        sections=parts,
    )


def _subtitle(compared: Compared, study: StudyDir | None) -> str:
    seeds = sorted({seed for row in compared.rows for seed in row.seeds})
    settings = f"{len(compared.rows)} setting{'s' * (len(compared.rows) > 1)}"
    told = [settings, f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"]
    if study is not None:
        plan = study.plan()
        told.insert(0, plan.recipe or "default recipe")
        told.append(f"search of {plan.search} trials" if plan.search else f"over {', '.join(plan.grid)}")
    return " · ".join(told)


def _banners(compared: Compared, study: StudyDir | None) -> list[Banner]:
    found = []
    collapsed = sum(row.collapsed for row in compared.rows)
    if collapsed:
        runs = sum(len(row.seeds) for row in compared.rows)
        found.append(
            Banner("Collapsed runs.", f"{collapsed} of {runs} runs answer with (nearly) one label.", alarm=True)
        )
    failures = study.failures() if study is not None else []
    if failures:
        found.append(Banner("Not all runs succeeded.", f"{len(failures)} failed; they are listed under Runs."))
    return found


def _comparison(compared: Compared) -> Section:
    best = compared.rows[0]
    picture = Picture(
        "scores",
        plots.scores(compared),
        alt=f"Dot chart of {len(compared.rows)} settings. Best on validation: {best.name}, with {compared.split} "
        f"{score_name(compared.metric)} {number(best.scores[compared.split].mean)}.",
        caption=f"{compared.split.capitalize()} {score_name(compared.metric)}"
        f"{': mean over seeds' * (not compared.one_seed)} and 95 % interval"
        + (f"; the first {plots.MOST_ROWS} settings" if len(compared.rows) > plots.MOST_ROWS else ""),
    )
    baselines = [
        {"name": baseline_name(name), "scores": [scores.get(split) for split in compared.splits]}
        for name, scores in compared.baselines.items()
    ]
    return Section(
        id="comparison",
        title="Comparison",
        template="study_comparison.html.j2",
        lead=f"Settings stand in the order of their validation scores. {interval_words(compared)}.",
        pictures=(picture,),
        values={"compared": compared, "baselines": baselines, "duration": duration},
    )


def _pairs(compared: Compared) -> Section | None:
    if not compared.pairs:
        return None
    several = len(compared.pairs) > 1
    corrected = " p-values are corrected for their number (Holm)." if several else ""
    return Section(
        id="verdicts",
        title="Is it better?",
        template="study_pairs.html.j2",
        lead=f"Differences on the same {compared.split} rows, in the order first − second.{corrected}",
        values={"pairs": compared.pairs, "several": several},
    )


def _cross(compared: Compared) -> Section | None:
    cross = crossed(compared)
    if cross is None:
        return None
    caption = f"{compared.split.capitalize()} {score_name(compared.metric)}: mean ± std over seeds, 95 % interval"
    return Section(
        "cross", f"Score by {cross.name}", "study_cross.html.j2", values={"cross": cross, "caption": caption}
    )


def _values(compared: Compared) -> Section | None:
    pictures = []
    short = short_names(list(compared.rows[0].values))
    for axis in numeric_axes(compared):
        name = (short[axis] or axis).replace("_", " ")
        values = sorted({row.values[axis] for row in compared.rows})
        best = compared.rows[0]
        pictures.append(
            Picture(
                f"by-{_slug(axis)}",
                plots.by_value(compared, axis),
                alt=f"Line chart of {compared.split} {score_name(compared.metric)} against {name}, from {values[0]:g} "
                f"to {values[-1]:g}. The best setting on validation has {name} {best.values[axis]:g}.",
                caption=f"Score against {name}; the band spans the seeds",
            )
        )
    if not pictures:
        return None
    return Section("values", "Score against values", "study_pictures.html.j2", pictures=tuple(pictures))


def _curves(compared: Compared, systems: Sequence[System]) -> Section | None:
    order = {row.name: place for place, row in enumerate(compared.rows)}
    ranked = sorted(systems, key=lambda system: order[system.name])
    figure = plots.curves(ranked, compared.metric)
    if figure is None:
        return None
    cut = len(ranked) > plots.MOST_LINES
    picture = Picture(
        "curves",
        figure,
        alt=f"Learning curves of {min(len(ranked), plots.MOST_LINES)} settings: validation "
        f"{score_name(compared.metric)} over "
        "updates, mean over seeds with a band from the worst to the best seed.",
        caption=f"Dev {score_name(compared.metric)} while training; the band spans the seeds"
        + (f"; the best {plots.MOST_LINES} settings" if cut else ""),
    )
    return Section("training", "Training", "study_pictures.html.j2", pictures=(picture,))


def _cost(compared: Compared) -> Section | None:
    pictures = []
    for against, words in (("seconds", "training time"), ("trainable", "trained parameters")):
        figure = plots.trade_off(compared, against)
        if figure is None:
            continue
        front = plots.pareto(plots.points_of(compared, against), lower_is_better=compared.metric == "loss")
        named = f"On the front: {', '.join(one.name for one in front)}." if front else "Every run collapsed."
        pictures.append(
            Picture(
                f"against-{against}",
                figure,
                alt=f"Scatter chart of score against {words}. {named}",
                caption=f"Score against {words}; numbers as in the table, bars span the seeds",
            )
        )
    if not pictures:
        return None
    return Section(
        id="cost",
        title="Score against cost",
        template="study_pictures.html.j2",
        lead="On the line lies what no cheaper setting reaches. Where every run collapsed, nothing was reached.",
        pictures=tuple(pictures),
    )


def _runs(study: StudyDir) -> Section:
    rows: list[dict[str, Any]] = []
    failed = {(one["setting"], one["seed"]): one["reason"] for one in study.failures()}
    plan = study.plan()
    every = [(f"before: {name}", seed, study.before(name, seed)) for name in plan.depends_on for seed in plan.seeds]
    every += [(one.name, seed, study.run(one, seed)) for one in study.settings() for seed in plan.seeds]
    for setting, seed, run in every:
        row: dict[str, Any] = {"setting": setting, "seed": seed, "splits": {}, "seconds": None, "link": None}
        if run.complete:
            metrics = run.read_metrics()
            row |= {
                "state": "complete",
                "splits": metrics["splits"],
                "seconds": training_seconds(metrics),
                "link": run.report.relative_to(study.path).as_posix(),
            }
        else:
            row["state"] = f"failed: {failed[setting, seed]}" if (setting, seed) in failed else "not run"
        rows.append(row)
    trials = {trial["number"]: trial for trial in study.drawn()}
    return Section(
        id="runs",
        title="Runs",
        template="study_runs.html.j2",
        values={"rows": rows, "trials": list(trials.values()), "duration": duration},
    )


def _plan(study: StudyDir) -> Section:
    # As it is named from where the page is made, so that the command can be typed there.
    here = Path.cwd()
    path = study.path.relative_to(here) if study.path.is_relative_to(here) else study.path
    return Section(
        id="reproduce",
        title="Make it again",
        template="study_plan.html.j2",
        lead="The plan states what was varied; each run's own folder holds its whole recipe.",
        values={
            "plan": (study.path / PLAN).read_text(encoding="utf-8"),
            "again": f"hftune sweep {path / PLAN} --output {path}-again",
        },
    )


def _slug(axis: str) -> str:
    return "".join(character if character.isalnum() else "-" for character in axis).strip("-") or "axis"
