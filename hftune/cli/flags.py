"""Flags of the commands that train: every setting of a recipe by its name, and what a command adds to them.

The settings are read off the section classes (``hftune.config.names``), so nothing is declared here twice. ``--help``
shows those that have a group there, ``--help-all`` all of them, and every field of TrainingArguments.

@training_command(task="joint")
def joint(typed: Typed) -> None: …
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperOption

from hftune.cli import options
from hftune.errors import HftuneError

if TYPE_CHECKING:
    from hftune.config.section import Flag

DO = ("do_train", "do_eval", "do_predict")
"""What Hugging Face's scripts are told to do; hftune does all of it unless one is false."""
RESUME_FROM = "resume_from_checkpoint"
GIVEN = "hftune.given"
"""Where a context keeps the settings that were typed."""
NOT_SETTINGS = (*DO, RESUME_FROM)
"""Fields of TrainingArguments that say what is done, not how."""
SECTIONS = ("task", "data", "method", "train", "model", "hub")
ORDER = (options.WHAT, "Data", "Training", "Publishing", options.RUN)
"""The first headings of ``--help``."""
SHORT = {"-m": "--model", "-d": "--data"}
TRUE, FALSE = ("true", "yes", "1"), ("false", "no", "0")


@dataclass(frozen=True)
class Typed:
    """What was typed after a command that trains."""

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
    """Which of ``DO`` were typed, and their values."""
    others: dict[str, Any] = field(default_factory=dict)
    """The command's own flags."""

    @property
    def model(self) -> str | None:
        """The model that was named."""
        return self.settings.get("model.model_name_or_path")

    @property
    def data(self) -> str | None:
        """The data that was named."""
        return self.settings.get("data.dataset_name")


SHARED: dict[str, Any] = {
    "recipe": options.RecipeName,
    "seeds": options.Seeds,
    "sets": options.Set,
    "output": options.Output,
    "overwrite": options.Overwrite,
    "resume": options.Resume,
    "dry_run": options.DryRun,
    "as_json": options.Json,
}
"""Parameter name → the flag, for what every command has that is not a setting."""
SWITCHES = ("overwrite", "resume", "dry_run", "as_json")


Given = Mapping[str, str | bool]
"""Settings by name as they were typed; a switch without a value is true."""


