"""Hidden states and attention scores of a student compared with those of a teacher, layer by layer, as in TinyBERT.

Both come from hooks on the layers of encoders that are built like BERT's. In training the student returns them as
``hidden_states``, projected to the teacher's width, and ``attentions``: within the outputs, so that several processes
find the projections' gradients. Scores are products of queries and keys before the softmax, which TinyBERT found to
converge faster, and which no attention kernel has to give away.

Shapes: B rows, T tokens, H heads, C hidden size, D the teacher's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from hftune.errors import HftuneError
from hftune.models.cls_only import EVERY_TOKEN

FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert", "electra")
"""Architectures whose layers are built like BERT's."""
PROJECTIONS = "distillation_projections"
"""Name of the module with the projections."""
Pairs = Sequence[tuple[int, int]]
"""A layer of the student and one of the teacher, from 0."""


def refuse_other_family(config: PreTrainedConfig, name: str) -> None:
    """Refuse a model whose layers have other names."""
    if config.model_type not in FAMILIES:
        raise HftuneError(
            f"task.hidden_weight and task.attention_weight read the layers of BERT-like encoders "
            f"({', '.join(FAMILIES)}); {name} is a {config.model_type} model",
            hint="set both to 0: the teacher's probabilities suit every classifier",
        )


def layer_pairs(layer_map: str | Sequence[int], student: int, teacher: int) -> Pairs:
    """Which layer of the teacher each layer of the student learns from.

    Args:
        layer_map: uniform, last, or the teacher's layer for each of the student's, from 1.
        student: Layers of the student.
        teacher: Layers of the teacher.
    """
    if layer_map == "last":
        return [(student - 1, teacher - 1)]
    if layer_map == "uniform":
        # Rounded up: the last learns from the last, and a student with more layers starts with the teacher's first.
        return [(layer, -(-(layer + 1) * teacher // student) - 1) for layer in range(student)]
    listed = [int(layer) for layer in layer_map]
    if len(listed) != student or not all(1 <= layer <= teacher for layer in listed):
        raise HftuneError(
            f"task.layer_map is {listed}, but the student has {student} layers and the teacher {teacher}",
            hint=f"list {student} numbers from 1 to {teacher}, one for each layer of the student, or write uniform",
        )
    return [(layer, theirs - 1) for layer, theirs in enumerate(listed)]


class _Layers:
    """Hidden states [B, T, C] after some layers of an encoder, and their attention scores [B, H, T, T]."""

    def __init__(self, model: PreTrainedModel, layers: Sequence[int], wanted: Callable[[], bool]) -> None:
        self.hidden: dict[int, Tensor] = {}
        self.scores: dict[int, Tensor] = {}
        for number in sorted(set(layers)):
            layer = model.base_model.encoder.layer[number]
            layer.register_forward_hook(self._keep(number, wanted))
            layer.attention.self.register_forward_pre_hook(self._compute(number, wanted), with_kwargs=True)

    def _keep(self, number: int, wanted: Callable[[], bool]) -> Callable[..., None]:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            if wanted():
                self.hidden[number] = output if isinstance(output, Tensor) else output[0]

        return hook

    def _compute(self, number: int, wanted: Callable[[], bool]) -> Callable[..., None]:
        def hook(attention: Any, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> None:
            if wanted():
                self.scores[number] = _scores(attention, inputs[0] if inputs else named["hidden_states"])

        return hook

    def clear(self) -> None:
        """Let go of the last forward pass."""
        self.hidden.clear()
        self.scores.clear()


def _scores(attention: Any, hidden: Tensor) -> Tensor:
    size = attention.attention_head_size
    query, key = (
        layer(hidden).unflatten(-1, (-1, size)).transpose(1, 2) for layer in (attention.query, attention.key)
    )  # [B, H, T, size]
    scores: Tensor = query @ key.transpose(2, 3) * size**-0.5  # [B, H, T, T]
    return scores


def return_layers(model: PreTrainedModel, pairs: Pairs, width: int, *, hidden: bool, attention: bool) -> None:
    """Let a classifier return its layers in training; with ``hidden``, add their projections to ``width``.

    torch's random state does not change.
    """
    if hidden:
        own = int(model.config.hidden_size)
        with torch.random.fork_rng():
            model.add_module(PROJECTIONS, nn.ModuleList(nn.Linear(own, width) for _ in pairs))

    def wanted() -> bool:
        return model.training and torch.is_grad_enabled()

    layers = _Layers(model, [ours for ours, _ in pairs], wanted)

    def add(module: Any, _: Any, output: Any) -> Any:
        if wanted():
            if hidden:
                projections = module.get_submodule(PROJECTIONS)
                output.hidden_states = tuple(
                    projection(layers.hidden[ours]) for projection, (ours, _) in zip(projections, pairs, strict=True)
                )
            if attention:
                output.attentions = tuple(layers.scores[ours] for ours, _ in pairs)
        layers.clear()
        return output

    model.register_forward_hook(add)


@contextmanager
def without_projections(model: PreTrainedModel) -> Iterator[None]:
    """The plain model, as it is saved; training may continue with the projections."""
    projections = dict(model.named_children()).get(PROJECTIONS)
    if projections is not None:
        delattr(model, PROJECTIONS)
    try:
        yield
    finally:
        if projections is not None:
            model.add_module(PROJECTIONS, projections)


class TeacherLayers:
    """The layers of a teacher, which reads each batch again in every epoch."""

    def __init__(self, model: PreTrainedModel, pairs: Pairs) -> None:
        self.model, self.pairs = model.eval(), pairs
        self._on = False
        self._layers = _Layers(model, [theirs for _, theirs in pairs], lambda: self._on)
        last = model.base_model.encoder.layer[-1].attention.self
        # A loaded classifier computes the first token only in its last layer.
        self._every_token = {EVERY_TOKEN: True} if "forward" in vars(last) else {}

    def __call__(self, batch: Mapping[str, Tensor], device: torch.device) -> tuple[list[Tensor], list[Tensor]]:
        """Hidden states and attention scores of a batch of token ids, one for each pair of layers."""
        self.model.to(device)
        self._on = True
        try:
            # Not inference_mode: the backward pass of the student needs these tensors.
            with torch.no_grad():
                self.model.base_model(**{name: value.to(device) for name, value in batch.items()}, **self._every_token)
            hidden = [self._layers.hidden[theirs] for _, theirs in self.pairs]
            scores = [self._layers.scores[theirs] for _, theirs in self.pairs]
        finally:
            self._on = False
            self._layers.clear()
        return hidden, scores


def hidden_distance(ours: Sequence[Tensor], theirs: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Summed over the rows: the mean squared error over the tokens of a row, its dimensions and the layers.

    Args:
        ours: Of the student, projected [B, P+T, D], with P virtual tokens in front.
        theirs: Of the teacher [B, T, D].
        mask: [B, T], 1 for tokens and 0 for padding.
    """
    mask = mask.to(theirs[0])
    length, sizes = mask.shape[1], mask.sum(dim=1)
    found = [
        ((own[:, -length:].float() - other.float()).square().mean(dim=2) * mask).sum(dim=1) / sizes  # [B]
        for own, other in zip(ours, theirs, strict=True)
    ]
    return torch.stack(found).mean(dim=0).sum()


def attention_distance(ours: Sequence[Tensor], theirs: Sequence[Tensor], mask: Tensor) -> Tensor:
    """The same for attention scores [B, H, T, T]; with other numbers of heads, for their means over the heads."""
    mask = mask.to(theirs[0])
    length, sizes = mask.shape[1], mask.sum(dim=1)
    both = mask[:, :, None] * mask[:, None, :]  # [B, T, T]
    found = []
    for own, other in zip(ours, theirs, strict=True):
        own, other = own[:, :, -length:, -length:].float(), other.float()
        if own.shape[1] != other.shape[1]:
            own, other = own.mean(dim=1, keepdim=True), other.mean(dim=1, keepdim=True)
        found.append(((own - other).square().mean(dim=1) * both).sum(dim=(1, 2)) / sizes.square())  # [B]
    return torch.stack(found).mean(dim=0).sum()
