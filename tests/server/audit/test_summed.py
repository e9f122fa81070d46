"""A sum that is played is the mean of its clients; an attack on it rebuilds their images, and nobody else's."""

from dataclasses import replace

import pytest
import torch

from prunella.attacks import ATTACKS
from prunella.attacks.score.leakage import Leakage, score
from prunella.attacks.score.level import level
from prunella.attacks.sgi import Sgi
from prunella.core.config import parse_run
from prunella.core.errors import AttackError
from prunella.core.randomness import stream
from prunella.core.trees import apply_mask, full_mask
from prunella.core.types import PrivateBatch
from prunella.pruning.scores import magnitude
from prunella.pruning.selection import keep_by_score
from prunella.server.audit.canary import load_pool
from prunella.server.audit.shadow import RunShadow, Sent, SentRound, template_of
from prunella.server.audit.summed import shares, summed
from prunella.server.audit.view import expected_view
from prunella.strategies.round.replies import Expected
from prunella.strategies.secure_sum.fixed_point import GRID
from prunella.strategies.secure_sum.vector import SecureSum
from prunella.tasks.data import Examples, load_test
from prunella.tasks.task import Task, initial, prunable

TASK = Task("cnn", (1, 8, 8), 10)
CANARIES, PUBLIC = load_pool(TASK, load_test("digits", None), 0)
RAW = {"strategy": "random", "local-steps": 1, "batch-size": 1}


def played(sites: int, shown: Examples, **raw: object) -> tuple[RunShadow, Sent]:
    given = {**RAW, **raw}
    run, (params, buffers) = parse_run(given), initial(TASK, 0)
    mask = keep_by_score(magnitude(params), prunable(TASK.build()), 0.3)
    pattern = expected_view(run, Expected(1, apply_mask(params, mask), mask, buffers), frozenset())
    whole = replace(pattern, num_examples=sites * run.local_steps * run.batch_size, batch_size=sites * run.batch_size)
    like = template_of(whole, ("none",))
    shadow = RunShadow(given, TASK, like, SentRound(1, whose="canary", sites=sites), PUBLIC)
    return shadow, shadow.play(shown, 0)


def rebuilt(sent: Sent, truth: PrivateBatch) -> Leakage:
    found = ATTACKS["sgi"].reconstruct(sent.view, TASK, Sgi(iterations=150), stream(0, purpose="attack"))
    return score(replace(found, y=None), truth, gallery=PUBLIC)


def test_a_sum_is_the_mean_of_clients_that_train_apart() -> None:
    """Several steps of each on its own images: not what one client with all images would send."""
    many = {"local-steps": 3, "batch-size": 2, "momentum": 0.9}
    shadow, sent = played(3, CANARIES.take(torch.arange(18)), **many)
    alone = RunShadow(shadow.raw, TASK, shadow.like, replace(shadow.round, sites=1), PUBLIC)
    each = [alone.play(CANARIES.take(torch.arange(6 * i, 6 * i + 6)), i, 3, 2) for i in range(3)]
    for name, mean in sent.view.update.items():
        naive = torch.stack([one.view.update[name].double() for one in each]).mean(0)
        assert torch.allclose(mean.double(), naive, rtol=0, atol=GRID)
    assert torch.equal(sent.truth.x, torch.cat([one.truth.x for one in each]))
    assert (sent.view.num_examples, sent.view.batch_size, sent.view.steps) == (18, 6, 3)
    together = alone.play(CANARIES.take(torch.arange(18)), 0, 3, 6).view.update
    assert max(float((together[n] - sent.view.update[n]).abs().max()) for n in together) > 100 * GRID


def test_buffers_come_back_as_the_mean_of_their_changes_and_counts_stay_whole() -> None:
    _, sent = played(1, CANARIES.take(torch.arange(1)))
    before = {"mean": torch.zeros(2), "count": torch.tensor(3)}
    views = [
        replace(sent.view, buffers=before, received_buffers={"mean": torch.full((2,), x), "count": torch.tensor(4)})
        for x in (0.25, 0.75)
    ]
    found = summed(views, full_mask(sent.view.params), SecureSum()).received_buffers
    assert found["mean"].tolist() == [0.5, 0.5] and found["count"].item() == 4 and found["count"].dtype == torch.int64


def test_two_sites_with_an_image_each_are_rebuilt_from_their_sum_and_no_others() -> None:
    own, others = CANARIES.take(torch.arange(2)), CANARIES.take(torch.arange(2, 4))
    (_, sent), (_, wrong) = played(2, own), played(2, others)
    for site in range(2):
        mine = PrivateBatch(sent.truth.x[site : site + 1], sent.truth.y[site : site + 1])
        found = rebuilt(sent, mine)
        assert found.psnr.mean > 30 and found.images == 1 and level({"scores": found.to_dict()}) == "rebuilt"
        foreign = rebuilt(wrong, mine)
        assert foreign.psnr.mean < 20 and level({"scores": foreign.to_dict()}) != "rebuilt"


def test_a_sum_without_an_image_of_every_site_in_every_step_is_none() -> None:
    for images, batch in ((2, 3), (3, 2)):
        with pytest.raises(AttackError, match="an image of each in every step"):
            shares(images, batch, 3)
    rows = shares(7, 6, 3)
    assert torch.cat([each for each, _ in rows]).tolist() == list(range(7)) and [size for _, size in rows] == [2, 2, 2]
