"""Where tensors live: a device by its name in the settings, and sums whose order is fixed there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from prunella.core.errors import ConfigError, DefenseError

_NO_ORDER = "does not have a deterministic implementation"  # of PyTorch's message


def pick_device(name: str) -> torch.device:
    """``auto`` is CUDA where PyTorch sees it, else the CPU. Raises ``ConfigError`` for a device that is not here."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device {name!r} is not one PyTorch knows: use auto, cpu or cuda") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device {name!r} is not on this machine: PyTorch sees {torch.cuda.device_count()} of them; use auto"
        )
    return device


@contextmanager
def repeatable(device: torch.device, strict: bool = True) -> Iterator[None]:
    """Within it the same numbers give the same bits, whatever stands beside them. A GPU's convolutions otherwise sum in
    whatever order threads finish; a CPU needs nothing. Raises ``DefenseError`` where PyTorch has no such operation, or,
    if not ``strict``, lets that one do as it does."""
    if device.type == "cpu":
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # PyTorch wants it said, and chooses as much by itself
    asked, warned = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn = torch.backends.cudnn
    fixed, searched = cudnn.deterministic, cudnn.benchmark
    try:
        cudnn.deterministic, cudnn.benchmark = True, False
        torch.use_deterministic_algorithms(True, warn_only=not strict)
        yield
    except RuntimeError as error:
        if _NO_ORDER not in str(error):
            raise
        raise DefenseError(
            "this model has an operation that sums in another order every time on a GPU, so no ε holds there: choose "
            "device=cpu"
        ) from error
    finally:
        torch.use_deterministic_algorithms(asked, warn_only=warned)
        cudnn.deterministic, cudnn.benchmark = fixed, searched
