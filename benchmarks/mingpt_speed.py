"""How fast minGPT pretrains and answers: against a stock GPT-2 under a stock Trainer, and against the machine's peak.

    python benchmarks/mingpt_speed.py [--corpus births] [--compile] [--updates 8] [--repeats 3] [--clock wall|cpu]

Training: real tokens a second, padding not counted, of the default minGPT pretraining through hftune, and of
GPT2LMHeadModel in the same shape under transformers' Trainer, every row padded to the block. Both read the same
corrupted documents, as many an update, and take turns; medians over the turns are compared, the first updates of each
turn left out. The share of the peak counts, a real token, six operations a weight, embeddings left out, and those of
causal attention, over the best matrix product measured between the turns; `--compile` compiles minGPT, and its first
turn only compiles. Answering: the dev questions of births in batches with a cache, and one by one without, by the same
weights; the answers must be equal.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from hftune.assets import embedded_data_dir
from hftune.config import Recipe, load_recipe
from hftune.models.answerer import Answerer, sequences
from hftune.pipeline import assemble
from hftune.quiet import quiet_libraries
from hftune.runs.directory import RunDir
from hftune.tasks import TASKS
from hftune.training import fit
from hftune.training.progress import Silent
from hftune.training.utilisation import matmul_peak

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
WARM = 3
"""Updates at the start of each turn that are not counted."""
LONGEST_ANSWER = 12
BLOCK = 128


class Stopwatch(TrainerCallback):  # type: ignore[misc]
    """Seconds and real tokens from the end of the first few updates to the end of the last, loading included."""

    def __init__(self, clock: Callable[[], float], collate: Callable[[Any], Any]) -> None:
        self.clock = clock
        self.collate = collate
        self.sizes: list[int] = []
        self.begun = self.seconds = 0.0

    def __call__(self, rows: Sequence[Any]) -> Any:
        """The collator, counting the tokens of each batch as it goes by."""
        batch = self.collate(rows)
        self.sizes.append(int((batch["labels"] != -100).sum()) + len(rows))  # the first token of a row is no label
        return batch

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start the clock after the first updates; read it after each of the others."""
        if state.global_step == WARM:
            self.begun = self.clock()
        self.seconds = self.clock() - self.begun
        self.updates = state.global_step

    @property
    def rate(self) -> float:
        """Tokens a second; the loader may be a batch ahead, so batches and updates are matched by their order."""
        return sum(self.sizes[WARM : self.updates]) / self.seconds


def recipe(corpus: str, rows: int, updates: int, compiled: bool) -> Recipe:
    return load_recipe(
        None,
        {
            "task.kind": "span",
            "data.name": corpus,
            "model.name": "scratch:mingpt",
            "train.batch_size": rows,
            "train.max_steps": WARM + updates,
            "train.eval_steps": WARM + updates,
            "train.compile": compiled,
            "train.device": "cpu",
        },
    )


def ours(made: Recipe, folder: Path, clock: Callable[[], float]) -> tuple[float, int]:
    """Tokens a second of hftune, and the operations that each token takes."""
    trainer = assemble(made, RunDir(folder), Silent()).trainer
    watch = Stopwatch(clock, trainer.data_collator)
    trainer.data_collator = watch
    trainer.add_callback(watch)
    config, weights = trainer.model.config, trainer.model.num_parameters(exclude_embeddings=True)
    fit(trainer)
    length = sum(watch.sizes) / len(watch.sizes) / made.train.batch_size
    return watch.rate, round(6 * weights + 6 * config.num_hidden_layers * config.hidden_size * length)


def stock(made: Recipe, folder: Path, clock: Callable[[], float]) -> float:
    """Tokens a second of transformers' GPT-2 and Trainer as they come, on the same rows padded to the block."""
    task = TASKS[made.task.kind](made)
    data = task.load_data()
    tokenizer = task.load_tokenizer(data)
    inputs = task.prepare(data, tokenizer)
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=BLOCK, n_embd=256, n_layer=4, n_head=8)
    rows = [inputs.train[0, row] for row in range(len(inputs.train_lengths))]

    def pad(batch: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        short = inputs.collator(batch)
        missing = (0, BLOCK - short["input_ids"].shape[1])
        ids = torch.nn.functional.pad(short["input_ids"], missing, value=tokenizer.pad_token_id)
        labels = torch.nn.functional.pad(short["labels"], missing, value=-100)
        return {"input_ids": ids, "attention_mask": (ids != tokenizer.pad_token_id).long(), "labels": labels}

    watch = Stopwatch(clock, pad)
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=made.train.max_steps,
        per_device_train_batch_size=made.train.batch_size,
        save_strategy="no",
        logging_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
    )
    Trainer(
        model=GPT2LMHeadModel(config), args=arguments, train_dataset=rows, data_collator=watch, callbacks=[watch]
    ).train()
    return watch.rate


