import pytest
import torch

from prunella.core.device import pick_device, repeatable
from prunella.core.errors import ConfigError, DefenseError

CUDA = torch.device("cuda", 0)


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


def asked() -> tuple[bool, ...]:
    """What PyTorch was told of the order of sums."""
    cudnn = torch.backends.cudnn
    algorithms = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    return (*algorithms, cudnn.deterministic, cudnn.benchmark)


@pytest.mark.parametrize("before", [(False, False, False, True), (True, True, True, False)])
def test_sums_have_one_order_within_and_what_was_asked_before_holds_after(
    before: tuple[bool, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", before[2])
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", before[3])
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    try:
        with repeatable(torch.device("cpu")):
            assert asked() == before
        with repeatable(CUDA):
            assert asked() == (True, False, True, False)
        with repeatable(CUDA, strict=False):
            assert asked() == (True, True, True, False)
        assert asked() == before
        with pytest.raises(RuntimeError, match="out of memory"), repeatable(CUDA):
            raise RuntimeError("CUDA out of memory")
        with pytest.raises(DefenseError, match="choose device=cpu"), repeatable(CUDA):
            raise RuntimeError("upsample_backward does not have a deterministic implementation, but you set ...")
        assert asked() == before
    finally:
        torch.use_deterministic_algorithms(False)
