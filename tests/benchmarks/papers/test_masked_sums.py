"""What the table attacks is what masked sums show; the figures themselves are in docs."""

import pytest
import torch

from prunella.attacks.score.leakage import psnr
from prunella.benchmarks.engine.claim import Point
from prunella.benchmarks.engine.views import answer
from prunella.benchmarks.papers import masked_sums as bench
from prunella.core.randomness import stream
from prunella.strategies.secure_sum.fixed_point import GRID
from prunella.tasks.data import Examples, load_test
from prunella.tasks.task import Task

TASK = Task("cnn", (1, 8, 8), 10)


def private(sites: int) -> Examples:
    images = load_test("digits", None)
    assert images is not None
    return images.take(torch.arange(sites))


def test_the_view_of_a_sum_is_an_update_of_all_images() -> None:
    own = private(3)
    view = bench.honest(TASK, own, 0)
    one = [bench.view_of(TASK, own, 0, site) for site in range(3)]
    for name, mean in view.update.items():
        naive = sum(each.update[name].double() for each in one) / 3
        assert torch.allclose(mean.double(), torch.as_tensor(naive), rtol=0, atol=GRID)
    assert view.num_examples == view.batch_size == 3 and view.labels is not None and len(view.labels) == 3


@pytest.mark.parametrize("sites", [2, 4])
def test_silenced_others_leave_the_first_update_alone(sites: int) -> None:
    own = private(sites)
    alone, found = bench.view_of(TASK, own, 0, 0), bench.silenced(TASK, own, 0)
    worst = max(float((alone.update[n] - found.update[n]).abs().max()) for n in found.update)
    assert worst < sites * GRID
    summed = bench.honest(TASK, own, 0)
    assert max(float((alone.update[n] - summed.update[n]).abs().max()) for n in found.update) > 100 * sites * GRID


def test_loki_takes_the_first_site_s_image_out_of_the_sum_as_if_it_were_alone() -> None:
    task, own = Task("prunella.attacks.loki:cnn", (1, 8, 8), 10), private(4)
    alone, summed = (
        answer("loki", bench.planted(task, those, 0), task, 0, stream(0, purpose="loki")).x[:1]
        for those in (own.take(torch.arange(1)), own)
    )
    assert psnr(own.x[:1], alone)[0] > 15 and torch.allclose(alone, summed, atol=0.01)
    assert psnr(own.x[1:2], summed)[0] < 15


def test_public_images_help_with_a_sum_of_sixteen() -> None:
    images = load_test("digits", None)
    assert images is not None
    own, public = images.take(torch.arange(16)), images.take(torch.arange(16, len(images)))
    view = bench.honest(TASK, own, 0)
    mean = lambda found: bench.told(found, own, public)["psnr"]  # noqa: E731
    plain = mean(answer("ig", view, TASK, 100, stream(0, purpose="ig")))
    assert mean(bench.by_components(view, TASK, public, 100, 0)) > plain + 2


def test_the_judgement_compares_numbers_of_sites_and_servers() -> None:
    def points(last: float) -> list[Point]:
        honest = dict(zip(map(str, bench.SITES), (30.0, 25.0, 22.0, 20.0, 18.0, 16.0, last), strict=True))
        rows = {("mnist", sites, bench.HONEST): value for sites, value in honest.items()}
        rows |= {("mnist", str(bench.SITES[-1]), server): 30.0 for server in (bench.SILENCED, bench.LOKI)}
        return [Point(label, {"psnr": (v, v + 0.1, v)}) for label, v in rows.items()]

    assert bench.judge(points(12.0)).word == "holds" and bench.judge(points(29.0)).word != "holds"
