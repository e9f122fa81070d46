import torch

from prunella.attacks.engine.sparse_factors import (
    candidates,
    chosen,
    completed,
    evened,
    kernels,
    sparsest,
    unmixed,
    zeros_of,
)
from prunella.core.randomness import stream


def factors(m: int, b: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """D, about half zeros, and X."""
    g = stream(0, purpose="factors")
    columns = torch.randn((m, b), generator=g, dtype=torch.float64)
    return columns * (torch.rand((m, b), generator=g) < 0.5), torch.rand((b, n), generator=g, dtype=torch.float64)


def alike(left: torch.Tensor, q: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """For each column of D the largest cosine with one of L q."""
    found = left @ q.T
    return ((found / found.norm(dim=0)).T @ (columns / columns.norm(dim=0))).abs().amax(dim=0)


def test_a_random_start_is_a_kernel_and_descending_from_it_finds_a_column() -> None:
    columns, inputs = factors(120, 8, 40)
    left = torch.linalg.svd(columns @ inputs, full_matrices=False)[0][:, :8]
    rows, metric = evened(left)
    assert torch.allclose(rows.T @ rows * 8 / 120, torch.eye(8, dtype=torch.float64), atol=1e-6)
    torch.testing.assert_close((left @ metric) / (left @ metric).norm(dim=1, keepdim=True), rows)
    starts = kernels(rows, 30, stream(1, purpose="start"))
    assert int(((starts @ rows.T).abs() < 1e-9).sum(dim=1).min()) >= 7
    q = sparsest(rows, starts) @ metric.T
    assert int((alike(left, q, columns) > 0.99999).sum()) >= 6
    assert int((alike(left, starts @ metric.T, columns) > 0.99999).sum()) <= 3
    pool = left.new_zeros((0, 8))
    for seed in range(3):
        more = candidates(left, pool, 16, 0.0, stream(seed, purpose="start"))
        pool = unmixed(left, chosen(left, torch.cat([pool, more]), 0.0), 0.0)
    assert len(pool) == 8 and float(alike(left, pool, columns).min()) > 0.99999


def test_with_one_direction_fixed_the_descent_has_one_end() -> None:
    """In the place of a column that is mixed with all others the fixed product finds the column again."""
    columns, _ = factors(120, 6, 1)
    basis = torch.eye(6, dtype=torch.float64)
    basis[0] += 0.3
    held = torch.linalg.inv(basis)[:, :1].T
    q = sparsest(columns, basis[:1] / basis[:1].norm(), held)
    assert float(q[0, 0].abs()) > 0.99999


def test_the_most_frequent_ratio_takes_a_mixture_apart() -> None:
    columns, _ = factors(120, 4, 1)
    mixed = torch.eye(4, dtype=torch.float64)
    mixed[1, 0], mixed[3, 2], mixed[3, 0] = 0.7, -2.0, 0.4
    assert float(alike(columns, mixed, columns).min()) < 0.97
    assert float(alike(columns, unmixed(columns, mixed, 0.0), columns).min()) > 0.99999


def test_the_chosen_have_most_zeros_and_are_independent() -> None:
    columns, _ = factors(120, 3, 1)
    pool = torch.eye(3, dtype=torch.float64)[[0, 0, 1, 2]]
    pool[1, 1] = 0.5
    picked = chosen(columns, pool, 0.0)
    assert len(picked) == 3 and float(alike(columns, picked, columns).min()) > 0.99999


def test_gaps_are_filled_exactly_and_what_arrived_stays() -> None:
    columns, inputs = factors(60, 3, 50)
    whole, arrived = columns @ inputs, torch.rand((60, 50), generator=stream(2, purpose="gap")) < 0.5
    found = completed(whole * arrived, arrived, 3, 60)
    assert torch.equal(found[arrived], whole[arrived])
    live = (columns != 0).any(dim=1)
    torch.testing.assert_close(found[live], whole[live], rtol=1e-6, atol=1e-6)
    assert float((completed(whole * arrived, arrived, 1, 60) - whole).abs().max()) > 0.1


def test_noise_raises_what_counts_as_zero_and_one_image_needs_no_search() -> None:
    columns = torch.tensor([[1.0], [1e-3], [0.0], [1.0]], dtype=torch.float64)
    q = torch.ones((1, 1), dtype=torch.float64)
    assert zeros_of(columns, q, 0.0).flatten().tolist() == [False, False, True, False]
    assert zeros_of(columns, q, 1e-3).flatten().tolist() == [False, True, True, False]
    assert candidates(columns, q[:0], 2, 0.0, stream(0, purpose="start")).tolist() == [[1.0]]
