"""A classifier as an ONNX graph: written by transformers' exporter, run by ONNX Runtime, in fp32 or with int8 weights.

``hftune.exporting`` writes one; ``hftune.models.classifier`` loads a folder that holds one like any other model. Needs
the extra ``onnx``.
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
from hftune.models.containment import refuse_data_outside
from hftune.models.weight_files import ADAPTER, BIN, ONNX, SAFE

logger = logging.getLogger(__name__)

GRAPH = ONNX
PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def need_onnx() -> None:
    """Say which packages are missing."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise HftuneError(f"ONNX needs {', '.join(missing)}", hint="pip install 'hftune[onnx]'")


def write_onnx(model: PreTrainedModel, sample: dict[str, Tensor], path: Path, *, int8: bool) -> None:
    """Write the graph of a classifier, for any number of rows and tokens.

    Args:
        model: In evaluation mode, on the CPU.
        sample: A batch of at least two rows; which inputs it holds is which inputs the graph has.
        path: The file.
        int8: Whether weights of matrix products and embeddings become 8-bit numbers, one scale a channel, and
            activations are rounded as they come.

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
                hint="BERT, RoBERTa and their kin can; --debug shows what the exporter says",
            ) from error


class OnnxModel:
    """What ``Classifier`` asks of a model, answered by ONNX Runtime on the CPU."""

    device = torch.device("cpu")
    training = False

    def __init__(self, graph: Path, config: PreTrainedConfig) -> None:
        """graph: the file; config: for the names of the labels."""
        need_onnx()
        refuse_data_outside(graph)
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
        """It stays on the CPU, whatever else there is."""
        return self

    def eval(self) -> OnnxModel:
        """It never does anything else."""
        return self

    def train(self, mode: bool = True) -> OnnxModel:
        """It can't; asked with False it stays as it is."""
        assert not mode, "a graph does not train"
        return self


def is_onnx(folder: Path) -> bool:
    """Whether a folder holds a graph in place of weights, as ``hftune export`` writes it.

    Weights come first: nobody looks for a graph beside them, which may compute anything.
    """
    if not (folder / GRAPH).is_file():
        return False
    weights = next((name for name in (*SAFE, *BIN, ADAPTER) if (folder / name).is_file()), None)
    if weights is not None:
        logger.info("Ignoring %s in %s: its weights are in %s", GRAPH, folder, weights)
    return weights is None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporters print their progress and warn of each other's versions; what fails comes as an error."""
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
