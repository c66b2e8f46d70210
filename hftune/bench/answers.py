"""Answering the validation questions of births: in batches with a cache, and one by one without, to equal answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from hftune.assets import embedded_data_dir
from hftune.bench.case import Case, Goal, Scale, Side, Turn, timed
from hftune.bench.pretraining import span_recipe
from hftune.bench.training import Prepared
from hftune.models.answerer import Answerer, sequences

PLAIN = "one by one, without a cache"
LONGEST = 12
"""Tokens of an answer; fresh weights never end one early, so all are as long."""


def sides(folder: Path, scale: Scale) -> Mapping[str, Side]:
    """The same weights both ways."""
    prepared = Prepared(span_recipe(scale))
    answerer = Answerer(prepared.model().eval(), prepared.tokenizer, LONGEST)
    lines = (embedded_data_dir() / "births/birth_dev.tsv").read_text(encoding="utf-8").splitlines()
    questions = [line.split("\t")[0] for line in lines][: scale.of(100, least=4)]
    said: dict[str, list[str]] = {}

    def side(name: str, answer: Callable[[Sequence[str]], list[str]]) -> Turn:
        turn = timed(len(questions), lambda: said.update({name: answer(questions)}))
        assert len(set(map(tuple, said.values()))) == 1, "both decode greedily, with the same weights"
        return turn

    return {
        "hftune": lambda: side("ours", lambda asked: [answer.text for answer in answerer.answers(asked)]),
        PLAIN: lambda: side("plain", lambda asked: [one_by_one(answerer, question) for question in asked]),
    }


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


CASE = Case(
    name="answers",
    what="birth-place evaluation, batched with a cache",
    unit="questions",
    goals=(Goal(PLAIN, least=15),),
    sides=sides,
    warm_ups=1,
)
