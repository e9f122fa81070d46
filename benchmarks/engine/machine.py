"""What a measurement ran on, for the JSON of every benchmark.

>>> sorted(machine())
['load', 'platform', 'processors', 'python', 'threads']
"""

import os
import platform
from typing import Any

import torch


def machine() -> dict[str, Any]:
    """Processors, how busy they were (mean of runnable processes over a minute), PyTorch's threads, versions."""
    return {
        "processors": os.cpu_count(),
        "load": os.getloadavg()[0],
        "threads": torch.get_num_threads(),
        "platform": platform.platform(),
        "python": platform.python_version(),
    }
