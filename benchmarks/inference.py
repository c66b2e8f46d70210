"""Prediction and answer generation with hftune compared with transformers' pipeline and with a plain decoding loop.

python benchmarks/inference.py                  # both cases
python benchmarks/inference.py answers --quick  # one case, tiny models: checks that it runs

prediction    10,000 texts labeled by a saved classifier. Both load the model once, before the turns; the labels of at
              most one text in 1,000 may differ (ties).
answers       The validation questions of births, batched with a key-value cache and one by one without a cache.
              Both decode greedily with the same random weights and must give equal answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from harness import Case, Contestant, Goal, Scale, Timing, main, timed
from training import span_recipe
from transformers import pipeline
from workloads import Prepared, classify_recipe, texts, write_dataset

from hftune.files import embedded_data_dir
from hftune.models.qa import QuestionAnswerer, sequences
from hftune.models.settings import ModelSection
from hftune.pipeline.inference import predictor

PIPELINE = 'pipeline("text-classification", batch_size=32)'
PLAIN = "one by one, without a cache"
ANSWER_TOKENS = 12  # random weights never end an answer early, so all have this length


def predictions(folder: Path, scale: Scale) -> Mapping[str, Contestant]:
    data = write_dataset(folder / "data", "sentences", train=scale.of(1000, least=64))
    prepared = Prepared(classify_recipe(data, scale, 128))
    saved = folder / "model"
    prepared.task.save(prepared.model().eval(), prepared.tokenizer, prepared.data, saved)
    inputs = [text for _, text in texts("sentences", scale.of(10_000, least=100), seed=1)]
    _, predict = predictor(str(saved), ModelSection(model_name_or_path=str(saved)))
    stock = pipeline("text-classification", model=str(saved), device="cpu")
    labels: dict[str, list[str]] = {}

    def ours() -> Timing:
        rows = [{"text": text} for text in inputs]
        return timed(len(inputs), lambda: labels.update(ours=[answer.label for answer in predict(rows, 64)]))

    def theirs() -> Timing:
        def run() -> None:
            labels["theirs"] = [answer["label"] for answer in stock(inputs, batch_size=32, truncation=True)]

        timing = timed(len(inputs), run)
        pairs = zip(labels["theirs"], labels.get("ours", labels["theirs"]), strict=True)
        assert sum(one != other for one, other in pairs) <= len(inputs) / 1000, "labels differ in more than ties"
        return timing

    return {"hftune": ours, PIPELINE: theirs}


def answers(folder: Path, scale: Scale) -> Mapping[str, Contestant]:
    prepared = Prepared(span_recipe(scale))
    answerer = QuestionAnswerer(prepared.model().eval(), prepared.tokenizer, ANSWER_TOKENS)
    lines = (embedded_data_dir() / "births/birth_dev.tsv").read_text(encoding="utf-8").splitlines()
    questions = [line.split("\t")[0] for line in lines][: scale.of(100, least=4)]
    found: dict[str, list[str]] = {}

    def contestant(name: str, answer: Callable[[Sequence[str]], list[str]]) -> Timing:
        timing = timed(len(questions), lambda: found.update({name: answer(questions)}))
        assert len(set(map(tuple, found.values()))) == 1, "greedy decoding with the same weights gave other answers"
        return timing

    return {
        "hftune": lambda: contestant("ours", lambda qs: [answer.text for answer in answerer.answer(qs)]),
        PLAIN: lambda: contestant("plain", lambda qs: [one_by_one(answerer, question) for question in qs]),
    }


@torch.inference_mode()
def one_by_one(answerer: QuestionAnswerer, question: str) -> str:
    """Greedy decoding that runs the whole sequence again for every token."""
    end = answerer.tokenizer.mask_token_id
    (ids, prompt_length), *_ = sequences(answerer.tokenizer, [question])
    while len(ids) - prompt_length < answerer.max_answer_tokens:
        logits = answerer.model(input_ids=torch.tensor([ids]), use_cache=False).logits
        ids = [*ids, int(logits[0, -1].argmax())]
        if ids[-1] == end:
            break
    return str(answerer.tokenizer.decode([one for one in ids[prompt_length:] if one != end])).strip()


CASES = (
    Case("prediction", "prediction of 10,000 texts", "texts", (Goal(PIPELINE, least=2.5),), predictions, repeats=2),
    Case(
        "answers",
        "birth-place evaluation, batched with a cache",
        "questions",
        (Goal(PLAIN, least=15),),
        answers,
        warm_ups=1,
    ),
)

if __name__ == "__main__":
    main(CASES)