def training(asked: argparse.Namespace, folder: Path) -> None:
    made = recipe(asked.corpus, asked.rows, asked.updates, asked.compile)
    clock = CLOCKS[asked.clock]
    rates: dict[str, list[float]] = {"hftune": [], "stock": []}
    peaks: list[float] = []
    for turn in range(asked.repeats + asked.compile):
        rate, operations = ours(made, folder / f"ours-{turn}", clock)
        if turn or not asked.compile:
            rates["hftune"].append(rate)
            rates["stock"].append(stock(made, folder / f"stock-{turn}", clock))
            peaks.append(peak(clock))
    medians = {name: statistics.median(found) for name, found in rates.items()}
    how = "compiled" if asked.compile else "not compiled"
    print(f"{asked.corpus}, {asked.rows} documents an update, {asked.updates} updates a turn, minGPT {how}")
    for name, rate in medians.items():
        print(f"{name:>7}: {rate:9,.0f} tokens a second (turns: {', '.join(f'{one:,.0f}' for one in rates[name])})")
    print(f"  ratio: {medians['hftune'] / medians['stock']:.2f}")
    share = operations * medians["hftune"] / max(peaks)
    print(f"   peak: {max(peaks) / 1e9:,.0f} billion operations a second, of which hftune uses {share:.2f}")


def peak(clock: Callable[[], float]) -> float:
    """Operations a second of a large matrix product; by this process's own time where the machine is shared."""
    if clock is time.perf_counter:
        return matmul_peak(torch.device("cpu"), torch.float32)
    left = torch.ones(1024, 1024)
    seconds = []
    for _ in range(4):
        begun = clock()
        left @ left
        seconds.append(clock() - begun)
    return 2 * 1024**3 / min(seconds)


def answering(asked: argparse.Namespace) -> None:
    made = recipe("births", 8, 1, False)
    task = TASKS[made.task.kind](made)
    data = task.load_data()
    tokenizer = task.load_tokenizer(data)
    torch.manual_seed(0)
    answerer = Answerer(task.build_model(data, tokenizer).model.eval(), tokenizer, LONGEST_ANSWER)
    lines = (embedded_data_dir() / "births/birth_dev.tsv").read_text(encoding="utf-8").splitlines()
    questions = [line.split("\t")[0] for line in lines][: asked.questions]
    clock = CLOCKS[asked.clock]
    seconds: dict[str, list[float]] = {"batched, cached": [], "one by one, no cache": []}
    for _ in range(asked.repeats):
        begun = clock()
        together = [answer.text for answer in answerer.answers(questions)]
        seconds["batched, cached"].append(clock() - begun)
        begun = clock()
        alone = [one_by_one(answerer, question) for question in questions]
        seconds["one by one, no cache"].append(clock() - begun)
        assert together == alone, "both decode greedily, with the same weights"
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    print(f"{len(questions)} questions, {LONGEST_ANSWER} tokens each")
    for name, taken in medians.items():
        print(f"{name:>20}: {taken:7.2f} s")
    print(f"{'ratio':>20}: {medians['one by one, no cache'] / medians['batched, cached']:.1f}")


@torch.inference_mode()
def one_by_one(answerer: Answerer, question: str) -> str:
    """The plain way: the whole sequence again for each token."""
    end = answerer.tokenizer.mask_token_id
    (ids, asked), *_ = sequences(answerer.tokenizer, [question])
    while len(ids) - asked < answerer.longest:
        logits = answerer.model(input_ids=torch.tensor([ids]), use_cache=False).logits
        ids = [*ids, int(logits[0, -1].argmax())]
        if ids[-1] == end:
            break
    return str(answerer.tokenizer.decode([one for one in ids[asked:] if one != end])).strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default="births")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--updates", type=int, default=8)
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--only", choices=["training", "answering"])
    asked = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    quiet_libraries()
    if asked.only != "answering":
        with tempfile.TemporaryDirectory() as folder:
            training(asked, Path(folder))
    if asked.only != "training":
        answering(asked)


if __name__ == "__main__":
    main()
