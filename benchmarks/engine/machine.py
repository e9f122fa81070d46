"""What a measurement runs on, for the JSON of every benchmark, and the device that attacks and federations take.

>>> sorted(machine())
['load', 'platform', 'processors', 'python', 'threads']
"""

import os
import platform
from typing import Any

import torch

from prunella.core.device import pick_device

_DEVICE = [torch.device("cpu")]


def use_device(name: str) -> None:
    """From now on in this process. Raises ``ConfigError`` for one that is not here."""
    _DEVICE[0] = pick_device(name)


def device() -> torch.device:
    """Where what a server saw lies, and with it the attacks; and where federations train. The attacked client's own
    steps are on the CPU, so that every device is asked about the same updates."""
    return _DEVICE[0]


def machine() -> dict[str, Any]:
    """Processors, how busy they were (mean of runnable processes over a minute), PyTorch's threads, versions."""
    return {
        "processors": os.cpu_count(),
        "load": os.getloadavg()[0],
        **({"device": torch.cuda.get_device_name(device())} if device().type == "cuda" else {}),
        "threads": torch.get_num_threads(),
        "platform": platform.platform(),
        "python": platform.python_version(),
    }
