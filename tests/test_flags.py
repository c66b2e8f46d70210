"""Flags: the names that users of transformers, trl and AutoTrain type, as settings of a recipe."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import crash_case
import pytest
from facts import mentions
from tiny import rows, write_csv

from hftune.cli import commands as cli
from hftune.cli.options import GIVEN, SettingsCommand, resolve_settings
from hftune.errors import HftuneError
from hftune.pipeline.names import ELSEWHERE, TRAINER_ARGUMENTS, from_names, known_names
from hftune.recipe import Recipe, load_recipe, recipe_yaml
from hftune.runs.group import move_aside, update_moved_paths
from hftune.training.settings import REMOVED

Hftune = Any


def typed(command: str, *arguments: str) -> dict[str, Any]:
    """The settings of a command line; checked, as a run would check them."""
    made = cli.load_command(command)
    given = made.make_context(command, [cli.dashed(argument) for argument in arguments]).meta[GIVEN]
    task = made.task or "classify"
    settings = resolve_settings(given, task)
    load_recipe(None, settings, task=task)
    return settings


FLAGS: list[tuple[tuple[str, ...], str, Any]] = [
    (("--model_name_or_path", "a/b"), "model.model_name_or_path", "a/b"),
    (("-m", "a/b"), "model.model_name_or_path", "a/b"),
    (("--model_revision", "main", "--model", "a/b"), "model.model_revision", "main"),
    (("--model_type", "bert", "--model", "a/b"), "model.model_type", "bert"),
    (("--model_type", "bert", "--model", "scratch:bert-tiny"), "model.model_type", "bert"),
    (("--tokenizer_name", "a/c"), "model.tokenizer_name", "a/c"),
    (("--dataset_name", "a/b"), "data.dataset_name", "a/b"),
    (("--dataset_config_name", "rte", "--dataset_name", "a/b"), "data.dataset_config_name", "rte"),
    (("--train_file", "t.csv"), "data.dataset_name", "t.csv"),
    (("--train_file", "t.csv", "--data", "folder"), "data.train_file", "t.csv"),
    (("--train_file", "t.csv", "--validation_file", "v.csv"), "data.validation_file", "v.csv"),
    (("--test_file", "v.csv"), "data.test_file", "v.csv"),
    (("--data_dir", "folder"), "data.dataset_name", "folder"),
    (("--learning_rate", "3e-5"), "train.learning_rate", 3e-5),
    (("--learning-rate=3e-5",), "train.learning_rate", 3e-5),
    (("--lr", "3e-5", "--learning_rate", "3e-5"), "train.learning_rate", 3e-5),
    (("--num_train_epochs", "2"), "train.num_train_epochs", 2),
    (("--num_epochs", "2.5"), "train.num_train_epochs", 2.5),
    (("--epochs", "2"), "train.num_train_epochs", 2),
    (("--max_steps", "9"), "train.max_steps", 9),
    (("--max_steps", "-1"), "train.max_steps", -1),
    (("--per_device_train_batch_size", "4"), "train.per_device_train_batch_size", 4),
    (("--batch_size", "4"), "train.per_device_train_batch_size", 4),
    (("--per_device_eval_batch_size", "4"), "train.per_device_eval_batch_size", 4),
    (("--per_gpu_train_batch_size", "4"), "train.per_device_train_batch_size", 4),
    (("--per_gpu_eval_batch_size", "4"), "train.per_device_eval_batch_size", 4),
    (("--gradient_accumulation_steps", "4"), "train.gradient_accumulation_steps", 4),
    (("--weight_decay", "0.1"), "train.weight_decay", 0.1),
    (("--warmup_steps", "100"), "train.warmup_steps", 100),
    (("--warmup_ratio", "0.06"), "train.warmup_steps", 0.06),
    (("--lr_scheduler_type", "cosine"), "train.lr_scheduler_type", "cosine"),
    (("--lr_scheduler_kwargs", '{"num_cycles": 2}'), "train.lr_scheduler_kwargs", {"num_cycles": 2}),
    (("--optim", "adafactor"), "train.optim", "adafactor"),
    (("--optim", "muon"), "train.optim", "muon"),
    (("--report_to", "none"), "train.report_to", ["none"]),
    (("--report_to", "tensorboard", "trackio"), "train.report_to", ["tensorboard", "trackio"]),
    (("--bf16",), "train.bf16", True),
    (("--bf16", "True"), "train.bf16", True),
    (("--bf16", "false"), "train.bf16", False),
    (("--no_bf16",), "train.bf16", False),
    (("--no-bf16",), "train.bf16", False),
    (("--fp16",), "train.fp16", True),
    (("--no_cuda",), "train.use_cpu", True),
    (("--use_cpu",), "train.use_cpu", True),
    (("--torch_compile",), "train.torch_compile", True),
    (("--group_by_length",), "train.train_sampling_strategy", "group_by_length"),
    (("--group_by_length", "False"), "train.train_sampling_strategy", "random"),
    (("--metric_for_best_model", "eval_loss"), "train.metric_for_best_model", "eval_loss"),
    (("--eval_steps", "20"), "train.eval_steps", 20),
    (("--eval_strategy", "steps"), "train.eval_strategy", "steps"),
    (("--evaluation_strategy", "epoch"), "train.eval_strategy", "epoch"),
    (("--evaluate_during_training",), "train.eval_strategy", "steps"),
    (("--logging_steps", "50"), "train.logging_steps", 50),
    (("--save_total_limit", "1"), "train.save_total_limit", 1),
    (("--max_seq_length", "64"), "data.max_seq_length", 64),
    (("--max_length", "64"), "data.max_seq_length", 64),
    (("--max_train_samples", "50"), "data.max_train_samples", 50),
    (("--max_eval_samples", "50"), "data.max_eval_samples", 50),
    (("--max_predict_samples", "50"), "data.max_predict_samples", 50),
    (("--push_to_hub", "--hub_model_id", "me/it"), "hub.push_to_hub", True),
    (("--hub_model_id", "me/it"), "hub.hub_model_id", "me/it"),
    (("--hub_private_repo", "True", "--push_to_hub"), "hub.hub_private_repo", True),
    (("--text_column_name", "body"), "data.text_column_name", "body"),
    (("--text_column", "body"), "data.text_column_name", "body"),
    (("--label_column_name", "stars"), "data.label_column_name", "stars"),
    (("--target_column", "stars"), "data.label_column_name", "stars"),
    (("--use_peft",), "method.kind", "lora"),
    (("--method", "prefix"), "method.kind", "prefix"),
    (("--use_peft", "--lora_r", "4"), "method.r", 4),
    (("--use_peft", "--lora_alpha", "32"), "method.lora_alpha", 32),
    (("--use_peft", "--lora_dropout", "0.2"), "method.lora_dropout", 0.2),
    (("--use_peft", "--lora_target_modules", "query", "value"), "method.target_modules", ["query", "value"]),
    (("--method", "prefix", "--num_virtual_tokens", "8"), "method.num_virtual_tokens", 8),
    (("--seed", "7"), "train.seed", 7),
    (("--adam_beta2", "0.98"), "train.adam_beta2", 0.98),
    (("--neftune_noise_alpha", "5"), "train.neftune_noise_alpha", 5),
    (
        ("--gradient_checkpointing", "--gradient_checkpointing_kwargs", '{"use_reentrant": false}'),
        "train.gradient_checkpointing_kwargs",
        None,
    ),
    (("--run_name", "12"), "train.run_name", "12"),
]


@pytest.mark.parametrize(("arguments", "path", "value"), FLAGS, ids=lambda value: str(value)[:60])
def test_a_flag_is_its_setting(arguments: tuple[str, ...], path: str, value: Any) -> None:
    found = typed("classify", *arguments)
    expected = {"use_reentrant": False} if value is None else value
    assert found[path] == expected and type(found[path]) is type(expected)


@pytest.mark.parametrize("task", ["classify", "joint", "answer", "span", "clm", "mlm"])
def test_every_declared_setting_has_a_name_of_its_own_or_is_shadowed_by_a_nearer_one(task: str) -> None:
    names = Recipe.spellings(task)
    missing = [
        f"{section}.{name}"
        for section, section_type in Recipe.owners(task)
        for name in section_type.model_fields
        if name != "kind" and not names[name].endswith(f".{name}")
    ]
    assert not missing
    assert set(names.values()) <= {*Recipe.all_settings(), *(f"train.{name}" for name in names)}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--lr", "1e-3", "--learning_rate", "2e-3"), ("train.learning_rate", "0.001", "0.002", "leave one")),
        (("--lr", "1e-3", "--lr", "2e-3"), ("given twice",)),
        (("--learning_rat", "1"), ("--learning-rat", "--learning-rate")),
        (("--fsdp", "full_shard"), ("--fsdp", "accelerate launch")),
        (("--hub_token", "hf_x"), ("--hub-token", "HF_TOKEN")),
        (("--save_safetensors", "false"), ("--save-safetensors", "safetensors")),
        (("--logging_dir", "x"), ("--logging-dir", "TensorBoard")),
        (("--mlm_alpha", "1"), ("--mlm-alpha", "task classify")),
        (("--learning_rate",), ("--learning-rate", "expects a value")),
        (("--bf16", "maybe"), ("--bf16", "true or false", "maybe")),
        (("--push_to_hub", "me/it"), ("--hub-model-id me/it",)),
        (("--learning_rate", "high"), ("train.learning_rate", "'high'")),
        (("--bf16", "--fp16"), ("bf16 and fp16",)),
        (("--lr_scheduler_type", "constant", "--warmup_steps", "5"), ("skips the warmup", "constant_with_warmup")),
        (("--eval_strategy", "epoch", "--eval_steps", "3"), ("eval_steps does nothing",)),
        (("--eval_steps", "3", "--save_steps", "4"), ("save_steps is 4 and eval_steps is 3",)),
        (("--lora_r", "4"), ("method.r", "kind lora")),
        (("--task_name", "stsb"), ("regression",)),
        (("--task_name", "sst3"), ("'sst2'",)),
        (("--task_name", "yelp"), ("--data_dir",)),
        (("--task_name", "yelp", "--data_dir", "no-such-folder"), ("no-such-folder",)),
        (("--lr_scheduler_kwargs", "{a"), ("--lr-scheduler-kwargs",)),
        (("--model_type", "roberta"), ("model_type is roberta", "scratch:bert-tiny is a bert")),
        (("--precision", "bf16-true"), ("--precision", "--bf16")),
        (("--num_labels", "2"), ("--num-labels", "those of the data")),
        (("--optimizer.lr", "1"), ("--optimizer.lr", "did you mean --lr?")),
        (("--train.micro_batch_size", "1"), ("did you mean --per-device-train-batch-size?",)),
    ],
)
def test_what_can_not_be_meant_is_refused(
    hftune: Hftune, arguments: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    code, out, err = hftune("classify", "--data", "no-such-data", *arguments)
    assert code == 2 and not out
    assert mentions(err, *expected), err


@pytest.mark.parametrize("name", REMOVED)
def test_a_removed_name_is_reported_in_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    value = {"evaluation_strategy": "epoch", "warmup_ratio": 0.1}.get(name, 4 if "batch" in name else True)
    with pytest.MonkeyPatch.context() as patch:
        lines: list[str] = []
        patch.setattr("hftune.cli.terminal.note", lambda line, **_: lines.append(line))
        resolve_settings({name: value}, "classify")
    (line,) = lines
    assert f"--{name.replace('_', '-')}" in line and f"--{REMOVED[name].field.replace('_', '-')}" in line


@pytest.mark.parametrize(("on", "current"), [(True, "group_by_length"), (False, "random")])
def test_the_notice_of_a_removed_switch_names_its_value(on: bool, current: str) -> None:
    (notice,) = from_names({"group_by_length": on}, "classify").notices
    assert notice.endswith(f"train_sampling_strategy: {current}")


def test_names_of_other_tools_have_a_hint_of_their_own() -> None:
    """Each is unknown here, and each flag that its hint names exists."""
    flags = {*known_names(None), "output_dir", "resume", "output", "do_train", "data", "method", "model"}
    for name, hint in {**ELSEWHERE, **TRAINER_ARGUMENTS}.items():
        assert name not in flags
        named = re.findall(r"--([a-z][a-z0-9-]*)", re.sub(r"`[^`]*`", "", hint))
        assert all(flag.replace("-", "_") in flags for flag in named), hint


def test_glue_is_found_on_the_hub_or_in_a_folder(tmp_path: Path) -> None:
    found = typed("classify", "--task_name", "MRPC")
    assert found["data.dataset_name"] == "nyu-mll/glue" and found["data.dataset_config_name"] == "mrpc"
    assert (found["data.text_column_name"], found["data.text_pair_column_name"]) == ("sentence1", "sentence2")
    assert found["task.metrics"] == ["f1"]
    assert typed("classify", "--task_name", "cola")["train.metric_for_best_model"] == "mcc"
    assert (
        typed("classify", "--task_name", "cola", "--metric_for_best_model", "loss")["train.metric_for_best_model"]
        == "loss"
    )
    assert typed("classify", "--task_name", "sst2")["data.text_pair_column_name"] == "none"
    (tmp_path / "train.tsv").write_text("")
    folder = typed("classify", "--task_name", "mrpc", "--data_dir", str(tmp_path))
    assert folder["data.dataset_name"] == str(tmp_path) and folder["data.text_column_name"] == "#1 String"
    assert "data.dataset_config_name" not in folder


# ---- help ----


@pytest.mark.parametrize("command", ["classify", "joint", "boolq", "pretrain", "finetune", "distill", "train", "sweep"])
def test_help_is_short_and_help_all_is_complete(hftune: Hftune, command: str) -> None:
    code, short, _ = hftune(command, "--help")
    assert code == 0
    flags = [line for line in short.splitlines() if line.startswith("  -")]
    assert 20 <= len(flags) <= 40 and "--help-all" in short and "--learning-rate" in short
    code, everything, _ = hftune(command, "--help-all")
    assert code == 0 and "--adam-beta2" in everything and "--neftune-noise-alpha" in everything
    assert len(everything.splitlines()) > 2 * len(short.splitlines())
    assert "--fsdp" not in everything, "a refused field"
    listed = " ".join(everything.split())
    assert "default 0.999" in listed, "of --adam-beta2"
    assert "one of epoch, steps, best]" in listed, "of --save-strategy"


def test_help_is_the_docstring_of_the_setting(hftune: Hftune) -> None:
    from hftune.training.settings import TrainSection

    text = " ".join(hftune("classify", "--help")[1].split())
    sentence = " ".join(str(TrainSection.model_fields["learning_rate"].description).split())
    assert sentence in text


def test_a_study_refuses_the_checkpoint_of_one_run(hftune: Hftune) -> None:
    given = ("sweep", "--recipe", "classify/reviews", "--grid", "train.seed=1", "--dry-run")
    code, _, err = hftune(*given, "--resume_from_checkpoint", "runs/a")
    assert code == 2 and mentions(err, "--resume-from-checkpoint")


@pytest.mark.parametrize("name", sorted(cli.SUGGESTED))
def test_commands_that_people_look_for(hftune: Hftune, name: str) -> None:
    code, _, err = hftune(name, "x")
    assert code == 2 and f"hftune {cli.SUGGESTED[name]}" in err
    assert cli.SUGGESTED[name] in cli.COMMANDS


def test_env_is_doctor(hftune: Hftune) -> None:
    assert hftune("env", "--help")[1] == hftune("doctor", "--help")[1].replace("hftune doctor", "hftune env") or (
        "Check versions" in hftune("env", "--help")[1]
    )


def test_settings_commands_know_their_task() -> None:
    for name, task in (("classify", "classify"), ("joint", "joint"), ("finetune", "answer"), ("boolq", "classify")):
        command = cli.load_command(name)
        assert isinstance(command, SettingsCommand) and command.task == task


# ---- the commands of the course ----


@pytest.fixture(scope="module")
def yelp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small folder in the yelp format, without headers, and unlabeled lines."""
    home = tmp_path_factory.mktemp("course")
    (home / "yelp").mkdir()
    for seed, split in enumerate(("train", "valid", "test")):
        write_csv(home / "yelp" / f"{split}.csv", list(rows(64 if seed == 0 else 16, seed, ("1", "5"))), None)
    (home / "unlabeled.txt").write_text("".join(f"{text}\n" for _, text in rows(80, 9)))
    return home


