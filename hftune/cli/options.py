"""Options of the commands: every setting of a recipe by its name, and the few that are not settings.

Settings are read from the section classes, so that none is declared here again. ``--help`` shows those that have a
group there; ``--help-all`` shows all of them and every field of TrainingArguments.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperOption

from hftune.errors import HftuneError

if TYPE_CHECKING:
    from hftune.config.section import Flag
    from hftune.models.settings import ModelSection

WHAT, RUN = "Model, data and method", "The run"
"""Headings of ``--help``. The first one is copied from the section classes: importing pydantic is slow."""
ORDER = (WHAT, "Data", "Training", "Publishing", RUN)
DO = ("do_train", "do_eval", "do_predict")
"""Arguments of Hugging Face's scripts. hftune does all three unless one is false."""
RESUME_FROM = "resume_from_checkpoint"
NOT_SETTINGS = (*DO, RESUME_FROM)
"""Fields of TrainingArguments that a command handles itself."""
GIVEN = "hftune.given"
"""Key of the typed settings in a click context."""
SECTIONS = ("task", "data", "method", "train", "model", "hub")
TRUST = ("model.trust_remote_code", "model.trust_base_code")
USED = ("model.model_revision", *TRUST)
"""Settings of a command that loads a saved model, such as ``predict``."""
SHORT = {"-m": "--model", "-d": "--data"}
TRUE, FALSE = ("true", "yes", "1"), ("false", "no", "0")
Given = Mapping[str, str | bool]
"""Settings by name as they were typed; a switch without a value is true."""


def option(panel: str, metavar: str | None, help_text: str, *names: str, **limits: Any) -> Any:
    """One option. Its default is not shown, because the recipe may have another one."""
    return typer.Option(*names, metavar=metavar, help=help_text, rich_help_panel=panel, show_default=False, **limits)


_RECIPE = "A shipped recipe (hftune recipes ls), a YAML file, or a run to repeat."
_SEEDS = "Train once with each seed, as one group with mean ± std: 1,2,3 or 1-5."
_SET = "Any setting by its dotted key, such as train.weight_decay=0.01; can be repeated (hftune recipes schema)."
_OUTPUT = "The run directory; a new one below runs/ by default."
_OVERWRITE = "Move an existing run in --output aside (nothing is deleted) and train a new one."
_RESUME = "Continue from the last good checkpoint in --output."
_DRY_RUN = "Load and check everything, run one batch, estimate time and memory; train nothing."
_JSON = "Print the result as JSON on standard output."
RecipeName = Annotated[str | None, option(WHAT, "NAME|PATH", _RECIPE, "--recipe", "--config", "-r")]
Seeds = Annotated[str | None, option(RUN, "N,N,…", _SEEDS, "--seeds")]
Set = Annotated[list[str] | None, option(RUN, "KEY=VALUE", _SET, "--set", "-s")]
Output = Annotated[Path | None, option(RUN, "FOLDER", _OUTPUT, "--output", "--output-dir", "-o")]
Overwrite = Annotated[bool, option(RUN, None, _OVERWRITE, "--overwrite", "--overwrite-output-dir")]
Resume = Annotated[bool, option(RUN, None, _RESUME, "--resume")]
DryRun = Annotated[bool, option(RUN, None, _DRY_RUN, "--dry-run")]
Json = Annotated[bool, option(RUN, None, _JSON, "--json")]
Run = Annotated[str, typer.Argument(metavar="RUN", help="A run, a model folder, or a Hub id.", show_default=False)]
Split = Annotated[str | None, option(RUN, "NAME", "train, validation or test; all for a single file.", "--split")]
BatchSize = Annotated[int, option(RUN, "N", "Examples in one forward pass.", "--batch-size", min=1)]


def _refuse_existing(output: Path | None) -> Path | None:
    if output is not None and output.exists():
        raise HftuneError(f"{output} exists already", hint="name another file; nothing is overwritten")
    return output


NEW_FILE = {"callback": _refuse_existing}
"""Arguments of an option whose file must not exist yet."""
OutputFile = Annotated[Path | None, option(RUN, "FILE", "Write jsonl to this file.", "--output", "-o", **NEW_FILE)]
SHARED: dict[str, tuple[Any, bool | None]] = {
    "recipe": (RecipeName, None),
    "seeds": (Seeds, None),
    "sets": (Set, None),
    "output": (Output, None),
    "overwrite": (Overwrite, False),
    "resume": (Resume, False),
    "dry_run": (DryRun, False),
    "as_json": (Json, False),
}
"""Parameter name → option and default, for what every command that trains has besides settings."""


