"""``hftune tokenizer``: train a tokenizer on text, and show how one splits a text.

hftune tokenizer train --corpus prose --vocab-size 1000 --output my-tokenizer
hftune tokenizer show my-tokenizer "how is this split?"
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hftune.cli import terminal
from hftune.cli.options import RUN, Json, command_group, option, settings_command
from hftune.errors import HftuneError
from hftune.files import new_folder, refuse_in_use

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hftune.data.corpus import TextSplit
    from hftune.models.tokenizer_stats import Compression

SAMPLE = 200
"""Default number of characters of the sample."""

app = command_group("Train a tokenizer on text, or show one.")

_CORPUS = "The text: an embedded name, a txt, csv, jsonl or parquet file, a folder of split files, or a Hub id."
_FREQUENCY = "How often a pair must occur to become a token; 2 by default. Not for unigram."
Corpus = Annotated[str, option(RUN, "NAME|PATH", _CORPUS, "--corpus", "-c")]
Output = Annotated[Path, option(RUN, "FOLDER", "Folder of the tokenizer.", "--output", "-o")]
Kind = Annotated[str, option(RUN, "bpe|wordpiece|unigram", "Byte-level BPE is lossless; bpe by default.", "--kind")]
VocabSize = Annotated[
    int, option(RUN, "N", "Vocabulary size, special tokens included; 8000 by default.", "--vocab-size", min=1)
]
Special = Annotated[
    list[str] | None, option(RUN, "TOKEN", "A further special token; can be repeated.", "--special-token")
]
MinFrequency = Annotated[int | None, option(RUN, "N", _FREQUENCY, "--min-frequency", min=1)]
TEXT_SETTINGS = tuple(
    f"data.{name}"
    for name in (
        *("text_column_name", "documents", "dataset_config_name", "dataset_revision", "delimiter", "sheet_name"),
        *("train_file", "validation_file", "test_file", "train_split_name", "validation_split_name", "test_split_name"),
    )
)
"""Settings that decide which text is read, and how."""
Sample = Annotated[str | None, option(RUN, "TEXT", "Text whose tokens are shown.", "--sample")]


@settings_command(task="clm", takes=TEXT_SETTINGS)
def train_tokenizer(
    settings: dict[str, Any],
    corpus: Corpus,
    output: Output,
    kind: Kind = "bpe",
    vocab_size: VocabSize = 8000,
    special: Special = None,
    min_frequency: MinFrequency = None,
    sample: Sample = None,
    as_json: Json = False,
) -> None:
    """Train a tokenizer on the training split of a text of any size, and save it for AutoTokenizer."""
    refuse_in_use(output)
    if kind == "unigram" and min_frequency is not None:
        raise HftuneError("a unigram vocabulary has no minimum frequency", hint="leave --min-frequency out")

    from hftune.models.tokenizers import train_tokenizer as train
    from hftune.progress import quiet_libraries

    quiet_libraries()
    splits = _splits(corpus, settings)
    with terminal.err().status("Training the tokenizer …"):
        made = train(
            kind, splits["train"].texts, vocab_size, min_frequency=min_frequency or 2, special_tokens=special or ()
        )
    with new_folder(output) as staged:
        made.save_pretrained(staged)
    with terminal.err().status("Measuring the tokenizer …"):
        facts = _facts(made, splits, sample)
    result = {"tokenizer": str(output), "kind": kind, "corpus": corpus, **facts}
    if as_json:
        terminal.show_json(result)
        return
    _show(result)
    objective = "clm" if made.eos_token is not None else "mlm"
    words = ["hftune", "pretrain", "--objective", objective, "--corpus", corpus, "--tokenizer", str(output)]
    terminal.say(f"Saved in {output}. Train with it: `{shlex.join(words)}`")


app.command("train", cls=vars(train_tokenizer)["command_class"])(train_tokenizer)


@settings_command(task="clm", takes=TEXT_SETTINGS)
def show_tokenizer(
    settings: dict[str, Any],
    name: Annotated[str, typer.Argument(metavar="TOKENIZER", help="A folder, a run or a Hub id.")],
    text: Annotated[str | None, typer.Argument(metavar="[TEXT]", help="Text to tokenize.", show_default=False)] = None,
    corpus: Annotated[
        str | None, option(RUN, "NAME|PATH", "Text on which the compression is measured.", "--corpus", "-c")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a tokenizer's size and longest tokens, how it splits a text, and how well it compresses one."""
    from hftune.models.tokenizer_stats import saved_tokenizer

    made: Any = saved_tokenizer(name) or _load(name)
    if settings and corpus is None:
        flag = next(iter(settings)).removeprefix("data.").replace("_", "-")
        raise HftuneError(f"--{flag} was given but no --corpus", hint="add --corpus NAME|PATH")
    splits = {} if corpus is None else _any_texts(corpus, settings)
    result = {"tokenizer": name, **_facts(made, splits, text)}
    if as_json:
        terminal.show_json(result)
    else:
        _show(result)


