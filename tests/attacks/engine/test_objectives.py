import pytest
import torch

from prunella.attacks.engine.objectives import OBJECTIVES, cosine, euclidean, flatten


def vectors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    dummy, target = torch.randn(2, 50, generator=generator, dtype=torch.float64)
    support = (torch.rand(50, generator=generator) > 0.4).double()
    return dummy, target * support, support


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("masked", [False, True])
def test_closed_form_gradient_is_autograd_s(name: str, masked: bool) -> None:
    dummy, target, support = vectors()
    dummy.requires_grad_()
    seen = dummy * support if masked else dummy
    plain = 1 - torch.cosine_similarity(seen, target, dim=0)
    if name == "euclidean":
        plain = (seen - target).square().sum() / target.square().sum()
    (expected,) = torch.autograd.grad(plain, dummy)
    value, slope = OBJECTIVES[name](dummy.detach(), target, support if masked else None)
    torch.testing.assert_close(value, plain.detach())
    torch.testing.assert_close(slope, expected)


def test_cosine_has_no_scale_and_euclidean_has() -> None:
    _, target, support = vectors()
    assert float(cosine(3 * target, target, support)[0]) == pytest.approx(0, abs=1e-12)
    assert float(cosine(-target, target, support)[0]) == pytest.approx(2)
    assert float(euclidean(3 * target, target, support)[0]) == pytest.approx(4)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_what_lies_outside_the_support_does_not_count(name: str) -> None:
    dummy, target, support = vectors()
    changed = dummy + 100 * (1 - support)
    assert torch.equal(OBJECTIVES[name](dummy, target, support)[0], OBJECTIVES[name](changed, target, support)[0])
    assert float(OBJECTIVES[name](changed, target, support)[1].mul(1 - support).abs().max()) == 0


def test_a_zero_dummy_is_finite() -> None:
    _, target, _ = vectors()
    assert torch.isfinite(torch.cat([part.reshape(-1) for part in cosine(torch.zeros(50), target.float(), None)])).all()


def test_flatten_keeps_the_order() -> None:
    assert flatten([torch.tensor([[1.0, 2.0]]), torch.tensor(3.0)]).tolist() == [1, 2, 3]
