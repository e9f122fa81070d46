from pathlib import Path

import pytest
import torch

from prunella.attacks.score.lpips import WEIGHTS, _fitting, lpips, network, weights
from prunella.core.errors import AttackError
from prunella.core.randomness import stream


class Mean(torch.nn.Module):
    """Stands in for the learnt distance, on images LPIPS could take: three colours, 32 pixels a side or more."""

    def forward(self, one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
        assert one.shape == two.shape and one.shape[1] == 3 and min(one.shape[2:]) >= 32
        return (one - two).abs().mean()


def test_without_weights_it_says_why_and_fetches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("torch.hub.load_state_dict_from_url", lambda *a, **k: pytest.fail("fetched"))
    network.cache_clear()
    assert weights().name == WEIGHTS and tmp_path in weights().parents
    with pytest.raises(AttackError, match="alexnet-owt"):
        lpips(torch.rand(1, 3, 32, 32), torch.rand(1, 3, 32, 32))


def test_torchmetrics_distance_with_random_features_is_zero_of_equals_and_grows_with_noise() -> None:
    from torchmetrics.functional.image.lpips import _LPIPS

    class Distance(_LPIPS):
        def forward(self, one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return super().forward(one, two, normalize=True).squeeze()

    with torch.random.fork_rng():
        torch.manual_seed(0)
        metric = Distance(pnet_rand=True)
    x = torch.rand(2, 1, 28, 28, generator=stream(0, purpose="x"))
    near, far = x + 0.05, torch.rand(x.shape, generator=stream(1, purpose="x"))
    same, close, apart = (lpips(x, y, metric) for y in (x, near, far))
    assert same == [0.0, 0.0] and all(0 < a < b for a, b in zip(close, apart, strict=True))


@pytest.mark.parametrize("shape", [(2, 1, 8, 8), (2, 3, 32, 32), (2, 1, 28, 28)])
def test_images_of_any_size_and_colour(shape: tuple[int, ...]) -> None:
    x = torch.rand(shape, generator=stream(0, purpose="x"))
    black = lpips(x, torch.zeros(shape), Mean())
    assert black == pytest.approx(_fitting(x).mean((1, 2, 3)).tolist(), rel=1e-5)
    assert len(black) == 2 and black == pytest.approx(x.mean((1, 2, 3)).tolist(), rel=0.1)
