"""Run a model's file with its own runtime, in a process that has nothing else: what it answers, how long, how much.

    python runtimes.py model.onnx images.npy outputs.npy 50

reads images [N, C, H, W] float32, writes the logits [N, classes], and prints one line of JSON: seconds of a pass of one
image (the least, the median and the upper quartile of as many passes, after ``WARM``), bytes of memory that the runtime
took before the model was opened, and at most with the model. Seconds are processor time, so that what else the machine
does hardly counts, on one thread (ExecuTorch's runtime has threads of its own), and memory is what the system counts as
resident, 0 where the system does not tell. ``0`` passes: outputs only.

The file's ending names the runtime. Nothing of this project is imported, nor PyTorch for an ONNX file.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

TOGETHER = 8  # images in a pass; an ExecuTorch file is written for no more
WARM = 5
Run = Callable[[Any], Any]  # images [B, C, H, W] float32 to logits, both arrays of NumPy


def resident(peak: bool = False) -> int:
    """Bytes of memory of this process, now or at most so far; Linux tells."""
    key = "VmHWM:" if peak else "VmRSS:"
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(key)), 0)


def _onnx() -> Callable[[str], Run]:
    import onnxruntime

    def opened(path: str) -> Run:
        alone = onnxruntime.SessionOptions()
        alone.intra_op_num_threads = alone.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(path, alone, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        return lambda images: session.run(None, {name: images})[0]

    return opened


def _executorch() -> Callable[[str], Run]:
    import torch
    from executorch.runtime import Runtime

    def opened(path: str) -> Run:
        program = Runtime.get().load_program(path)
        method = program.load_method("forward")
        return lambda images: method.execute([torch.from_numpy(images)])[0].numpy().copy()

    return opened


def _torch() -> Callable[[str], Run]:
    import torch

    torch.set_num_threads(1)

    def opened(path: str) -> Run:
        module = torch.export.load(path).module()

        def run(images: Any) -> Any:
            with torch.no_grad():
                return module(torch.from_numpy(images)).numpy()

        return run

    return opened


RUNTIMES = {".onnx": _onnx, ".pte": _executorch, ".pt2": _torch}


def measured(path: str, images: Any, passes: int) -> tuple[Any, dict[str, float]]:
    """Logits of all images, and the line of JSON."""
    opened = RUNTIMES[Path(path).suffix]()
    before = resident()
    run, one, seconds = opened(path), np.ascontiguousarray(images[:1]), []
    for number in range(WARM + passes if passes else 0):
        begin = time.process_time()
        run(one)
        if number >= WARM:
            seconds.append(time.process_time() - begin)
    peak = resident(peak=True)
    _, median, most = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else [0.0] * 3
    parts = [run(np.ascontiguousarray(images[at : at + TOGETHER])) for at in range(0, len(images), TOGETHER)]
    told = {"least": min(seconds, default=0.0), "median": median, "most": most}
    return np.concatenate(parts), {**told, "runtime": before, "peak": peak}


def main(arguments: list[str]) -> None:
    path, images, outputs, passes = arguments
    answer, told = measured(path, np.load(images), int(passes))
    np.save(outputs, answer)
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1:])
