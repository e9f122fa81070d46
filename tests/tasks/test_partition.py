import numpy as np
import pytest

from prunella.core.errors import ConfigError, DataError
from prunella.tasks.partition import Partition, members

LABELS = np.random.default_rng(7).integers(0, 10, 600)


def _shares(partition, labels=LABELS, ids=None):
    return [members(partition, client, labels, ids) for client in range(partition.clients)]


@pytest.mark.parametrize("kind", ["iid", "dirichlet"])
@pytest.mark.parametrize("clients", [1, 2, 7])
def test_shares_are_disjoint_and_cover(kind, clients):
    shares = _shares(Partition(kind, clients, alpha=0.5))
    assert np.array_equal(np.sort(np.concatenate(shares)), np.arange(len(LABELS)))
    assert min(map(len, shares)) > 0


def test_natural_shares_are_the_ids():
    ids = np.array([f"writer-{i % 5}" for i in range(len(LABELS))])
    shares = _shares(Partition("natural", 5), LABELS, ids)
    assert [set(ids[share]) for share in shares] == [{f"writer-{k}"} for k in range(5)]
    assert sum(map(len, shares)) == len(LABELS)


def _skew(alpha):
    """Mean distance of a client's class shares from the population's, over several seeds."""
    population = np.bincount(LABELS, minlength=10) / len(LABELS)
    gaps = [
        np.abs(np.bincount(LABELS[share], minlength=10) / len(share) - population).sum()
        for seed in range(5)
        for share in _shares(Partition("dirichlet", 5, alpha, seed))
    ]
    return np.mean(gaps)


def test_skew_grows_as_alpha_falls():
    assert _skew(0.1) > 1.5 * _skew(1.0) > 1.5 * _skew(100.0) > 0
    assert _skew(1e5) < 0.1


def test_iid_shares_are_even_and_not_in_file_order():
    labels = np.sort(LABELS)
    shares = _shares(Partition("iid", 4), labels)
    assert {len(share) for share in shares} == {150}
    assert all(len(np.unique(labels[share])) == 10 for share in shares)


def test_the_seed_decides():
    for kind in ("iid", "dirichlet"):
        a, b, c = (members(Partition(kind, 3, 1.0, seed), 0, LABELS) for seed in (0, 0, 1))
        assert np.array_equal(a, b) and not np.array_equal(a, c)


def test_same_shares_as_flower_datasets():
    import datasets
    from flwr_datasets import partitioner as flower

    ids = np.array([f"w{i % 6:02d}" for i in range(len(LABELS))])
    rows = datasets.Dataset.from_dict({"label": LABELS, "row": np.arange(len(LABELS)), "who": ids}).shuffle(seed=3)
    theirs = {
        "iid": flower.IidPartitioner(6),
        "natural": flower.NaturalIdPartitioner("who"),
        "dirichlet": flower.DirichletPartitioner(6, "label", 0.4, min_partition_size=1, seed=3),
    }
    for kind, partitioner in theirs.items():
        partitioner.dataset = rows
        for client in range(6):
            expected = partitioner.load_partition(client)["row"]
            assert members(Partition(kind, 6, 0.4, 3), client, LABELS, ids).tolist() == list(expected)


@pytest.mark.parametrize(
    ("partition", "client", "message"),
    [
        (Partition("iid", 3), 3, "not one of 3"),
        (Partition("iid", 3), -1, "not one of 3"),
        (Partition("iid", 601), 0, "too few examples for 601 clients"),
        (Partition("dirichlet", 300, alpha=0.01), 0, "raise alpha"),
        (Partition("natural", 3), 0, "no natural ids"),
    ],
)
def test_shares_that_cannot_be(partition, client, message):
    with pytest.raises(DataError, match=message):
        members(partition, client, LABELS)


def test_more_clients_than_natural_ids():
    with pytest.raises(DataError, match="more natural ids than there are"):
        members(Partition("natural", 3), 2, LABELS, LABELS % 2)


@pytest.mark.parametrize(
    "wrong", [("random", 2, 1.0), ("iid", 0, 1.0), ("dirichlet", 2, 0.0), ("dirichlet", 2, float("nan"))]
)
def test_settings_out_of_range(wrong):
    with pytest.raises(ConfigError):
        Partition(*wrong)