COURSE = (
    "--model_type bert --model_name_or_path {model} --task_name yelp --do_train --do_eval --data_dir {data} "
    "--per_gpu_train_batch_size 32 --learning_rate 3e-5 --num_train_epochs 3 --max_seq_length 128 --output_dir {out} "
    "--evaluate_during_training --overwrite_output_dir"
)
JOINT = COURSE + " --logging_steps 50 --train_data_file {unlabeled} --block_size 128 --mlm_alpha 0.5 --line_by_line"


@pytest.mark.parametrize(("command", "line"), [("classify", COURSE), ("joint", JOINT)])
def test_the_commands_of_the_course_run_as_they_are(
    hftune: Hftune, yelp: Path, tmp_path: Path, command: str, line: str
) -> None:
    from transformers import BertConfig, BertForMaskedLM, BertTokenizer

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "food", "was", "great", "awful", "day", "on", "of"]
    BertTokenizer(vocab={word: place for place, word in enumerate(words)}).save_pretrained(tmp_path / "model")
    BertForMaskedLM(
        BertConfig(
            vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
        )
    ).save_pretrained(tmp_path / "model")
    values = {"model": tmp_path / "model", "data": yelp / "yelp", "out": tmp_path / "out"}
    arguments = line.format(**values, unlabeled=yelp / "unlabeled.txt").split()
    code, _, err = hftune(command, *arguments)
    assert code == 0, err
    recipe = load_recipe(tmp_path / "out")
    assert (recipe.train.learning_rate, recipe.train.per_device_train_batch_size) == (3e-5, 32)
    assert recipe.train.evaluates_every == (50 if command == "joint" else 10)
    assert recipe.data.max_seq_length == 128
    if command == "joint":
        assert (recipe.data.blocks, recipe.data.line_length, recipe.task.mlm_alpha) == (None, 128, 0.5)
    # Once more: the run is moved aside, and both are there.
    before = (tmp_path / "out" / "metrics.json").read_bytes()
    code, _, err = hftune(command, *arguments)
    assert code == 0, err
    moved = [path for path in tmp_path.iterdir() if path.name.startswith("out") and path.name != "out"]
    assert len(moved) == 1 and (moved[0] / "metrics.json").read_bytes() == before
    assert moved[0].name in err


