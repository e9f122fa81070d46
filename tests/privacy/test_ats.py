"""ATS: transformations against their definition, scores against limits, a search that finds what it scores best."""

import pytest
import torch

from prunella.core.errors import ConfigError, DefenseError
from prunella.core.randomness import rehearsal
from prunella.privacy.ats import (
    LIBRARY,
    TransformationSearch,
    _probe,
    accuracy_score,
    ats,
    follow,
    privacy_score,
    search,
    transform,
)

X = torch.rand(6, 3, 12, 12, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("number", range(len(LIBRARY)))
@pytest.mark.parametrize("channels", [1, 3])
def test_every_transformation_gives_other_images_of_the_same_shape_inside_the_box(number: int, channels: int) -> None:
    name, strength = LIBRARY[number]
    x = X[:, :channels]
    shown = transform(x, name, strength, -1.0)
    assert shown.shape == x.shape and shown.dtype == x.dtype and 0 <= float(shown.min()) and float(shown.max()) <= 1
    assert not torch.equal(shown, x)


def test_known_transformations() -> None:
    right = transform(X, "translate-x", 0.5, 1.0)
    assert torch.equal(right[..., 6:], X[..., :6]) and not bool(right[..., :6].any())
    assert torch.equal(transform(X, "translate-y", 0.5, -1.0)[..., :6, :], X[..., 6:, :])
    assert torch.allclose(transform(X, "brightness", 0.4, -1.0), X * 0.6)
    assert len(transform(X, "posterize", 2.0, 1.0).unique()) == 4
    flat = torch.full((1, 1, 4, 4), 0.5)
    assert torch.allclose(transform(flat, "contrast", 0.9, 1.0), flat)
    grey = transform(X, "contrast", 0.9, -1.0)
    assert torch.allclose(grey.mean((1, 2, 3)), X.mean((1, 2, 3)), atol=1e-6) and float(grey.std()) < 0.2 * X.std()
    ramp = torch.linspace(0.4, 0.6, 1024).view(1, 1, 32, 32)
    assert float(transform(ramp, "equalize", 1.0, 1.0).max()) > 0.9


def test_a_descent_that_starts_at_its_goal_has_the_highest_privacy_score() -> None:
    module, params = _probe(X)
    y = torch.zeros(6, dtype=torch.int64)
    at_goal = privacy_score(X, X, y, module, params)
    far = privacy_score(1 - X, X, y, module, params)
    assert torch.allclose(at_goal, torch.ones(6), atol=1e-5) and bool((far < at_goal - 1e-4).all())


def test_images_that_are_all_alike_are_the_least_useful() -> None:
    module, params = _probe(X)
    y = torch.zeros(6, dtype=torch.int64)
    alike = X[:1].expand(6, -1, -1, -1)
    assert accuracy_score(alike, y, module, params) < accuracy_score(X, y, module, params)


def test_the_search_keeps_the_safest_of_the_useful_half() -> None:
    settings = TransformationSearch(candidates=12, policies=3)
    best = search(X, settings, rehearsal(1, purpose="ats"))
    all_of_them = search(X, TransformationSearch(candidates=12, policies=12), rehearsal(1, purpose="ats"))
    assert best.shape == (3, 3)
    places = [next(i for i, p in enumerate(all_of_them) if torch.equal(p, row)) for row in best]
    assert places == sorted(places) and places[0] < 7  # in the order of S_pri; at least six are no worse than useful


def test_apply_gives_each_image_one_of_the_policies() -> None:
    defense = ats(TransformationSearch(candidates=4, policies=2, images=2))
    state = defense.fit(X, rehearsal(0, purpose="fit"))
    shown = defense.apply(X, state, rehearsal(0, purpose="x"))
    two = state["policies"]["policies"]
    signs = torch.cartesian_prod(*[torch.tensor([-1, 1])] * 3)
    possible = [follow(X, policy, s) for policy in two for s in signs]
    for number, image in enumerate(shown):
        assert any(torch.allclose(image, p[number]) for p in possible)
    assert torch.equal(shown, defense.apply(X, state, rehearsal(0, purpose="x")))
    assert not torch.equal(shown, defense.apply(X, state, rehearsal(1, purpose="x")))


def test_bad_settings_images_and_state_are_refused() -> None:
    with pytest.raises(ConfigError, match="policies"):
        TransformationSearch(candidates=1, policies=2)
    defense = ats(TransformationSearch(candidates=2, policies=1, images=1))
    with pytest.raises(DefenseError, match="finite"):
        defense.fit(X.masked_fill(X > 0.5, torch.nan), rehearsal(0, purpose="fit"))
    with pytest.raises(DefenseError, match="finite"):
        defense.fit(X[:0], rehearsal(0, purpose="fit"))
    with pytest.raises(DefenseError, match="search again"):
        defense.apply(X, {"policies": {"policies": torch.tensor([[0, 50, 1]])}}, rehearsal(0, purpose="test"))
    assert defense.fit(torch.zeros(1, 1, 3, 3), rehearsal(0, purpose="fit"))["policies"]["policies"].shape == (1, 3)
