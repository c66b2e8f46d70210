"""``task_name``: a GLUE task from the Hub or a folder, or the yelp exercise, as settings of the ``data`` section."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from hftune.errors import HftuneError
from hftune.suggest import did_you_mean

HUB = "nyu-mll/glue"
YELP = "yelp"


class GlueTask(NamedTuple):
    """The columns of a task: on the Hub, and in the tsv files of the GLUE download where those differ."""

    text: str
    pair: str | None = None
    tsv: tuple[str, str | None, str] | None = None
    """Text, second text and label."""
    metric: str = "accuracy"
    """The metric that GLUE ranks it by."""


GLUE: dict[str, GlueTask] = {
    "cola": GlueTask("sentence", metric="mcc"),
    "mnli": GlueTask("premise", "hypothesis", ("sentence1", "sentence2", "gold_label")),
    "mrpc": GlueTask("sentence1", "sentence2", ("#1 String", "#2 String", "Quality")),
    "qnli": GlueTask("question", "sentence"),
    "qqp": GlueTask("question1", "question2", ("question1", "question2", "is_duplicate")),
    "rte": GlueTask("sentence1", "sentence2"),
    "sst2": GlueTask("sentence"),
    "wnli": GlueTask("sentence1", "sentence2"),
}
REGRESSION = "stsb"


def data_of(task_name: str, data_dir: str | None) -> dict[str, Any]:
    """The settings that ``task_name`` and ``data_dir`` stand for, by dotted key.

    Raises:
        HftuneError: There is no such task, or its folder is missing.
    """
    name = task_name.lower().replace("-", "")
    if name == REGRESSION:
        raise HftuneError(
            "task_name stsb is a regression task, and hftune classifies", hint=f"choose one of {', '.join(GLUE)}"
        )
    if name != YELP and name not in GLUE:
        raise HftuneError(
            f"task_name expects {YELP} or a task of GLUE ({', '.join(GLUE)}); got {task_name!r}",
            hint=did_you_mean(name, [YELP, *GLUE]) or "for other data, name it with --data",
        )
    if data_dir is not None and not Path(data_dir).expanduser().is_dir():
        raise HftuneError(f"data_dir expects a folder; there is none at {data_dir!r}", hint="check the path")
    if name == YELP:
        if data_dir is None:
            raise HftuneError(
                "task_name yelp is a folder with the files train.csv, valid.csv and test.csv",
                hint="name it with --data_dir; the full dataset is --data Yelp/yelp_review_full",
            )
        return {"data.dataset_name": data_dir}
    task = GLUE[name]
    if data_dir is None:
        settings: dict[str, Any] = {"data.dataset_name": HUB, "data.dataset_config_name": name}
    else:
        settings = {"data.dataset_name": data_dir, **_matched(Path(data_dir).expanduser())}
    original = data_dir is not None and any(Path(data_dir).expanduser().glob("*.tsv"))
    text, pair, label = (task.tsv if original else None) or (task.text, task.pair, "label")
    return settings | {
        "data.text_column_name": text,
        "data.text_pair_column_name": pair or "none",
        "data.label_column_name": label,
        "train.metric_for_best_model": task.metric,
    }


def _matched(folder: Path) -> dict[str, Any]:
    """MNLI's download has two validation and two test files; results are reported on the matched ones."""
    names = {"validation": "dev_matched.tsv", "test": "test_matched.tsv"}
    return {f"data.{split}_file": name for split, name in names.items() if (folder / name).is_file()}
