"""``hftune joint``: a classifier and a masked language model, trained together on labeled and unlabeled text.

hftune joint
hftune joint --data reviews --max-train-samples 50 --unlabeled reviews --mlm-alpha 1 --seeds 1-5
hftune joint --model RUN --data train.csv --unlabeled more.txt --block-size 128 --mlm-alpha 1 --mlm-alpha-end 0
"""

from __future__ import annotations

from typing import Annotated

from hftune.cli.flags import Typed, training_command
from hftune.cli.options import option

DEFAULT_RECIPE = "joint/reviews"

_TEXT = "Unlabeled text"
Unlabeled = Annotated[
    str | None,
    option(
        _TEXT,
        "FILE|NAME",
        "Unlabeled text: a file, a folder, a Hub id, an embedded name, or train for the training texts themselves.",
        "--unlabeled",
    ),
]
LineByLine = Annotated[
    bool | None,
    option(
        _TEXT,
        None,
        "Whether each line is one example, cut at max_length; so where block_size is not given.",
        "--line-by-line/--no-line-by-line",
    ),
]
BlockSize = Annotated[
    int | None,
    option(
        _TEXT,
        "TOKENS",
        "Join all unlabeled lines and cut them into blocks of this many tokens, special tokens among them.",
        "--block-size",
    ),
]
LimitUnlabeled = Annotated[
    int | None,
    option(_TEXT, "N", "Use this many unlabeled lines: drawn at random, seeded and nested.", "--max-unlabeled-samples"),
]
MlmAlpha = Annotated[
    float | None,
    option(
        _TEXT,
        "X",
        "Weight of the masked language model's loss beside the classifier's; 0 leaves unlabeled text out altogether.",
        "--mlm-alpha",
    ),
]
MlmAlphaEnd = Annotated[
    float | None,
    option(
        _TEXT,
        "X",
        "The weight that it moves to in a straight line by the last update; constant where not given.",
        "--mlm-alpha-end",
    ),
]
MlmBatchSize = Annotated[
    int | None,
    option(
        _TEXT,
        "N",
        "Unlabeled examples in one forward pass on one device; as many as labeled ones where not given.",
        "--mlm-batch-size",
    ),
]
MlmProbability = Annotated[
    float | None,
    option(
        _TEXT,
        "X",
        "Share of the tokens that must be predicted: 80 % of them masked, 10 % replaced, 10 % left as they are.",
        "--mlm-probability",
    ),
]
WholeWord = Annotated[
    bool | None, option(_TEXT, None, "Choose whole words, not single tokens.", "--whole-word-mask/--no-whole-word")
]


@training_command(
    own={
        "unlabeled": Unlabeled,
        "line_by_line": LineByLine,
        "block_size": BlockSize,
        "limit_unlabeled": LimitUnlabeled,
        "mlm_alpha": MlmAlpha,
        "mlm_alpha_end": MlmAlphaEnd,
        "mlm_batch_size": MlmBatchSize,
        "mlm_probability": MlmProbability,
        "whole_word": WholeWord,
    }
)
def joint(typed: Typed) -> None:
    """Fine-tune a classifier and train a masked language model on unlabeled text, in one model at the same time.

    Dev chooses by the classifier's score. What is saved is a plain classifier, and the masked language model beside it.
    """
    typed.train(task="joint", default=DEFAULT_RECIPE)
