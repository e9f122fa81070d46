import os

import pytest
import torch

from prunella.benchmarks.engine.machine import device, machine, use_device
from prunella.core.errors import ConfigError


def test_the_machine_is_told_without_names_of_hosts() -> None:
    told = machine()
    assert told["processors"] == os.cpu_count() and told["threads"] >= 1
    assert os.uname().nodename not in [str(value) for value in told.values()]


def test_a_device_is_of_this_process_and_one_that_is_not_here_is_refused() -> None:
    use_device("cpu")
    assert device() == torch.device("cpu") and "device" not in machine()
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="not on this machine"):
            use_device("cuda")
    assert device() == torch.device("cpu")