def settings_command(
    annotations: Mapping[str, Any],
    *,
    task: str | None = None,
    takes_arguments: bool = False,
    sections: Sequence[str] = SECTIONS,
    help_task: str | None = None,
) -> Callable[[Callable[[dict[str, Any], Given], None]], Callable[..., None]]:
    """Make a command of a function that takes the values of its own flags, and the settings that were typed.

    Args:
        annotations: The command's own flags and arguments by parameter name.
        task: The kind of task whose settings are flags; None takes those of all.
        takes_arguments: Whether it has arguments besides flags, so that a flag takes one value only.
        sections: The sections of a recipe whose settings its help shows.
        help_task: The kind of task whose settings its help shows, where ``task`` is not fixed.
    """
    parameters = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=False if name in SWITCHES else None, annotation=annotation
        )
        for name, annotation in {"context": typer.Context, **annotations}.items()
    ]

    def decorate(command: Callable[[dict[str, Any], Given], None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**values: Any) -> None:
            context: typer.Context = values.pop("context")
            command(values, context.meta[GIVEN])

        run.__annotations__ = {"context": typer.Context, **annotations}  # what typer reads the flags from
        vars(run)["__signature__"] = inspect.Signature(parameters)
        vars(run)["command_class"] = type(
            "SettingsOfTask",
            (SettingsCommand,),
            {
                "task": task,
                "takes_arguments": takes_arguments,
                "sections": tuple(sections),
                "help_task": help_task or task,
            },
        )
        return run

    return decorate


def command_class(command: Callable[..., None]) -> type[TyperCommand] | None:
    """What ``typer`` must make of a command; None for one without settings."""
    return vars(command).get("command_class")


def training_command(
    *,
    task: str | Callable[[Mapping[str, Any]], str],
    own: Mapping[str, Any] | None = None,
    takes_arguments: bool = False,
    help_task: str | None = None,
) -> Callable[[Callable[[Typed], None]], Callable[..., None]]:
    """Make a command that trains of a function that takes what was typed.

    Args:
        task: The kind of task, whose settings are flags; or what finds it in the command's own flags.
        own: Further flags by parameter name.
        takes_arguments: Whether it has arguments besides flags.
        help_task: The kind of task whose settings its help shows, where ``task`` is not fixed.
    """
    fixed = task if isinstance(task, str) else None

    def decorate(command: Callable[[Typed], None]) -> Callable[..., None]:
        @settings_command({**(own or {}), **SHARED}, task=fixed, takes_arguments=takes_arguments, help_task=help_task)
        @functools.wraps(command)
        def run(values: dict[str, Any], given: Given) -> None:
            kind = task if isinstance(task, str) else task(values)
            shared = {name: values.pop(name) for name in SHARED}
            command(_typed(given, kind, shared, values))

        return run

    return decorate


def _typed(given: Given, task: str, shared: dict[str, Any], others: dict[str, Any]) -> Typed:
    do = {name: _as_bool(name, given[name]) for name in DO if name in given}
    resume, output = _where_to_resume(given.get(RESUME_FROM), shared.pop("resume"), shared.pop("output"))
    settings = resolve_settings({name: value for name, value in given.items() if name not in NOT_SETTINGS}, task)
    return Typed(settings=settings, resume=resume, output=output, do=do, others=others, **shared)


def resolve_settings(given: Given, task: str | None) -> dict[str, Any]:
    """Flags that stand for settings, as dotted keys and values; says which spelling is out of date."""
    from hftune.cli.terminal import note
    from hftune.config.names import from_names, read_value

    values = {name: read_value(name, text, task) if isinstance(text, str) else text for name, text in given.items()}
    named = from_names(values, task, dashes=True)
    for line in named.notices:
        note(line, style="dim")
    return named.overrides


def _as_bool(name: str, value: str | bool) -> bool:
    if isinstance(value, bool):
        return value
    if value.lower() in (*TRUE, *FALSE):
        return value.lower() in TRUE
    shown = f"--{name.replace('_', '-')}"
    raise HftuneError(f"{shown} expects true or false; got {value!r}", hint=f"write {shown} or {shown} False")


def _where_to_resume(
    checkpoint: str | bool | None, resume: bool, output: Path | None
) -> tuple[bool | Path, Path | None]:
    """Whether to resume, or from which checkpoint, and the run: ``--resume_from_checkpoint`` may name it alone."""
    if checkpoint is None or isinstance(checkpoint, bool) or checkpoint.lower() in (*TRUE, *FALSE):
        return resume or (checkpoint is not None and _as_bool(RESUME_FROM, checkpoint)), output
    path = Path(checkpoint)
    run = next((folder for folder in (path, *path.parents) if (folder / "recipe.yaml").is_file()), None)
    if run is None or not path.is_dir():
        raise HftuneError(
            f"--resume-from-checkpoint expects a run or one of its checkpoints; {checkpoint!r} is neither",
            hint="name RUN or RUN/checkpoints/checkpoint-N",
        )
    if output is not None and output.resolve() != run.resolve():
        raise HftuneError(
            f"--resume-from-checkpoint is in the run {run}, but --output-dir is {output}",
            hint="leave --output-dir out: a resumed run is continued where it is",
        )
    return (True if path == run else path), run


class SettingsCommand(TyperCommand):
    """A command whose flags are the settings of a recipe, beside those that it declares."""

    task: str | None = None
    """The kind of task whose settings are flags; None takes those of all."""
    help_task: str | None = None
    """The kind of task whose settings the help shows."""
    takes_arguments = False
    sections: tuple[str, ...] = SECTIONS

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the settings out of the arguments, then let the others be parsed as ever."""
        if any(arg in ("-h", "--help", "--help-all") for arg in args):
            kinds = {span: span for span in ("span", "clm", "mlm")} if self.task is None else {}
            asked = [kinds[arg.partition("=")[2] or arg] for arg in args if (arg.partition("=")[2] or arg) in kinds]
            self.help_task = asked[-1] if asked else self.help_task
            print(self._help(ctx, everything="--help-all" in args))
            ctx.exit()
        given, rest = self._split(args)
        remaining = super().parse_args(ctx, rest)
        ctx.meta[GIVEN] = given
        return remaining

    def _split(self, args: Sequence[str]) -> tuple[dict[str, str | bool], list[str]]:
        """Settings by name as they were typed (a switch without a value is true), and the other arguments."""
        own = {name: option for option in self.params if isinstance(option, TyperOption) for name in _spelled(option)}
        given: dict[str, str | bool] = {}
        rest: list[str] = []
        left = list(args)
        while left:
            token = left.pop(0)
            if token == "--":
                return given, [*rest, token, *left]
            name, equals, value = token.partition("=")
            name = SHORT.get(name, name)
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
        from hftune.config.names import is_switch, known_names, takes_many, unknown

        known = {*known_names(self.task), *known_names(None), *NOT_SETTINGS}
        if name not in known and name.startswith("no_") and name[3:] in known and is_switch(name[3:], None):
            return name[3:], False
        if name not in known:
            mine = [flag.lstrip("-") for option in self.params for flag in option.opts]
            raise unknown(name, [*known, *mine], f"--{name.replace('_', '-')}")
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
                    f"--{name.replace('_', '-')} expects true or false; got {follows!r}",
                    hint=f"write --{name.replace('_', '-')}, or --no-{name.replace('_', '-')}",
                )
            return name, left.pop(0) if takes else True
        if name == RESUME_FROM:
            return name, left.pop(0) if follows is not None else True
        if follows is None:
            raise HftuneError(
                f"--{name.replace('_', '-')} expects a value", hint="write it after the flag, or --flag=VALUE"
            )
        taken = [left.pop(0)]
        # As HfArgumentParser takes lists: --target_modules query value.
        while takes_many(name, self.task) and not self.takes_arguments and left and not _is_flag(left[0]):
            taken.append(left.pop(0))
        return name, taken[0] if len(taken) == 1 else ",".join(taken)

    def _help(self, ctx: Any, *, everything: bool) -> str:
        """The help text, plain: rich panels would double its time."""
        formatter = ctx.make_formatter()
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        for group, rows in self._groups(ctx, everything).items():
            with formatter.section(group):
                formatter.write_dl(rows)
        formatter.write_paragraph()
        formatter.write_text(
            "A flag is written with dashes or underscores."
            if everything
            else f"Every other setting and every field of TrainingArguments is a flag too, such as --adam_beta2 0.98: "
            f"`{ctx.command_path} --help-all` lists them."
        )
        return str(formatter.getvalue()).rstrip("\n")

    def _groups(self, ctx: Any, everything: bool) -> dict[str, list[tuple[str, str]]]:
        """Heading → the flags below it with their help: settings and the command's own, where they belong together."""
        groups: dict[str, list[tuple[str, str]]] = {heading: [] for heading in ORDER}
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx)
            if record is not None:
                groups.setdefault(vars(option).get("rich_help_panel") or options.RUN, []).append(record)
        for group, flag, text in setting_rows(self.help_task, self.sections, everything):
            groups.setdefault(group, []).append((flag, text))
        return {heading: rows for heading, rows in groups.items() if rows}


