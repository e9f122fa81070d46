import numpy as np
import torch

from prunella.tasks.datasets import digits
from prunella.tasks.partition import Partition


def test_is_what_scikit_learn_loads():
    from sklearn.datasets import load_digits

    reference, ours = load_digits(), digits.everything()
    assert np.array_equal(ours.x.numpy()[:, 0] * 16, reference.images)
    assert np.array_equal(ours.y.numpy(), reference.target)


def test_the_split_is_fixed_and_complete():
    train, test = digits.split()
    assert (len(train), len(test)) == (1438, 359)
    rows = {tuple(image.flatten().tolist()) for part in (train, test) for image in part.x}
    assert rows == {tuple(image.flatten().tolist()) for image in digits.everything().x}
    assert test.y.bincount().min() >= 20
    assert torch.equal(digits.split()[1].x, test.x)


def test_clients_never_see_the_held_out_part():
    train, test = digits.split()
    shares = [digits.client_share(None, Partition("iid", 3), client) for client in range(3)]
    seen = torch.cat([share.x for share in shares]).flatten(1)
    assert torch.equal(seen.sort(dim=0).values, train.x.flatten(1).sort(dim=0).values)
    known = {tuple(x.flatten().tolist()): int(y) for x, y in zip(train.x, train.y, strict=True)}
    assert all(known[tuple(x.flatten().tolist())] == int(y) for s in shares for x, y in zip(s.x, s.y, strict=True))
    assert torch.cat([share.y for share in shares]).bincount().tolist() == train.y.bincount().tolist()
