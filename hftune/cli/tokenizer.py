"""``hftune tokenizer``: learn a vocabulary from text, and see what one does to a text.

hftune tokenizer train --corpus prose --vocab-size 1000 --output my-tokenizer
hftune tokenizer show my-tokenizer "how is this split?"
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hftune.cli import terminal
from hftune.cli.options import Json
from hftune.errors import HftuneError

if TYPE_CHECKING:
    from hftune.data.stream import TextSplit
    from hftune.models.vocabulary_facts import Compression

SAMPLE = 200
"""Characters of the sample where nobody gives one."""

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Learn a tokenizer from text, and look at one.")

Corpus = Annotated[
    str,
    typer.Option(
        "--corpus",
        "-c",
        metavar="NAME|PATH",
        help="The text: an embedded name, a txt, csv, jsonl or parquet file, a folder of split files, or a Hub id.",
        show_default=False,
    ),
]
Kind = Annotated[str, typer.Option("--kind", metavar="bpe|wordpiece|unigram", help="Byte-level BPE is lossless.")]
VocabSize = Annotated[int, typer.Option("--vocab-size", metavar="N", min=1, help="Tokens, special ones among them.")]
Special = Annotated[
    list[str] | None,
    typer.Option("--special", metavar="TOKEN", help="A further special token; may be given often.", show_default=False),
]
MinFrequency = Annotated[
    int | None,
    typer.Option(
        "--min-frequency",
        metavar="N",
        min=1,
        help="Times that a pair must occur to become a token; 2 where not given. Not for unigram.",
        show_default=False,
    ),
]
Documents = Annotated[
    str | None,
    typer.Option(
        "--documents", metavar="lines|paragraphs|file", help="What one document of a text file is.", show_default=False
    ),
]
TextColumn = Annotated[
    str | None, typer.Option("--text-column", metavar="NAME", help="Column of the text.", show_default=False)
]
Subset = Annotated[
    str | None,
    typer.Option("--subset", metavar="NAME", help="Configuration of a Hub dataset.", show_default=False),
]
Output = Annotated[
    Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where the tokenizer goes.", show_default=False)
]
Sample = Annotated[
    str | None, typer.Option("--sample", metavar="TEXT", help="Show how this is split.", show_default=False)
]


@app.command("train")
def train_tokenizer(
    corpus: Corpus,
    output: Output,
    kind: Kind = "bpe",
    vocab_size: VocabSize = 8000,
    special: Special = None,
    min_frequency: MinFrequency = None,
    documents: Documents = None,
    text_column: TextColumn = None,
    subset: Subset = None,
    sample: Sample = None,
    as_json: Json = False,
) -> None:
    """Learn a tokenizer from the training split of a text, of any size, and save it for AutoTokenizer."""
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise HftuneError(f"{output} is already there", hint="Name another folder with --output.")
    if kind == "unigram" and min_frequency is not None:
        raise HftuneError("a unigram vocabulary has no minimum frequency", hint="leave --min-frequency out")

    from hftune.models.vocabulary import Learning, train_vocabulary
    from hftune.quiet import quiet_libraries

    quiet_libraries()
    learning = Learning(vocab_size, min_frequency or 2, tuple(special or ()))
    splits = _splits(corpus, documents=documents, text_column_name=text_column, dataset_config_name=subset)
    with terminal.err().status("Learning from the text …"):
        made = train_vocabulary(kind, splits["train"].texts, learning)
    _save(made, output)
    with terminal.err().status("Looking at what it does …"):
        facts = _facts(made, splits, sample)
    result = {"tokenizer": str(output), "kind": kind, "corpus": corpus, **facts}
    if as_json:
        terminal.show_json(result)
        return
    _show(result)
    objective = "clm" if made.eos_token is not None else "mlm"
    terminal.say(f"Saved in {output}. Train with it: hftune pretrain --objective {objective} --tokenizer {output}")


@app.command("show")
def show_tokenizer(
    name: Annotated[str, typer.Argument(metavar="TOKENIZER", help="A folder, a run or a Hub id.")],
    text: Annotated[str | None, typer.Argument(metavar="[TEXT]", help="What to split.", show_default=False)] = None,
    corpus: Annotated[
        str | None,
        typer.Option("--corpus", "-c", metavar="NAME|PATH", help="Count what it does to a text.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a tokenizer's size and longest tokens, how it splits a text, and how well it compresses one."""
    from hftune.config.model import ModelSection
    from hftune.models.load import load_tokenizer
    from hftune.quiet import quiet_libraries

    quiet_libraries()
    section = ModelSection(model_name_or_path="scratch:mingpt", tokenizer_name=name)
    made = load_tokenizer(section, (), padded=False)
    splits = {} if corpus is None else _splits(corpus)
    result = {"tokenizer": name, **_facts(made, splits, text)}
    if as_json:
        terminal.show_json(result)
    else:
        _show(result)


def _splits(corpus: str, **settings: Any) -> dict[str, TextSplit]:
    from pydantic import ValidationError

    from hftune.config.data import CorpusData
    from hftune.data.stream import open_splits

    try:
        section = CorpusData(dataset_name=corpus, **settings)
    except ValidationError as error:
        wrong = error.errors()[0]
        raise HftuneError(
            f"--{wrong['loc'][0]} {wrong['input']!r}: {wrong['msg']}", hint="use lines, paragraphs or file"
        ) from error
    return open_splits(section)[0]


def _save(tokenizer: Any, folder: Path) -> None:
    """Beside its place first, so that it is there whole or not at all."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        staged = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        try:
            tokenizer.save_pretrained(staged / folder.name)
            if folder.exists():
                folder.rmdir()
            (staged / folder.name).rename(folder)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    except OSError as error:
        raise HftuneError(f"can't write {folder}: {error.strerror}", hint="Name another folder.") from error


def _facts(tokenizer: Any, splits: dict[str, TextSplit], sample: str | None) -> dict[str, Any]:
    from hftune.models.vocabulary_facts import compression, longest_tokens, split_text

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
            f"{name}: {part['bytes_per_token']:.3f} bytes a token, {part['tokens']:,} tokens, "
            f"{part['unknown_rate']:.4%} unknown{of}"
        )
    terminal.say("longest: " + " ".join(repr(token) for token in result["longest_tokens"]))
    if result["sample"]["tokens"]:
        terminal.say("sample:  " + "│".join(result["sample"]["tokens"]))
