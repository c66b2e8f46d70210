"""The tokenizer files of the replicas: vocab.txt, vocab.json and merges.txt, SentencePiece models, tokenizer.json, each
with the special tokens and ids order of the real repositories and a vocabulary of a few hundred entries.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

WORDS = (
    *("the", "food", "staff", "room", "bar", "tea", "service", "was", "on", "day", "of", "visit", "great", "lovely"),
    *("superb", "fine", "awful", "poor", "dire", "grim", "soup", "cold", "never", "again", "and", "we", "will", "come"),
)
LETTERS = tuple("abcdefghijklmnopqrstuvwxyz0123456789")
TEXT = [" ".join(WORDS[i : i + 7]) for i in range(0, len(WORDS), 3)] + [" ".join(LETTERS)]
BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")

Files = dict[str, bytes]


def _wordpiece_vocabulary(special: Sequence[str] = BERT, last: Sequence[str] = ()) -> list[str]:
    return [*special, *LETTERS, *(f"##{letter}" for letter in LETTERS), *WORDS, *last]


def vocab_txt() -> Files:
    return {"vocab.txt": ("\n".join(_wordpiece_vocabulary()) + "\n").encode()}


def _wordpiece_json(vocabulary: list[str], special: tuple[str, str, str, str, str]) -> bytes:
    pad, unknown, first, last, mask = special
    ids = {token: number for number, token in enumerate(vocabulary)}
    made = Tokenizer(models.WordPiece(ids, unk_token=unknown))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B:1 {last}:1",
        special_tokens=[(first, ids[first]), (last, ids[last])],
    )
    made.decoder = decoders.WordPiece()
    made.add_special_tokens([AddedToken(token, normalized=False) for token in (pad, unknown, first, last, mask)])
    return str(made.to_str()).encode()


def wordpiece() -> Files:
    return {**vocab_txt(), "tokenizer.json": _wordpiece_json(_wordpiece_vocabulary(), BERT)}


def mpnet() -> Files:
    vocabulary = _wordpiece_vocabulary(("<s>", "<pad>", "</s>", "[UNK]"), ("<mask>",))
    return {
        "vocab.txt": ("\n".join(vocabulary) + "\n").encode(),
        "tokenizer.json": _wordpiece_json(vocabulary, ("<pad>", "[UNK]", "<s>", "</s>", "<mask>")),
        "special_tokens_map.json": json.dumps(
            {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "[UNK]", "sep_token": "</s>", "pad_token": "<pad>"}
            | {"cls_token": "<s>", "mask_token": "<mask>"}
        ).encode(),
    }


@cache
def _byte_level(special: tuple[str, ...], template: tuple[str, str] | None) -> str:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    known = {"special_tokens": list(special), "initial_alphabet": alphabet}
    trainer = trainers.BpeTrainer(vocab_size=320, show_progress=False, **known)
    made.train_from_iterator(TEXT, trainer)
    if template is not None:
        first, last = template
        ids = [(token, made.token_to_id(token)) for token in template]
        made.post_processor = processors.TemplateProcessing(
            single=f"{first} $A {last}", pair=f"{first} $A {last} $B {last}", special_tokens=ids
        )
    return str(made.to_str())


def _vocabulary_and_merges(text: str) -> Files:
    model = json.loads(text)["model"]
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]]
    return {
        "vocab.json": json.dumps(model["vocab"]).encode(),
        "merges.txt": ("#version: 0.2\n" + "\n".join(merges) + "\n").encode(),
        "tokenizer.json": text.encode(),
    }


def roberta() -> Files:
    return _vocabulary_and_merges(_byte_level(ROBERTA, ("<s>", "</s>")))


def gpt2() -> Files:
    return _vocabulary_and_merges(_byte_level(("<|endoftext|>",), None))


def modernbert() -> Files:
    text = _byte_level(("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"), ("[CLS]", "[SEP]"))
    special = {"cls_token": "[CLS]", "mask_token": "[MASK]", "pad_token": "[PAD]", "sep_token": "[SEP]"}
    return {
        "tokenizer.json": text.encode(),
        "special_tokens_map.json": json.dumps({**special, "unk_token": "[UNK]"}).encode(),
    }


@cache
def _sentencepiece(**settings: Any) -> bytes:
    import sentencepiece

    buffer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT * 4),
        model_writer=buffer,
        model_type="unigram",
        vocab_size=120,
        hard_vocab_limit=False,
        minloglevel=2,
        **settings,
    )
    return buffer.getvalue()


def _pieces(model: bytes) -> list[tuple[str, float]]:
    from sentencepiece import SentencePieceProcessor

    read = SentencePieceProcessor(model_proto=model)
    return [(read.id_to_piece(i), read.get_score(i)) for i in range(read.get_piece_size())]


def _unigram_json(
    vocabulary: list[tuple[str, float]], unknown: int, first: str, last: str, special: Sequence[str]
) -> bytes:
    made = Tokenizer(models.Unigram(vocabulary, unknown))
    made.normalizer = normalizers.Sequence([normalizers.NFKC()])
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B {last}",
        special_tokens=[(token, made.token_to_id(token)) for token in (first, last)],
    )
    made.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    return str(made.to_str()).encode()


def albert() -> Files:
    model = _sentencepiece(
        **{"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "pad_piece": "<pad>", "unk_piece": "<unk>"},
        control_symbols="[CLS],[SEP],[MASK]",
    )
    special = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
    return {"spiece.model": model, "tokenizer.json": _unigram_json(_pieces(model), 1, "[CLS]", "[SEP]", special)}


def deberta() -> Files:
    """Nothing but the SentencePiece model; [MASK] is added behind it."""
    return {
        "spm.model": _sentencepiece(
            **{"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3},
            **{"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"},
        )
    }


def _fairseq(model: bytes, before: Sequence[str]) -> list[tuple[str, float]]:
    """fairseq's vocabularies: special tokens first, then the pieces of SentencePiece without its own, then <mask>."""
    own = [(piece, score) for piece, score in _pieces(model) if piece not in ("<unk>", "<s>", "</s>")]
    return [*((token, 0.0) for token in before), *own, ("<mask>", 0.0)]


def xlm_roberta() -> Files:
    model = _sentencepiece()
    vocabulary = _fairseq(model, ("<s>", "<pad>", "</s>", "<unk>"))
    return {
        "sentencepiece.bpe.model": model,
        "tokenizer.json": _unigram_json(vocabulary, 3, "<s>", "</s>", ROBERTA),
    }


def camembert() -> Files:
    model = _sentencepiece()
    vocabulary = _fairseq(model, ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>"))
    return {
        "sentencepiece.bpe.model": model,
        "tokenizer.json": _unigram_json(vocabulary, 3, "<s>", "</s>", ROBERTA),
    }


TOKENIZERS: dict[str, Callable[[], Files]] = {
    "vocab.txt": vocab_txt,
    "wordpiece": wordpiece,
    "mpnet": mpnet,
    "roberta": roberta,
    "gpt2": gpt2,
    "modernbert": modernbert,
    "albert": albert,
    "deberta": deberta,
    "xlm-roberta": xlm_roberta,
    "camembert": camembert,
}


@cache
def size_of(kind: str) -> int:
    """The vocabulary size that config.json states; a little more than there are tokens, as in many repositories."""
    files = TOKENIZERS[kind]()
    if "tokenizer.json" in files:
        return int(Tokenizer.from_str(files["tokenizer.json"].decode()).get_vocab_size()) + 3
    if "vocab.txt" in files:
        return len(files["vocab.txt"].splitlines()) + 3
    return len(_pieces(files["spm.model"])) + 4
