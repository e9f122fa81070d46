"""Every form computes what the module does, at any batch size that it is for, and tells nothing of this machine."""

from pathlib import Path

import pytest
import torch
from torch import nn

from prunella.deploy.tools.forms import FORMS, Form
from prunella.deploy.tools.verified import Original, verified
from prunella.tasks.task import Task

TASK = Task("resnet10", (3, 8, 8), 10)


def needed(form: Form) -> None:
    package = {"export": "onnxscript", "executorch": "executorch"}[form.extra]
    pytest.importorskip(package, reason=f"{package} is not installed: it is in prunella[{form.extra}]")


@pytest.mark.parametrize("form", FORMS.values(), ids=lambda form: form.file)
def test_a_file_says_what_the_module_says_of_one_image_and_of_eight(form: Form, tmp_path: Path) -> None:
    needed(form)
    module, images = TASK.build().eval(), torch.rand(33, *TASK.shape)  # 33: eight at a time, and one is left
    with torch.no_grad():
        for layer in module.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.weight.mul_(1.5)
        expected = module(images)
    form.write(module, images, tmp_path / form.file)
    checked = verified(tmp_path / form.file, Original(images, expected))
    spread = float((expected - expected.mean(0)).abs().max())
    least, most = (1e-6, 0.2 * spread) if "int8" in form.file else (0.0, 1e-4 * spread)
    assert least <= checked.difference < most, spread
    assert checked.bytes < (0.5 if "int8" in form.file else 1.2) * 4 * sum(p.numel() for p in module.parameters())
    text = (tmp_path / form.file).read_bytes()
    assert not [
        word for word in (b"site-packages", b"/prunella/", str(tmp_path).encode(), b"resnet.py") if word in text
    ]


def test_onnx_is_checked_and_its_axes_have_names(tmp_path: Path) -> None:
    needed(form := FORMS["onnx", False])
    import onnx

    form.write(TASK.build().eval(), torch.rand(2, *TASK.shape), tmp_path / form.file)
    model = onnx.load(tmp_path / form.file)
    onnx.checker.check_model(model, full_check=True)
    (given,), (said,) = model.graph.input, model.graph.output
    assert (given.name, said.name) == ("images", "logits")
    assert [d.dim_param or d.dim_value for d in given.type.tensor_type.shape.dim] == ["batch", 3, 8, 8]
    assert max(each.version for each in model.opset_import) >= 18
