import itertools

import pytest
import torch

from prunella.attacks.score.likeness import alignments, contrast_free, correlations, least, squared_errors


def images(count: int, seed: int) -> torch.Tensor:
    return torch.rand(count, 2, 5, 4, generator=torch.Generator().manual_seed(seed))


def test_squared_errors_are_the_loop_s_and_of_equal_images_exactly_none() -> None:
    a, b = images(3, 0), images(4, 1)
    b[2] = a[1]
    naive = [[float((x.double() - y.double()).square().mean()) for y in b] for x in a]
    torch.testing.assert_close(squared_errors(a, b), torch.tensor(naive, dtype=torch.float64))
    assert squared_errors(a, b)[1, 2] == 0


def test_correlations_are_torch_s_and_ignore_brightness_and_contrast() -> None:
    a, b = images(3, 0), images(4, 1)
    theirs = torch.corrcoef(torch.cat([a, b]).flatten(1).double())[:3, 3:]
    torch.testing.assert_close(correlations(a, b), theirs)
    torch.testing.assert_close(correlations(a, 0.7 - 0.01 * b), -theirs, atol=1e-4, rtol=0)
    assert not contrast_free(torch.full((1, 1, 4, 4), 0.3)).any()


@pytest.mark.parametrize(("rows", "columns"), [(3, 3), (2, 4), (4, 2)])
def test_least_is_the_best_of_all_assignments(rows: int, columns: int) -> None:
    costs = torch.rand(rows, columns, generator=torch.Generator().manual_seed(3)).double()
    few, many = min(rows, columns), max(rows, columns)
    table = costs if rows <= columns else costs.T
    best = min(sum(float(table[i, j]) for i, j in enumerate(p)) for p in itertools.permutations(range(many), few))
    pairs = least(costs)
    assert len(pairs) == few and sum(float(costs[r, c]) for r, c in pairs) == pytest.approx(best)


def test_alignments_are_the_best_of_all_shifts_of_the_loop() -> None:
    a, b = images(3, 0), images(4, 1)
    naive = torch.stack([
        correlations(a, b.roll((down, right), dims=(2, 3))).abs() for down in range(5) for right in range(4)
    ]).amax(0)  # fmt: skip
    found = alignments(a, b)
    assert bool((found >= naive - 1e-5).all()) and found.shape == (3, 4)


@pytest.mark.parametrize("name", ["shifted", "mirrored", "turned", "negative", "large and shifted"])
def test_alignments_know_a_picture_however_it_lies(name: str) -> None:
    size = 24 if name.startswith("large") else 8
    x = torch.rand(6, 1, size, size, generator=torch.Generator().manual_seed(0))
    x = torch.nn.functional.avg_pool2d(x, 3, 1, 1)  # of neighbours that are alike, as pictures' are
    rolled = x.roll((3, -3), dims=(2, 3))
    moved = {"shifted": rolled, "mirrored": x.flip(3), "turned": x.rot90(2, dims=(2, 3)).flip(2), "negative": 1 - x}
    found = alignments(x, moved.get(name, rolled))
    own, others = found.diagonal(), found[~torch.eye(6, dtype=torch.bool)]
    assert float(own.min()) > 0.85 > float(others.max())
    assert not alignments(torch.full((1, 1, 4, 4), 0.3), x[:, :, :4, :4]).any()  # a flat image is like nothing
