"""``hftune generate``: generate text from prompts with a language model.

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

from rich.text import Text

from hftune.cli.options import (
    RUN,
    USED,
    BatchSize,
    Json,
    OutputFile,
    Run,
    option,
    settings_command,
    used_model,
)
from hftune.cli.terminal import note, out, visible
from hftune.errors import HftuneError
from hftune.sanitize import json_text

if TYPE_CHECKING:
    from hftune.models.generator import Continuation, OnToken, Sampling, TextGenerator

CHUNK = 1024
"""Prompts that are sorted by length together."""
UNFINISHED = "\ufffd"
"""What an incomplete character decodes to."""

_HOW = "Decoding"
_LENGTH = "Maximum number of new tokens; 100, or what fits into the context, by default."
_TEMPERATURE = "Sampling temperature; without sampling, the most likely token is taken."
_TOP_P = "Sample among the most likely tokens that together have this probability."
_PENALTY = "Above 1, tokens that occurred before become less likely."
_SLIDING = "When the context is full, keep its second half and continue."
_FILE = "One prompt per line (blank lines are skipped), or jsonl with prompt."
Prompts = Annotated[list[str] | None, option(RUN, "TEXT", "The prompt; can be repeated.", "--prompt", "-p")]
InputFile = Annotated[Path | None, option(RUN, "FILE", _FILE, "--file", "-f")]
MaxNewTokens = Annotated[int | None, option(_HOW, "N", _LENGTH, "--max-new-tokens")]
Temperature = Annotated[float | None, option(_HOW, "X", _TEMPERATURE, "--temperature")]
TopK = Annotated[int | None, option(_HOW, "N", "Sample among the N most likely tokens.", "--top-k")]
TopP = Annotated[float | None, option(_HOW, "P", _TOP_P, "--top-p")]
RepetitionPenalty = Annotated[float, option(_HOW, "X", _PENALTY, "--repetition-penalty")]
Samples = Annotated[int, option(_HOW, "N", "Number of texts to generate for each prompt.", "--samples", "-n", min=1)]
Seed = Annotated[int, option(_HOW, "N", "Seed of the sampling.", "--seed", min=0)]
SlidingWindow = Annotated[bool, option(_HOW, None, _SLIDING, "--sliding-window")]


@settings_command(takes=USED)
def generate(
    settings: dict[str, Any],
    run: Run,
    prompt: Prompts = None,
    file: InputFile = None,
    output: OutputFile = None,
    max_new_tokens: MaxNewTokens = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    repetition_penalty: RepetitionPenalty = 1.0,
    samples: Samples = 1,
    seed: Seed = 0,
    sliding_window: SlidingWindow = False,
    batch_size: BatchSize = 16,
    as_json: Json = False,
) -> None:
    """Generate text from prompts, with the log-probability of what is generated.

    Greedy without --temperature, --top-k and --top-p. One jsonl line per text when piped.
    """
    if prompt and file is not None:
        raise HftuneError("both --prompt and --file were given", hint="leave one of them out")
    prompts = list(_from_file(file)) if file is not None else list(prompt or [""])
    if not prompts:
        raise HftuneError(f"{file} has no prompts", hint="give one prompt per line")
    model = used_model(run, settings)

    from hftune.models.generator import Sampling
    from hftune.progress import quiet_libraries

    sampling = Sampling(max_new_tokens, temperature, top_k, top_p, repetition_penalty, seed, sliding_window)
    sampling.check()
    if sampling.greedy and samples > 1:
        raise HftuneError(
            "without sampling, all samples of a prompt are the same", hint="add --temperature, --top-k or --top-p"
        )
    quiet_libraries()
    generator = _load_generator(run, model)
    if output is None and not as_json and out().is_terminal:
        _on_terminal(generator, prompts, sampling, samples)
        return
    rows = _rows(generator, prompts, sampling, samples, batch_size)
    if output is None:
        for row in rows:
            sys.stdout.write(json_text(row) + "\n")
        return
    from hftune.files import write_jsonl

    written = list(rows)
    write_jsonl(output, written)
    note(f"{len(written)} texts in {output}")


def _load_generator(run: str, settings: Any) -> TextGenerator:
    from hftune.models.causal import load_saved_lm
    from hftune.models.generator import TextGenerator

    model, tokenizer, facts = load_saved_lm(run, settings)
    return TextGenerator(model, tokenizer, document_start=facts.get("document_start"))


def _rows(
    generator: TextGenerator, prompts: list[str], sampling: Sampling, samples: int, batch_size: int
) -> Iterator[dict[str, Any]]:
    """One row per continuation; prompts are generated in chunks."""
    for start in range(0, len(prompts), CHUNK):
        written = generator.generate(
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


def _on_terminal(generator: TextGenerator, prompts: list[str], sampling: Sampling, samples: int) -> None:
    """Stream each text, one after the other."""
    for place, prompt in enumerate(prompts):
        for sample in range(samples):
            out().print(Text(visible(prompt), style="bold"), end="", soft_wrap=True)
            on_token = _stream_printer(generator, prompt)
            ((one,),) = generator.generate([prompt], sampling, on_token=on_token, first=place, first_sample=sample)
            end = "ended by the model" if one.ended else "stopped at the maximum length"
            out().print()
            note(f"  {one.tokens} tokens, log-probability {one.log_probability:.2f}, {end}", style="dim")


def _stream_printer(generator: TextGenerator, prompt: str) -> OnToken:
    """A callback that prints the text of each new token."""
    before, shown = generator.encode(prompt), 0

    def show(ids: list[int]) -> None:
        nonlocal shown
        # An incomplete character is printed once its last byte is there.
        whole = generator.decode(ids, after=before).rstrip(UNFINISHED)
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
            raise HftuneError(f"{file}, line {number}: not JSON", hint='write {"prompt": "…"} on each line') from error
        if not isinstance(row, dict) or not isinstance(row.get("prompt"), str):
            raise HftuneError(
                f"{file}, line {number}: no string under 'prompt'", hint='write {"prompt": "…"} on each line'
            )
        yield row["prompt"]
