"""An upload that is cut in the middle, over an emulated thin link between two network namespaces.

Needs root, iproute2 and ``/dev/net/tun``.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from prunella.benchmarks.speed.link import SITES, Deployed, cut_upload
from prunella.benchmarks.speed.thin_link import Line, missing, thin_link
from prunella.client.accounts import FILE
from prunella.core.files import read_tree

pytestmark = [pytest.mark.federation, pytest.mark.timeout(900)]
ROUNDS, STEPS = 3, 8
GIVEN = ("model=cnn", "strategy=fedavg", "defenses=dp-sgd", f"rounds={ROUNDS}", f"local-steps={STEPS}")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    if why := missing():
        pytest.skip(why)
    with ExitStack() as stack:
        try:
            link = stack.enter_context(thin_link(Line(rate=1e6, delay=0.1, loss=0.01)))
        except OSError as error:
            pytest.skip(f"a thin link is not permitted here: {error}")
        made = Deployed(link, tmp_path_factory.mktemp("link"), stack)
        made.open()
        yield made


def charged(place: Deployed, site: str) -> int:
    """Local steps that the site's account was ever charged for."""
    _, metadata = read_tree(place.folder / site / "state" / FILE)
    return sum(charge["steps"] for charges in json.loads(metadata["charges"]).values() for charge in charges)


def test_an_upload_cut_for_some_seconds_holds_the_run_up_no_longer_and_is_charged_once(place: Deployed) -> None:
    """A site that is silent for 20 s before it has announced its reply is left out of that round, whether it trained or
    not, and asked anew in the next. Nobody is charged for more than was trained, or for less than counted."""
    figures = cut_upload(place, "cut", 8.0, *GIVEN)
    assert [line["value"] for line in place.lines("cut", "round")] == list(range(1, ROUNDS + 1))
    assert figures["left out"] <= 1.0 and figures["longest"] > 8.0
    spent = [charged(place, site) for site in SITES]
    assert all(steps % STEPS == 0 and steps <= ROUNDS * STEPS for steps in spent)
    assert sum(spent) >= (ROUNDS * len(SITES) - figures["left out"]) * STEPS
