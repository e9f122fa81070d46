import pytest
import torch

from prunella.core.device import pick_device
from prunella.core.errors import ConfigError


def test_names_are_checked_and_a_device_that_is_not_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pick_device("cpu").type == "cpu"
    with pytest.raises(ConfigError, match="auto, cpu or cuda"):
        pick_device("quantum")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert pick_device("cuda") == torch.device("cuda") and pick_device("cuda:0") == torch.device("cuda:0")
    for count, name in ((0, "cuda"), (1, "cuda:1")):
        monkeypatch.setattr(torch.cuda, "device_count", lambda n=count: n)
        with pytest.raises(ConfigError, match=f"PyTorch sees {count} of them"):
            pick_device(name)


@pytest.mark.parametrize("there", [False, True])
def test_auto_takes_what_there_is(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert pick_device("auto").type == ("cuda" if there else "cpu")
