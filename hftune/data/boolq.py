"""``boolq-mini``: yes/no questions over short generated passages, in BoolQ's own jsonl format.

The real thing needs no file of its own: ``google/boolq``, the original jsonl and SuperGLUE's are read by their column
names, with question and passage as the pair and answer or label as the label.
"""

from __future__ import annotations

from hftune.data.embedded import Embedded

BOOLQ_MINI = Embedded(
    name="boolq-mini",
    about="generated yes/no questions over short passages, 62 % yes",
    files={"train": "train.jsonl", "validation": "dev.jsonl"},
    text_column="question",
    pair_column="passage",
    label_column="answer",
)
