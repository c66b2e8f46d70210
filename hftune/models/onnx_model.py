"""A classifier as an ONNX graph: written by transformers' exporter, run by ONNX Runtime, in fp32 or with int8 weights.

Needs the extra ``onnx``.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from hftune.errors import HftuneError
from hftune.models.trust import refuse_outside_data

PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def need_onnx() -> None:
    """Refuse ONNX if packages are missing."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise HftuneError(f"ONNX needs {', '.join(missing)}", hint="pip install 'hftune[onnx]'")


def write_onnx(model: PreTrainedModel, sample: dict[str, Tensor], path: Path, *, int8: bool) -> None:
    """Write the graph of a classifier, for any batch size and length.

    Args:
        model: In evaluation mode, on the CPU.
        sample: A batch of at least two examples; the graph has the same inputs.
        path: The file.
        int8: Whether weights of matrix products and embeddings become 8-bit numbers with one scale per channel, and
            activations are quantized at run time.

    Raises:
        HftuneError: The architecture can't be written as a graph.
    """
    need_onnx()
    import onnx_ir
    from transformers.exporters import OnnxConfig, OnnxRuntimeDynamicConfig, OnnxRuntimeQuantizer
    from transformers.exporters.exporter_onnx import OnnxExporter

    with _quiet():
        quantizer = (
            OnnxRuntimeQuantizer(OnnxRuntimeDynamicConfig(per_channel=True, reduce_range=True)) if int8 else None
        )
        try:
            exported = OnnxExporter().export(model, sample, config=OnnxConfig(dynamic=True, quantizer=quantizer))
            # transformers 5.23 returns an ExportedModel, earlier versions torch's ONNXProgram: the graph is the same.
            graph = exported.program if hasattr(exported, "program") else exported.model
            onnx_ir.save(graph, path)  # weights in the same file
        except Exception as error:  # three libraries take part, and each fails in its own way
            raise HftuneError(
                f"this {model.config.model_type} model can't be written as ONNX: {str(error).strip().splitlines()[0]}",
                hint="use a BERT or RoBERTa model; --debug shows the error of the exporter",
            ) from error


class OnnxModel:
    """The interface of a model that ``Classifier`` uses, on ONNX Runtime and the CPU."""

    device = torch.device("cpu")
    training = False

    def __init__(self, graph: Path, config: PreTrainedConfig) -> None:
        """graph: the file; config: for the label names."""
        need_onnx()
        refuse_outside_data(graph)
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self.config = config
        self._session = onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
        self._inputs: Sequence[str] = [one.name for one in self._session.get_inputs()]

    def __call__(self, **batch: Tensor) -> SimpleNamespace:
        """Token ids and mask → logits."""
        fed = {name: batch[name].numpy() for name in self._inputs}
        return SimpleNamespace(logits=torch.from_numpy(self._session.run(["logits"], fed)[0]))

    def to(self, device: str) -> OnnxModel:
        """Do nothing: the graph runs on the CPU."""
        return self

    def eval(self) -> OnnxModel:
        """Do nothing: the graph is always in evaluation mode."""
        return self

    def train(self, mode: bool = True) -> OnnxModel:
        """Do nothing for False, the only mode of a graph."""
        assert not mode, "a graph does not train"
        return self


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporters print their progress and warn of each other's versions; failures come as exceptions."""
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