@dataclass(frozen=True)
class ParsedArguments:
    """The parsed command line of a command that trains."""

    task: str
    """The kind of task."""
    settings: dict[str, Any]
    """Settings by dotted key."""
    sets: list[str] | None
    """The values of --set."""
    recipe: str | None
    seeds: str | None
    output: Path | None
    overwrite: bool
    resume: bool | Path
    dry_run: bool
    as_json: bool
    do: dict[str, bool] = field(default_factory=dict)
    """Those of ``DO`` that were typed."""

    @property
    def model(self) -> str | None:
        """The model that was named."""
        return self._named("model.model_name_or_path")

    @property
    def data(self) -> str | None:
        """The data that was named."""
        return self._named("data.dataset_name")

    def _named(self, key: str) -> str | None:
        """A setting as it was typed, as a flag or with --set; what is wrong there is reported with the recipe."""
        from hftune.config.values import parse_sets

        found = {**self.settings, **dict(parse_sets(self.sets or ())[0])}.get(key)
        return None if found is None else str(found)


def command_group(help_text: str) -> typer.Typer:
    """A command with subcommands."""
    return typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None, help=help_text)


# ---- commands with settings ----

TaskOf = str | Callable[[Mapping[str, Any], Given], str | None] | None
"""The kind of task whose settings are options; or a function that finds it from the command's own options and the typed
settings."""


