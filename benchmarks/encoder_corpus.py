"""Writes train.txt, the text that the embedded encoder was distilled on, one document per line.

python benchmarks/encoder_corpus.py --wikitext DIR --boolq DIR --goemotions DIR --wordnet DIR --output FOLDER

It joins WikiText-2 (train.txt, valid.txt), the training passages of BoolQ (train.jsonl), the training comments of
GoEmotions (train.tsv), and from WordNet 3.0 (the data.* files of the Debian package wordnet-base, which are in
/usr/share/wordnet) the definitions of adjectives, adverbs and verbs, and all example sentences. Test splits are not
read. All four are openly licensed.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path

LONGEST = 96
"""Words of a document: about 128 tokens with a vocabulary of 8,000."""
# WikiText separates punctuation from words, and writes @-@ for a hyphen inside a word.
_SPACED = [
    (re.compile(r" @([-.,])@ "), r"\1"),
    (re.compile(r" ([,.;:!?%)\]’']|'s\b|n't\b)"), r"\1"),
    (re.compile(r"([(\[]) "), r"\1"),
]
_QUOTED = re.compile(r'" (.*?) "')
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"“(])")


def natural(text: str) -> str:
    """A line of WikiText with spaces as in ordinary text."""
    for pattern, replacement in _SPACED:
        text = pattern.sub(replacement, text)
    return _QUOTED.sub(r'"\1"', text).strip()


def documents(paragraph: str) -> Iterator[str]:
    """Whole sentences, joined to documents of at most LONGEST words; a longer sentence is left out."""
    words: list[str] = []
    for sentence in _SENTENCE_END.split(paragraph):
        more = sentence.split()
        if len(more) > LONGEST:
            continue
        if len(words) + len(more) > LONGEST:
            yield " ".join(words)
            words = []
        words += more
    if len(words) > 3:
        yield " ".join(words)


def wikitext(folder: Path) -> Iterator[str]:
    """Sentences without <unk>: it replaces every rare word, and no tokenizer should learn it."""
    for name in ("train.txt", "valid.txt"):
        for line in (folder / name).read_text(encoding="utf-8").splitlines():
            if line.startswith(" = ") or not line.strip():
                continue
            kept = [one for one in _SENTENCE_END.split(natural(line)) if "<unk>" not in one]
            yield from documents(" ".join(kept))


def boolq(folder: Path) -> Iterator[str]:
    """Passages, each once: several questions can be about one."""
    lines = (folder / "train.jsonl").read_text(encoding="utf-8").splitlines()
    for passage in dict.fromkeys(json.loads(line)["passage"] for line in lines):
        yield from documents(" ".join(passage.split()))


def goemotions(folder: Path) -> Iterator[str]:
    """Comments of at least three words."""
    for line in (folder / "train.tsv").read_text(encoding="utf-8").splitlines():
        text = " ".join(line.split("\t")[0].split())
        if len(text.split()) > 2:
            yield text


def wordnet(folder: Path) -> Iterator[str]:
    """The words of each synset with their definition, and its example sentences."""
    for name in ("data.adj", "data.adv", "data.noun", "data.verb"):
        for line in (folder / name).read_text(encoding="utf-8").splitlines():
            if line.startswith("  "):
                continue  # the license
            data, _, gloss = line.partition(" | ")
            fields = data.split(" ")
            words = [fields[4 + 2 * place] for place in range(int(fields[3], 16))]
            names = ", ".join(re.sub(r"\(.*\)", "", word).replace("_", " ") for word in words[:4])
            definition, *examples = gloss.strip().split('; "')
            if name != "data.noun":  # half of WordNet defines plants, animals and places
                yield f"{names}: {definition}"
            yield from (text for one in examples if len((text := one.strip('"; ')).split()) > 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sources = {"wikitext": wikitext, "boolq": boolq, "goemotions": goemotions, "wordnet": wordnet}
    for name in (*sources, "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    chosen = vars(parser.parse_args())
    chosen["output"].mkdir(parents=True, exist_ok=True)
    written: dict[str, None] = {}
    for name, read in sources.items():
        kept = [line for line in dict.fromkeys(read(chosen[name])) if line not in written]
        written.update(dict.fromkeys(kept))
        print(f"{name}: {len(kept):,} documents, {sum(len(line.split()) for line in kept):,} words")
    (chosen["output"] / "train.txt").write_text("\n".join(written) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
