"""``hftune generate``: let a language model go on from prompts.

hftune generate runs/prose --prompt "There once was"
hftune generate runs/prose --prompt "There once was" --temperature 0.8 --top-p 0.9 --samples 3 --seed 1
hftune generate runs/prose --file prompts.txt --output written.jsonl
"""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from hftune.cli import options
from hftune.cli.terminal import note, out, visible
from hftune.errors import HftuneError
from hftune.escapes import json_text

if TYPE_CHECKING:
    from hftune.models.writer import Continuation, Sampling, Told, Writer

CHUNK = 1024
"""Prompts that are sorted by length together."""
UNFINISHED = "\ufffd"
"""What a character that is not whole yet decodes to."""

_HOW = "How tokens are chosen"


Prompt = Annotated[
    list[str] | None,
    typer.Option("--prompt", "-p", metavar="TEXT", help="What to go on from; may be given often.", show_default=False),
]
PromptFile = Annotated[
    Path | None,
    typer.Option(
        "--file",
        "-f",
        metavar="FILE",
        help="One prompt a line, blank ones left out, or jsonl with prompt.",
        show_default=False,
    ),
]
OutputFile = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write jsonl here, not to the terminal.", show_default=False),
]
MaxNewTokens = Annotated[
    int | None,
    options.option(
        _HOW, "N", "Most new tokens; 100, or what fits into the context, where not given.", "--max-new-tokens"
    ),
]
Temperature = Annotated[
    float | None,
    options.option(
        _HOW, "X", "Draw tokens, flattened above 1 and sharpened below; the likeliest otherwise.", "--temperature"
    ),
]
TopK = Annotated[int | None, options.option(_HOW, "N", "Draw among the N likeliest tokens.", "--top-k")]
TopP = Annotated[
    float | None,
    options.option(_HOW, "P", "Draw among the likeliest tokens that together have this probability.", "--top-p"),
]
Penalty = Annotated[
    float, options.option(_HOW, "X", "Above 1, tokens that have occurred become less likely.", "--repetition-penalty")
]
Samples = Annotated[int, typer.Option("--samples", "-n", metavar="N", min=1, help="Continuations of each prompt.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Seed of the draws.")]
Sliding = Annotated[
    bool, options.option(_HOW, None, "Go on with the latter half of the context when it is full.", "--sliding-window")
]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="Continuations that are written together.")]


def generate(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run, a model folder, or a Hub id.")],
    prompt: Prompt = None,
    file: PromptFile = None,
    output: OutputFile = None,
    max_new_tokens: MaxNewTokens = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    repetition_penalty: Penalty = 1.0,
    samples: Samples = 1,
    seed: Seed = 0,
    sliding_window: Sliding = False,
    batch_size: BatchSize = 16,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = None,
    trust_base_code: options.TrustBaseCode = None,
    as_json: options.Json = False,
) -> None:
    """Generate text from prompts, with the log-probability of what is generated.

    With no --temperature, --top-k or --top-p the likeliest token is taken each time. One jsonl line a text when piped.
    """
    if prompt and file is not None:
        raise HftuneError("both --prompt and --file were given", hint="leave one of them out")
    if output is not None and output.exists():
        raise HftuneError(f"{output} exists already", hint="name another file; nothing is overwritten")
    prompts = list(_from_file(file)) if file is not None else list(prompt or [""])
    if not prompts:
        raise HftuneError(f"{file} holds no prompts", hint="give one prompt a line")

    from hftune.config.consent import used_model
    from hftune.models.writer import Sampling
    from hftune.quiet import quiet_libraries

    sampling = Sampling(max_new_tokens, temperature, top_k, top_p, repetition_penalty, seed, sliding_window)
    sampling.check()
    if sampling.greedy and samples > 1:
        raise HftuneError(
            "without drawing, all samples of a prompt are the same", hint="add --temperature, --top-k or --top-p"
        )
    quiet_libraries()
    settings = used_model(run, revision, trust_remote_code, trust_base_code)
    writer = _writer(run, settings)
    if output is None and not as_json and out().is_terminal:
        _on_terminal(writer, prompts, sampling, samples)
        return
    rows = _rows(writer, prompts, sampling, samples, batch_size)
    if output is None:
        for row in rows:
            sys.stdout.write(json_text(row) + "\n")
        return
    from hftune.files import write_jsonl

    written = list(rows)
    write_jsonl(output, written)
    note(f"{len(written)} texts in {output}")


def _writer(run: str, settings: Any) -> Writer:
    from hftune.models.causal import load_saved_lm
    from hftune.models.writer import Writer

    model, tokenizer, facts = load_saved_lm(run, settings)
    return Writer(model, tokenizer, document_start=facts.get("document_start"))


def _rows(
    writer: Writer, prompts: list[str], sampling: Sampling, samples: int, batch_size: int
) -> Iterator[dict[str, Any]]:
    """A row for each continuation; prompts of a chunk are written together."""
    for start in range(0, len(prompts), CHUNK):
        written = writer.write(
            prompts[start : start + CHUNK], sampling, samples=samples, batch_size=batch_size, first=start
        )
        for of_prompt in written:
            for number, one in enumerate(of_prompt):
                yield as_row(one, number)


def as_row(one: Continuation, sample: int) -> dict[str, Any]:
    """A continuation as one jsonl line."""
    return {
        "prompt": one.prompt,
        "sample": sample,
        "text": one.text,
        "log_probability": one.log_probability,
        "tokens": one.tokens,
        "ended": one.ended,
    }


def _on_terminal(writer: Writer, prompts: list[str], sampling: Sampling, samples: int) -> None:
    """Each text as it is written, one after the other."""
    for place, prompt in enumerate(prompts):
        for sample in range(samples):
            out().print(Text(visible(prompt), style="bold"), end="", soft_wrap=True)
            told = _as_it_comes(writer, prompt)
            ((one,),) = writer.write([prompt], sampling, told=told, first=place, first_sample=sample)
            end = "the model's own end" if one.ended else "cut off"
            out().print()
            note(f"  {one.tokens} tokens, log-probability {one.log_probability:.2f}, {end}", style="dim")


def _as_it_comes(writer: Writer, prompt: str) -> Told:
    """Shows what each new token adds to the text after a prompt."""
    before, shown = writer.encode(prompt), 0

    def show(ids: list[int]) -> None:
        nonlocal shown
        # Half a character waits for the rest of it.
        whole = writer.decode(ids, after=before).rstrip(UNFINISHED)
        out().print(Text(visible(whole[shown:])), end="", soft_wrap=True)
        shown = max(shown, len(whole))

    return show


def _from_file(file: Path) -> Iterator[str]:
    try:
        content = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise HftuneError(f"{file} is not UTF-8 (byte {error.start})", hint="convert it to UTF-8 first") from error
    except OSError as error:
        raise HftuneError(f"can't read {file}: {error.strerror}", hint="check the path") from error
    for number, line in enumerate(content.split("\n"), start=1):
        if not line.strip():
            continue
        if file.suffix not in (".jsonl", ".json"):
            yield line.removesuffix("\r")
            continue
        try:
            row = jsonlib.loads(line)
        except ValueError as error:
            raise HftuneError(f"{file}, line {number}: not JSON", hint='write {"prompt": "…"} a line') from error
        if not isinstance(row, dict) or not isinstance(row.get("prompt"), str):
            raise HftuneError(f"{file}, line {number}: no string under 'prompt'", hint='write {"prompt": "…"} a line')
        yield row["prompt"]