def settings_command(
    *, task: TaskOf = None, takes: Collection[str] = SECTIONS, help_task: str | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turn a function into a command. The function takes settings by dotted key; its other parameters are options.

    Args:
        task: The kind of task whose settings are options, or a function that finds it; None takes those of all.
        takes: Sections and dotted keys that have an effect on this command; other settings are refused.
        help_task: The kind of task whose settings its help shows, if ``task`` is not fixed.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def run(given: Given, values: dict[str, Any]) -> None:
            command(resolve_settings(given, _kind(task, values, given)), **values)

        return _command(command, run, {}, task=task, takes=takes, help_task=help_task)

    return decorate


def training_command(
    *, task: TaskOf, help_task: str | None = None, help_kinds: Mapping[str, str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turn a function that takes ``ParsedArguments`` into a command that trains; its other parameters are options.

    Args:
        task: The kind of task whose settings are options, or a function that finds it.
        help_task: The kind of task whose settings its help shows, if ``task`` is not fixed.
        help_kinds: Other kinds by the argument that chooses them.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def run(given: Given, values: dict[str, Any]) -> None:
            resume, output = values["resume"], values["output"]
            values["resume"], values["output"] = _where_to_resume(given.get(RESUME_FROM), resume, output)
            kind = _kind(task, values, given)
            assert kind is not None, "a command that trains has a task"
            shared = {name: values.pop(name) for name in SHARED}
            do = {name: _as_bool(name, given[name]) for name in DO if name in given}
            command(ParsedArguments(kind, resolve_settings(given, kind), do=do, **shared), **values)

        return _command(command, run, SHARED, task=task, takes=SECTIONS, help_task=help_task, help_kinds=help_kinds)

    return decorate


def _kind(task: TaskOf, values: Mapping[str, Any], given: Given) -> str | None:
    return task(values, given) if callable(task) else task


def _command(
    command: Callable[..., None],
    run: Callable[[Given, dict[str, Any]], None],
    shared: Mapping[str, tuple[Any, bool | None]],
    *,
    task: TaskOf,
    takes: Collection[str],
    help_task: str | None,
    help_kinds: Mapping[str, str] | None = None,
) -> Callable[..., None]:
    """A function from which typer reads the options of a command and those that it shares with others."""

    @functools.wraps(command)
    def called(context: typer.Context, **values: Any) -> None:
        run(context.meta[GIVEN], values)

    keyword = inspect.Parameter.KEYWORD_ONLY
    _, *own = inspect.signature(command, eval_str=True).parameters.values()
    parameters = [
        inspect.Parameter("context", keyword, annotation=typer.Context),
        *(parameter.replace(kind=keyword) for parameter in own),
        *(
            inspect.Parameter(name, keyword, annotation=annotation, default=default)
            for name, (annotation, default) in shared.items()
        ),
    ]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    fixed = None if callable(task) else task
    attributes = {"task": fixed, "takes": takes, "help_task": help_task or fixed, "help_kinds": help_kinds or {}}
    vars(called)["__signature__"] = inspect.Signature(parameters)
    vars(called)["command_class"] = type("SettingsOfTask", (SettingsCommand,), attributes)
    return called


def resolve_settings(given: Given, task: str | None) -> dict[str, Any]:
    """Settings as they were typed → dotted keys and values; prints a notice for each removed name."""
    from hftune.cli.terminal import note
    from hftune.pipeline.names import from_names, read_value

    values = {
        name: read_value(name, text, task) if isinstance(text, str) else text
        for name, text in given.items()
        if name not in NOT_SETTINGS
    }
    named = from_names(values, task, dashes=True)
    for line in named.notices:
        note(line, style="dim")
    return named.overrides


def used_model(name: str, typed: Mapping[str, Any]) -> ModelSection:
    """The model that a command uses, with the consent that was typed."""
    from hftune.models import settings as models

    keys = ("model_revision", "trust_remote_code", "trust_base_code")
    return models.used_model(name, *(typed.get(f"model.{key}") for key in keys))


def _as_bool(name: str, value: str | bool) -> bool:
    if isinstance(value, bool):
        return value
    if value.lower() in (*TRUE, *FALSE):
        return value.lower() in TRUE
    raise HftuneError(f"{_flag(name)} expects true or false; got {value!r}", hint=f"write {_flag(name)} False")


def _where_to_resume(
    checkpoint: str | bool | None, resume: bool, output: Path | None
) -> tuple[bool | Path, Path | None]:
    """Whether to resume, or from which checkpoint, and the run: ``--resume_from_checkpoint`` may name it alone."""
    if checkpoint is None or isinstance(checkpoint, bool) or checkpoint.lower() in (*TRUE, *FALSE):
        return resume or (checkpoint is not None and _as_bool(RESUME_FROM, checkpoint)), output
    from hftune.pipeline.request import find_checkpoint

    return find_checkpoint(Path(checkpoint), output)


class SettingsCommand(TyperCommand):
    """A command whose options are the settings of a recipe, and those that it declares."""

    task: str | None = None
    help_task: str | None = None
    help_kinds: Mapping[str, str]
    takes: Collection[str] = SECTIONS

    @property
    def takes_arguments(self) -> bool:
        """Whether it has arguments besides options, so that an option takes one value only."""
        return not all(isinstance(parameter, TyperOption) for parameter in self.params)

    def takes_setting(self, name: str) -> bool:
        """Whether the setting of this name, with underscores, has an effect on this command."""
        from hftune.pipeline.names import known_names

        if name in NOT_SETTINGS:
            return "train" in self.takes
        return name in known_names(self.task) and any(self._takes(path) for path in self._paths(name))

    def _takes(self, path: str) -> bool:
        return path in self.takes or path.partition(".")[0] in self.takes

    def _paths(self, name: str) -> list[str]:
        """The settings that a name can mean: it can belong to different ones in different tasks."""
        from hftune.pipeline.names import DATA_DIR, TASK_NAME
        from hftune.recipe import Recipe

        if name in (TASK_NAME, DATA_DIR):
            return ["data"]
        tasks = [None, *Recipe.section_kinds("task")] if self.task is None else [self.task]
        return [Recipe.spellings(task).get(name, f"train.{name}") for task in tasks]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Remove the settings from the arguments, and let click parse the rest."""
        if any(arg in ("-h", "--help", "--help-all") for arg in args):
            for arg in args:  # not parsed yet
                self.help_task = self.help_kinds.get(arg.partition("=")[2] or arg, self.help_task)
            print(self._help(ctx, everything="--help-all" in args))
            ctx.exit()
        # Settings are not options of click: which ones exist depends on the task, which may itself be an option.
        given, rest = self._split(args)
        remaining = super().parse_args(ctx, rest)
        ctx.meta[GIVEN] = given
        if set(self.takes) != set(SECTIONS):
            self._refuse_without_effect(ctx, given)
        return remaining

    def _split(self, args: Sequence[str]) -> tuple[dict[str, str | bool], list[str]]:
        """Settings by name as they were typed (a switch without a value is true), and the other arguments."""
        options = [option for option in self.params if isinstance(option, TyperOption)]
        own = {name: option for option in options for name in (*option.opts, *option.secondary_opts)}
        given: dict[str, str | bool] = {}
        rest: list[str] = []
        left = list(args)
        while left:
            token = left.pop(0)
            if token == "--":
                return given, [*rest, token, *left]
            name, equals, value = token.partition("=")
            name = name if name in own else SHORT.get(name, name)
            if name in own or not name.startswith("--"):
                rest.append(token)
                if name in own and not equals and not own[name].is_flag and left:
                    rest.append(left.pop(0))
                elif name in own and left and left[0] in ("True", "False") and left.pop(0) == "False":
                    rest.pop()  # as HfArgumentParser takes it: --overwrite_output_dir False
                continue
            setting, typed = self._setting(name[2:].replace("-", "_"), value if equals else None, left)
            if setting in given and given[setting] != typed:
                raise HftuneError(
                    f"{name} was given twice, with {given[setting]!r} and {typed!r}", hint="leave one of them out"
                )
            given[setting] = typed
        return given, rest

    def _setting(self, name: str, value: str | None, left: list[str]) -> tuple[str, str | bool]:
        """The setting's name and value; takes the value from the arguments that are left."""
        from hftune.pipeline.names import is_switch, known_names, takes_many, unknown

        known = {*known_names(self.task), *known_names(None), *NOT_SETTINGS}
        if name not in known and name.startswith("no_") and name[3:] in known and is_switch(name[3:], None):
            return name[3:], False
        if name not in known:
            mine = [flag.lstrip("-") for option in self.params for flag in option.opts]
            raise unknown(name, [*filter(self.takes_setting, known), *mine], _flag(name))
        if value is not None:
            return name, value
        follows = left[0] if left and not _is_flag(left[0]) else None
        if name == "push_to_hub" and follows is not None and "/" in follows:
            raise HftuneError(
                f"--push-to-hub is true or false; got {follows!r}",
                hint=f"name the repository: --hub-model-id {follows}",
            )
        if name in DO or (name != RESUME_FROM and is_switch(name, self.task)):
            takes = follows is not None and follows.lower() in (*TRUE, *FALSE)
            if follows is not None and not takes and not self.takes_arguments:
                raise HftuneError(
                    f"{_flag(name)} expects true or false; got {follows!r}",
                    hint=f"write {_flag(name)}, or {_flag(f'no_{name}')}",
                )
            return name, left.pop(0) if takes else True
        if name == RESUME_FROM:
            return name, left.pop(0) if follows is not None else True
        if follows is None:
            raise HftuneError(f"{_flag(name)} expects a value", hint="write it after the flag, or --flag=VALUE")
        taken = [left.pop(0)]
        # As HfArgumentParser takes lists: --target_modules query value.
        while takes_many(name, self.task) and not self.takes_arguments and left and not _is_flag(left[0]):
            taken.append(left.pop(0))
        return name, taken[0] if len(taken) == 1 else ",".join(taken)

    def _refuse_without_effect(self, ctx: Any, given: Given) -> None:
        """Refuse settings, also those of --set, that have no effect on this command."""
        paths = {_flag(name): self._paths(name) for name in given}
        paths |= {f"--set {text}": [text.partition("=")[0].strip()] for text in ctx.params.get("sets") or ()}
        for typed, found in paths.items():
            if not any(map(self._takes, found)):
                raise HftuneError(
                    f"{typed} has no effect on {ctx.command_path}",
                    hint=f"leave it out; {ctx.command_path} takes settings of {', '.join(self.takes)}",
                )

    def _help(self, ctx: Any, *, everything: bool) -> str:
        """The help text, plain: rich panels would double its time."""
        formatter = ctx.make_formatter()
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        for group, rows in self._groups(ctx, everything).items():
            with formatter.section(group):
                formatter.write_dl(rows)
        formatter.write_paragraph()
        further = "Every other setting and every field of TrainingArguments is a flag too, such as --adam_beta2 0.98"
        if "train" not in self.takes:
            further = "Other settings of these sections are flags too"
        formatter.write_text(
            "A flag is written with dashes or underscores."
            if everything
            else f"{further}: `{ctx.command_path} --help-all` lists them."
        )
        return str(formatter.getvalue()).rstrip("\n")

    def _groups(self, ctx: Any, everything: bool) -> dict[str, list[tuple[str, str]]]:
        """Heading → options with their help: settings, and the command's own among them."""
        groups: dict[str, list[tuple[str, str]]] = {heading: [] for heading in ORDER}
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx)
            if record is not None:
                groups.setdefault(vars(option).get("rich_help_panel") or RUN, []).append(record)
        for group, flag, text in setting_rows(self.help_task, self.takes, everything):
            groups.setdefault(group, []).append((flag, text))
        return {heading: rows for heading, rows in groups.items() if rows}


# ---- help ----


def setting_rows(task: str | None, takes: Collection[str], everything: bool) -> Iterator[tuple[str, str, str]]:
    """Group, flag and help of each setting. With ``everything`` also those without a group, and values and defaults.

    A setting that a command names by its dotted key is always shown.
    """
    from hftune.config.section import choices, default_text, flag_of
    from hftune.config.training_arguments import argument_fields
    from hftune.recipe import Recipe
    from hftune.training.settings import REFUSED

    paths, shown = Recipe.spellings(task), set()
    if everything and "train" in takes:
        yield from _script_rows()
    if "method" in takes:
        kinds = ", ".join(Recipe.section_kinds("method"))
        yield WHAT, "--method KIND", f"Which parameters are trained: {kinds}. --use-peft is --method lora."
    for section, section_type in Recipe.owners(task):
        for name, declared in section_type.model_fields.items():
            flag, path = flag_of(declared), f"{section}.{name}"
            listed = path in takes or (section in takes and (everything or flag.group))
            if name == "kind" or paths[name] != path or path in shown or not listed:
                continue
            shown.add(path)
            text = " ".join((declared.description or "").split())
            if everything:
                text += _values(choices(declared), default_text(declared))
            yield flag.group or f"More settings of {section}", _shown(name, flag), text
    if everything and "train" in takes:
        declared_names = {path.rpartition(".")[2] for path in shown}
        for name, argument in argument_fields().items():
            if name not in REFUSED and name not in declared_names:
                default = "null" if argument.default is None else str(argument.default)
                text = argument.help.replace("%%", "%") + _values(argument.choices, default)
                yield "Other fields of TrainingArguments", _flag(name), text


def _values(choices: Sequence[str], default: str) -> str:
    """The choices and the default of a setting: `` [one of no, steps; default steps]``."""
    facts = [f"one of {', '.join(choices)}"] if choices else []
    facts += [f"default {default}"] if default not in ("null", "required") else []
    return f" [{'; '.join(facts)}]" if facts else ""


def _script_rows() -> Iterator[tuple[str, str, str]]:
    """Flags of Hugging Face's scripts that set several settings here, or none."""
    from hftune.data.settings import GLUE, YELP

    yield WHAT, "--use-peft", "The same as --method lora."
    yield WHAT, "--task-name NAME", f"A task of GLUE ({', '.join(GLUE)}), or {YELP} (docs/settings.md)."
    yield WHAT, "--data-dir FOLDER", "The folder of the data, with --task-name or alone."
    for name in DO:
        yield RUN, _flag(name), "Accepted as in Hugging Face's scripts; False skips this step."
    yield RUN, "--resume-from-checkpoint PATH", "Continue a run, or one of its checkpoints."


def _shown(name: str, flag: Flag) -> str:
    """All spellings of a flag and what its value is: ``--lr, --learning-rate X``."""
    from hftune.pipeline.names import is_switch, value_types

    spelled = [f"--{one}" for one in (*flag.names, name.replace("_", "-"))]
    spelled = [*(short for short, long in SHORT.items() if long in spelled), *spelled]
    kind = value_types(name, None)[0]
    value = flag.metavar or {int: "N", float: "X", str: "NAME"}.get(kind, "VALUE")
    return ", ".join(spelled) + ("" if is_switch(name, None) else f" {value}")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _is_flag(token: str) -> bool:
    """Whether an argument is a flag; a negative number is not."""
    return token.startswith("-") and not token[1:2].isdigit() and token != "-"
