"""Where tensors live: a device by its name in the settings."""

import torch

from prunella.core.errors import ConfigError


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