def _load(name: str) -> Any:
    """The tokenizer of a Hub id, or of a folder without a tokenizer.json."""
    from hftune.models.load import load_tokenizer
    from hftune.models.settings import ModelSection
    from hftune.progress import quiet_libraries

    quiet_libraries()
    return load_tokenizer(ModelSection(model_name_or_path="scratch:mingpt", tokenizer_name=name), (), padded=False)


app.command("show", cls=vars(show_tokenizer)["command_class"])(show_tokenizer)


def _any_texts(name: str, settings: Mapping[str, Any]) -> dict[str, TextSplit]:
    """The splits of a text; of labeled rows their texts, of questions the questions and the answers."""
    from functools import partial

    from hftune.data.corpus import TextSplit, in_memory
    from hftune.data.load import load
    from hftune.data.locate import as_path
    from hftune.data.questions import load_questions
    from hftune.data.recognize import recognize
    from hftune.data.settings import LabeledData, QuestionData

    kind = recognize(name)
    if settings or as_path(name) is None or kind == "corpus":
        return _splits(name, settings)
    if kind is None:
        raise HftuneError(
            f"{name} is not recognized as text, labeled rows or questions: no column has a usual name",
            hint="name the column of the text with --text-column",
        )
    texts: dict[str, list[str]] = {}
    if kind == "labeled":
        labeled = load(LabeledData(dataset_name=name))
        texts = {split: labeled.texts(split) for split in labeled.named}
    else:
        asked = load_questions(QuestionData(dataset_name=name))
        texts = {split: [*part.questions, *(part.answers or ())] for split, part in asked.named.items()}
    return {split: TextSplit(name, partial(in_memory, found)) for split, found in texts.items()}


def _splits(corpus: str, settings: Mapping[str, Any]) -> dict[str, TextSplit]:
    from hftune.config.section import expect
    from hftune.data.corpus import open_splits
    from hftune.data.settings import CorpusData
    from hftune.pipeline.request import resolve_recipe

    recipe = resolve_recipe(None, {**settings, "data.dataset_name": corpus}, task="clm")
    return open_splits(expect(recipe.data, CorpusData))[0]


def _facts(tokenizer: Any, splits: dict[str, TextSplit], sample: str | None) -> dict[str, Any]:
    from hftune.models.tokenizer_stats import compression, longest_tokens, split_text

    found: dict[str, Compression] = {name: compression(tokenizer, split.texts()) for name, split in splits.items()}
    shown = sample or next((text[:SAMPLE] for split in splits.values() for text in split.texts()), "")
    return {
        "vocabulary": len(tokenizer),
        "special_tokens": list(tokenizer.all_special_tokens),
        "compression": {name: part.as_dict() for name, part in found.items()},
        "longest_tokens": longest_tokens(tokenizer),
        "sample": {"text": shown, "tokens": split_text(tokenizer, shown) if shown else []},
    }


def _show(result: dict[str, Any]) -> None:
    terminal.say(f"{result['vocabulary']:,} tokens; special: {' '.join(result['special_tokens'])}", style="bold")
    for name, part in result["compression"].items():
        of = "" if part["whole"] else f" (the first {part['bytes'] / 1e6:.0f} MB)"
        terminal.say(
            f"{name}: {part['bytes_per_token']:.3f} bytes per token, {part['tokens']:,} tokens, "
            f"{part['unknown_rate']:.4%} unknown{of}"
        )
    terminal.say("longest: " + " ".join(repr(token) for token in result["longest_tokens"]))
    if result["sample"]["tokens"]:
        terminal.say("sample:  " + "│".join(result["sample"]["tokens"]))
