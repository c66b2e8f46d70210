"""``reviews``: one to five stars for generated reviews, in yelp_small's headerless ``stars,text`` csv."""

from __future__ import annotations

from hftune.data.embedded import Embedded

REVIEWS = Embedded(
    name="reviews",
    about="generated reviews of shops and restaurants, 1 to 5 stars",
    files={"train": "train.csv", "validation": "dev.csv", "test": "test.csv"},
    text_column="text",
    label_column="label",
    unlabeled="unlabeled.txt",
)
