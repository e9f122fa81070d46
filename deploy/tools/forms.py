"""A model in the forms that other runtimes take: ONNX and ExecuTorch, in float32 or int8.

* ``model.onnx``: by ``torch.onnx``'s exporter over ``torch.export``, any batch size, the opset it takes by default.
* ``model.int8.onnx``: ONNX Runtime's static quantization (QDQ, weights by output channel), ranges by calibration.
* ``model.pte``: ExecuTorch with XNNPACK where that can compute it, 1 to ``TOGETHER`` images in a pass.
* ``model.int8.pte``: the same after torchao's PT2E quantization with XNNPACK's own rules.

``module`` is in evaluation mode; ``images`` [N, C, H, W] in [0, 1] calibrate the int8 forms and are not stored. Source
lines and paths of this machine, which PyTorch's exporter notes, are taken out. Packages come with extras: ``export``
and ``executorch``; a ``ConfigError`` names the one that is missing.
"""

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from prunella.core.errors import unknown
from prunella.core.extras import require
from prunella.deploy.tools.runtimes import TOGETHER

Format = Literal["onnx", "pte"]
INPUT, OUTPUT = "images", "logits"


class Form(NamedTuple):
    """``write`` takes the module, images (for the shape; int8 is calibrated on them), and the path."""

    file: str
    extra: str
    write: Callable[[nn.Module, Tensor, Path], None]


def write_onnx(module: nn.Module, images: Tensor, path: Path) -> None:
    require("export")
    import onnx

    with _quiet():
        made: Any = torch.onnx.export(
            module,
            (torch.zeros(2, *images.shape[1:]),),
            dynamo=True,
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            verbose=False,
        )
    model = made.model_proto
    for each in (*model.graph.node, *model.graph.value_info, *model.graph.input, *model.graph.output, model.graph):
        del each.metadata_props[:]
        each.doc_string = ""
    onnx.checker.check_model(model)
    onnx.save_model(model, path)


def write_onnx_int8(module: nn.Module, images: Tensor, path: Path) -> None:
    require("export")
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Calibration(quantization.CalibrationDataReader):
        batches = iter(torch.split(images, TOGETHER))

        def get_next(self) -> dict[str, Any] | None:
            batch = next(self.batches, None)
            return None if batch is None else {INPUT: batch.numpy()}

    with TemporaryDirectory() as folder, _quiet():
        plain, ready = Path(folder) / "plain.onnx", Path(folder) / "ready.onnx"
        write_onnx(module, images, plain)
        quant_pre_process(plain, ready)
        form = quantization.QuantFormat.QDQ
        quantization.quantize_static(ready, path, Calibration(), quant_format=form, per_channel=True)


def _program(module: nn.Module, images: Tensor) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=1, max=TOGETHER)
    return torch.export.export(module, (torch.zeros(2, *images.shape[1:]),), dynamic_shapes=({0: batch},))


def _lower(program: torch.export.ExportedProgram, path: Path) -> None:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    path.write_bytes(edge.to_executorch().buffer)


def write_pte(module: nn.Module, images: Tensor, path: Path) -> None:
    require("executorch")
    with _quiet():
        _lower(_program(module, images), path)


def write_pte_int8(module: nn.Module, images: Tensor, path: Path) -> None:
    require("executorch")
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    with _quiet(), torch.no_grad():
        rules = xnnpack_quantizer.XNNPACKQuantizer()
        rules.set_global(xnnpack_quantizer.get_symmetric_quantization_config(is_per_channel=True))
        observed = prepare_pt2e(_program(module, images).module(), rules)
        for batch in torch.split(images, TOGETHER):
            observed(batch)
        _lower(_program(convert_pt2e(observed), images), path)


FORMS: dict[tuple[Format, bool], Form] = {
    ("onnx", False): Form("model.onnx", "export", write_onnx),
    ("onnx", True): Form("model.int8.onnx", "export", write_onnx_int8),
    ("pte", False): Form("model.pte", "executorch", write_pte),
    ("pte", True): Form("model.int8.pte", "executorch", write_pte_int8),
}


def named(formats: Sequence[str]) -> tuple[Format, ...]:
    """Formats by their names, each once. Raises ``ConfigError``.

    >>> named(["pte", "onnx", "pte"])
    ('pte', 'onnx')
    """
    known: dict[str, Format] = {name: name for name, _ in FORMS}
    for name in formats:
        if name not in known:
            raise unknown("format", name, known)
    return tuple(dict.fromkeys(known[name] for name in formats))


@contextmanager
def _quiet() -> Iterator[None]:
    """What these libraries log and warn of on their way is for their developers."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