def setting_rows(task: str | None, sections: Sequence[str], everything: bool) -> Iterator[tuple[str, str, str]]:
    """Group, flag and help of each setting; those without a group only where everything is wanted."""
    from hftune.config.glue import GLUE, YELP
    from hftune.config.kinds import flag_of, owners, spellings
    from hftune.config.train import REFUSED
    from hftune.config.training_arguments import argument_fields

    paths, shown = spellings(task), set()
    if everything and "train" in sections:
        yield options.WHAT, "--use-peft", "The same as --method lora."
        yield options.WHAT, "--task-name NAME", f"A task of GLUE ({', '.join(GLUE)}), or {YELP} (docs/settings.md)."
        yield options.WHAT, "--data-dir FOLDER", "The folder of the data, with --task-name or alone."
        for name in DO:
            yield (
                options.RUN,
                f"--{name.replace('_', '-')}",
                "Accepted as in Hugging Face's scripts; False leaves it out.",
            )
        yield options.RUN, "--resume-from-checkpoint PATH", "Continue a run, or one of its checkpoints."
    if "method" in sections:
        yield options.WHAT, "--method KIND", _method_help()
    for section, section_type in owners(task):
        for name, declared in section_type.model_fields.items() if section in sections else ():
            flag, path = flag_of(declared), f"{section}.{name}"
            if name == "kind" or paths[name] != path or path in shown or not (everything or flag.group):
                continue
            shown.add(path)
            text = " ".join((declared.description or "").split())
            yield flag.group or f"More settings of {section}", _shown(name, flag), text
    if everything and "train" in sections:
        declared_names = {path.rpartition(".")[2] for path in shown}
        for name, argument in argument_fields().items():
            if name not in REFUSED and name not in declared_names:
                yield (
                    "Other fields of TrainingArguments",
                    f"--{name.replace('_', '-')}",
                    argument.help.replace("%%", "%"),
                )


def _shown(name: str, flag: Flag) -> str:
    """All spellings of a flag and what its value is: ``--lr, --learning-rate X``."""
    from hftune.config.names import is_switch, value_types

    spelled = [f"--{one}" for one in (*flag.names, name.replace("_", "-"))]
    spelled = [*(short for short, long in SHORT.items() if long in spelled), *spelled]
    kind = value_types(name, None)[0]
    value = flag.metavar or {int: "N", float: "X", str: "NAME"}.get(kind, "VALUE")
    return ", ".join(spelled) + ("" if is_switch(name, None) else f" {value}")


def _method_help() -> str:
    from hftune.config.kinds import section_kinds

    return f"Which parameters are trained: {', '.join(section_kinds('method'))}. --use-peft is --method lora."


def _spelled(option: TyperOption) -> list[str]:
    return [*option.opts, *option.secondary_opts]


def _is_flag(token: str) -> bool:
    """Whether an argument is a flag; a negative number is not."""
    return token.startswith("-") and not token[1:2].isdigit() and token != "-"