def test_false_selects_what_is_done(hftune: Hftune, yelp: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    base = ["classify", "--data", str(yelp / "yelp"), "--model", "scratch:bert-tiny", "--vocab_size", "300"]
    code, _, err = hftune(*base, "--max_steps", "2", "--output_dir", str(out), "--do_predict", "False", "--json")
    assert code == 0, err
    assert list(json.loads((out / "metrics.json").read_text())["splits"]) == ["validation"]
    scored = ["classify", "--data", str(yelp / "yelp"), "--model", str(out), "--do_train", "False", "--do_eval"]
    code, text, err = hftune(*scored, "--do_predict", "False", "--json")
    assert code == 0, err
    assert list(json.loads(text)["splits"]) == ["validation"]
    assert hftune(*base, "--do_train", "False")[0] == 2
    code, text, err = hftune(*scored, "--json")
    assert code == 0 and list(json.loads(text)["splits"]) == ["validation"], "what is named is what is done"
    split = [str(yelp / "yelp" / f"{name}.csv") for name in ("train", "valid")]
    files = ["classify", "--model", str(out), "--train_file", split[0], "--validation_file", split[1]]
    code, text, err = hftune(*files, "--do_train", "False", "--do_eval", "--json")
    assert code == 0 and list(json.loads(text)["splits"]) == ["validation"], err
    code, text, err = hftune(*files[:3], "--test_file", split[1], "--do_train", "False", "--do_predict", "--json")
    assert code == 0, err
    document = json.loads(text)
    assert list(document["splits"]) == ["test"] and document["data"].endswith("valid.csv"), "no dataset was named"
    code, _, err = hftune(*files[:-2], "--do_train", "False", "--do_eval")
    assert (code, "--validation-file" in err) == (2, True), err
    again = err.rpartition("score all rows: `hftune ")[2].split("`")[0].split()
    code, text, err = hftune(*again, "--json")
    assert code == 0, err
    assert hftune(*scored[:-1], "--do_eval", "False", "--do_predict", "False")[0] == 2
    limits = ["--max_eval_samples", "6", "--max_predict_samples", "4", "--metrics", "quadratic_kappa"]
    both = ["--do_predict", *limits, "--output_dir", str(tmp_path / "scores"), "--json"]
    code, text, err = hftune(*scored, *both)
    assert code == 0, err
    assert json.loads(text) == json.loads((tmp_path / "scores" / "metrics.json").read_text())
    assert "quadratic_kappa" in json.loads(text)["splits"]["test"]
    for split, count in (("validation", 6), ("test", 4)):
        written = (tmp_path / "scores" / "predictions" / f"{split}.jsonl").read_text().splitlines()
        assert len(written) == count, "stratified, as in training"
        assert len({json.loads(line)["gold"] for line in written}) == 2
    assert hftune(*scored, *both)[0] == 2, "the folder is in use"


def test_resume_from_checkpoint_names_the_run(yelp: Path, tmp_path: Path) -> None:
    from hftune.cli.options import _where_to_resume

    run = tmp_path / "run"
    checkpoint = run / "checkpoints" / "checkpoint-4"
    checkpoint.mkdir(parents=True)
    (run / "recipe.yaml").write_text("")
    assert _where_to_resume(str(checkpoint), False, None) == (checkpoint, run)
    assert _where_to_resume(str(run), False, run) == (True, run)
    assert _where_to_resume("True", False, run) == (True, run)
    assert _where_to_resume("False", False, run) == (False, run)
    for path, output in ((str(tmp_path), None), (str(checkpoint), tmp_path / "other")):
        with pytest.raises(HftuneError):
            _where_to_resume(path, False, output)


def test_help_answers_at_once() -> None:
    """What it imports decides: neither the settings nor a framework."""
    program = (
        "import sys\nfrom hftune.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
        "print([name for name in ('pydantic', 'torch', 'hftune.config') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("task", crash_case.TASKS)
def test_train_runs_a_recipe_of_every_task(
    hftune: Hftune, task: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = crash_case.write_data(tmp_path_factory.mktemp("data"))
    file = tmp_path / "mine.yaml"
    file.write_text(recipe_yaml(crash_case.recipe(home, task)), encoding="utf-8")
    out = tmp_path / "run"
    code, _, err = hftune("train", str(file), "--max_steps", "2", "--output_dir", str(out), "--seed", "3")
    assert code == 0, err
    recipe = load_recipe(out)
    assert (recipe.task.kind, recipe.train.max_steps, recipe.train.seed) == (task, 2, 3)
    assert recipe.train.bf16 is False and recipe.train.fp16 is False, "what was chosen is stated"


def test_train_resumes_a_run_with_its_own_recipe(hftune: Hftune, yelp: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    data = ["--data", str(yelp / "yelp"), "--vocab_size", "300", "--max_steps", "2"]
    code, _, err = hftune("classify", "--model", "scratch:bert-tiny", *data, "--output_dir", out)
    assert code == 0, err
    for resumed in (("--output_dir", out, "--resume"), ("--resume_from_checkpoint", out)):
        code, _, err = hftune("train", *resumed)
        assert code == 0 and "complete already" in err, err


def test_train_needs_one_recipe(hftune: Hftune) -> None:
    assert hftune("train")[0] == 2
    code, _, err = hftune("train", "--output_dir", "no-such-run", "--resume")
    assert code == 2 and "hftune recipes ls" in err
    code, _, err = hftune("train", "classify/reviews", "--recipe", "classify/reviews")
    assert code == 2 and "named twice" in err


def test_a_grid_takes_names_alone(hftune: Hftune, yelp: Path) -> None:
    base = [
        "sweep",
        "--data",
        str(yelp / "yelp"),
        "--model",
        "scratch:bert-tiny",
        "--seeds",
        "1",
        "--dry-run",
        "--json",
    ]
    code, out, err = hftune(*base, "--grid", "lr=1e-3,2e-3", "--vocab_size", "300", "--max_steps", "2")
    assert code == 0, err
    assert "learning_rate=0.001" in out and "learning_rate=0.002" in out
    code, _, err = hftune(*base, "--grid", "lr=1e-5..1e-3")
    assert code == 2 and "--search" in err


@pytest.mark.parametrize("arguments", [("--do_train", "False"), ("--do_predict", "False"), ("--resume",)])
def test_several_methods_refuse_what_a_study_would_ignore(hftune: Hftune, arguments: tuple[str, ...]) -> None:
    code, _, err = hftune("boolq", "--method", "head,lora", "--output", "no-such-study", *arguments, "--dry-run")
    assert code == 2 and mentions(err, "one method")


@pytest.mark.parametrize(
    ("given", "fact"),
    [
        ({"use_peft": "False"}, "true or false"),
        ({"group_by_length": "False"}, "true or false"),
        ({"use_peft": True, "method": "full"}, "adapter"),
        ({"warmup_ratio": 5}, "ratio below 1"),
    ],
)
def test_values_that_would_mean_something_else(given: dict[str, Any], fact: str) -> None:
    with pytest.raises(HftuneError, match=fact):
        from_names(given, "classify")


def test_a_run_that_can_not_be_read_is_moved_aside_all_the_same(tmp_path: Path) -> None:
    """What was trained in its place must not fail because of it."""
    run = tmp_path / "a"
    run.mkdir()
    (run / "recipe.yaml").write_text("train: {epochs: 3}\n")
    moved = move_aside(run)
    update_moved_paths(moved, run)
    assert (moved / "recipe.yaml").read_text() == "train: {epochs: 3}\n" and not run.exists()


def test_pretraining_lists_the_settings_of_its_objective(hftune: Hftune) -> None:
    assert "--mlm-probability" in hftune("pretrain", "--objective", "mlm", "--help-all")[1]
    assert "--corruption-rate" in hftune("pretrain", "--help-all")[1]


def test_a_switch_of_the_command_takes_a_value(hftune: Hftune, yelp: Path, tmp_path: Path) -> None:
    base = ["classify", "--data", str(yelp / "yelp"), "--model", "scratch:bert-tiny", "--output", str(tmp_path / "new")]
    code, _, err = hftune(*base, "--vocab_size", "300", "--max_steps", "1", "--dry_run", "True", "--overwrite", "False")
    assert code == 0, err
    assert not (tmp_path / "new").exists()
