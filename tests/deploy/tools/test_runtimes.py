"""The process that runs a file: it has the file's runtime and nothing else, and its figures are the system's."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from prunella.deploy.tools import runtimes
from prunella.deploy.tools.forms import write_onnx
from prunella.tasks.exported import write_program
from prunella.tasks.task import Task

TASK = Task("lenet-zhu", (1, 8, 8), 10)


def test_it_answers_in_order_and_batches_change_nothing(tmp_path: Path) -> None:
    module, images = TASK.build().eval(), torch.rand(19, 1, 8, 8)
    write_program(tmp_path / "model.pt2", TASK, module)
    with torch.no_grad():
        expected = module(images).numpy()
    outputs, told = runtimes.measured(str(tmp_path / "model.pt2"), images.numpy(), 0)
    assert np.allclose(outputs, expected, atol=1e-5) and told["median"] == 0
    np.save(tmp_path / "x.npy", images.numpy())
    asked = [str(tmp_path / name) for name in ("model.pt2", "x.npy", "y.npy")]
    done = subprocess.run(
        [sys.executable, "-P", runtimes.__file__, *asked, "3"], capture_output=True, text=True, check=True
    )
    assert np.allclose(np.load(tmp_path / "y.npy"), expected, atol=1e-5)
    assert json.loads(done.stdout).keys() == {"least", "median", "most", "runtime", "peak"}


def test_a_busy_machine_does_not_slow_a_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """96 ms were told of a net, and 0.16 ms of the same one: its process had waited for a processor meanwhile."""

    class Waits:
        """A pass whose process waits 20 ms, as beside others, and works for none of them."""

        def __call__(self, images: np.ndarray) -> np.ndarray:
            time.sleep(0.02)
            return images.reshape(len(images), -1)

    monkeypatch.setitem(runtimes.RUNTIMES, ".wait", lambda: lambda path: Waits())
    _, told = runtimes.measured("model.wait", np.zeros((1, 1, 2, 2), dtype=np.float32), 4)
    assert 0 <= told["least"] <= told["median"] <= told["most"] < 0.01


def test_an_onnx_file_needs_neither_this_package_nor_pytorch(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: it is in prunella[export]")
    images = torch.rand(3, 1, 8, 8)
    write_onnx(TASK.build().eval(), images, tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", images.numpy())
    code = """
import runpy, sys
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
assert "onnxruntime" in sys.modules and not {"torch", "prunella"} & sys.modules.keys()
"""
    asked = [runtimes.__file__, *(str(tmp_path / name) for name in ("model.onnx", "x.npy", "y.npy")), "0"]
    subprocess.run([sys.executable, "-P", "-c", code, *asked], check=True, env={"PYTHONPATH": ""})
    assert np.load(tmp_path / "y.npy").shape == (3, 10)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system does not tell what is resident")
def test_resident_memory_grows_by_what_is_taken() -> None:
    """In a process of its own: another's memory may be given back meanwhile."""
    code = """
import runpy, sys
import numpy as np
resident = runpy.run_path(sys.argv[1])["resident"]
before = resident()
block = np.ones(25_000_000)  # 200 MB
assert 150e6 < resident() - before < 300e6 and resident(peak=True) >= before + 150e6
del block
assert resident(peak=True) >= before + 150e6 > resident() + 50e6
"""
    subprocess.run([sys.executable, "-P", "-c", code, runtimes.__file__], check=True)
