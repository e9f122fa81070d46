"""What the server may know of a sum: an update of all its clients together. Of one client: ``test_queue``."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from prunella.attacks.engine import beside
from prunella.core.config import Run
from prunella.core.files import write_json
from prunella.core.trees import full_mask
from prunella.core.types import ServerView
from prunella.server.audit.job import JOB, Job
from prunella.server.audit.view import (
    SQUARES,
    STATISTICS,
    UNEQUAL,
    expected_view,
    never_audited,
    standing,
    sum_view,
    unread,
)
from prunella.strategies.round.replies import Expected
from prunella.strategies.secure_sum.collector import OpenedSum
from prunella.tasks.task import Task, initial

TASK = Task("resnet10", (3, 32, 32), 10)
PARAMS, BUFFERS = initial(TASK, 0)
EXPECTED = Expected(2, PARAMS, full_mask(PARAMS), BUFFERS)
MEAN = {name: torch.ones_like(tensor, dtype=torch.float64) for name, tensor in PARAMS.items()}
CHANGE = {name: torch.ones_like(tensor, dtype=torch.float64) for name, tensor in BUFFERS.items()}


def opened(examples: int) -> OpenedSum:
    return OpenedSum(MEAN, CHANGE, examples, (0, 1, 3))


@pytest.mark.parametrize(
    ("examples", "counted", "images", "batch"),
    [
        (900, 65536, 24, 12),  # three clients, two steps of four
        (15, 65536, 15, 12),  # they cannot have used more than they have
        (9, 65536, 9, 9),
        (3, 1, 24, 12),  # counts that are cut say nothing
        (24, 8, 24, 12),
    ],
)
def test_the_images_of_a_sum_are_those_of_all_its_clients(examples: int, counted: int, images: int, batch: int) -> None:
    view = sum_view(Run(local_steps=2, batch_size=4), EXPECTED, opened(examples), counted)
    assert (view.num_examples, view.batch_size, view.steps) == (images, batch, 2)
    assert view.labels is None and view.importance is None


def test_the_update_and_the_buffers_are_those_that_were_opened() -> None:
    view = sum_view(Run(), EXPECTED, opened(900), 65536)
    alone = expected_view(Run(), EXPECTED, frozenset())
    assert all(
        torch.equal(t, torch.ones_like(PARAMS[n])) and t.dtype == PARAMS[n].dtype for n, t in view.update.items()
    )
    assert all(torch.equal(t, BUFFERS[n] + 1) and t.dtype == BUFFERS[n].dtype for n, t in view.received_buffers.items())
    assert (view.params, view.mask, view.shared) == (alone.params, alone.mask, alone.shared)


def test_the_rate_is_the_round_s() -> None:
    run = Run(learning_rate=0.5, learning_rate_decay=0.1)
    views = [expected_view(run, EXPECTED, frozenset()), sum_view(run, EXPECTED, opened(9), 9)]
    assert [view.learning_rate for view in views] == [0.05, 0.05]  # of round 2


@pytest.mark.parametrize(
    ("defenses", "squares", "doubted"),
    [
        (("priprune",), 0.5, True),
        (("channel-natural", "dgp"), 0.5, True),
        (("somebody:OWN",), 0.5, True),
        (("priprune",), 0.0, False),  # of a client whose owner has conditions
        (("none",), 0.5, False),  # the update says more
        (("gaussian", "dgp"), 0.5, False),
    ],
)
def test_squares_that_no_attack_reads_leave_a_doubt(defenses: tuple[str, ...], squares: float, doubted: bool) -> None:
    name = next(n for n, t in PARAMS.items() if t.ndim > 1)
    half = {n: torch.arange(t.numel()).reshape(t.shape) % 2 == 0 for n, t in PARAMS.items()}
    view = replace(expected_view(Run(), EXPECTED, frozenset()), shared=half, defenses=defenses)
    inside = {name: torch.where(half[name], 1.0, 0.0)}
    assert unread(view, TASK) == unread(replace(view, importance=inside), TASK) == ""
    outside = replace(view, importance={name: torch.where(half[name], 1.0, squares)})
    assert unread(outside, TASK) == unread(replace(outside, steps=1), TASK) == (SQUARES if doubted else "")


def test_images_that_explain_a_view_settle_what_nothing_explained_and_not_what_a_sum_hides() -> None:
    unequal, doubts = UNEQUAL.format(8), ("", SQUARES, STATISTICS, UNEQUAL.format(8))
    assert [standing(doubt, True, beside.SQUARES) for doubt in doubts] == ["", "", STATISTICS, unequal]
    assert [standing(doubt, True, beside.STATISTICS) for doubt in doubts] == ["", SQUARES, "", unequal]
    for found_by in (None, "sgi"):  # of the update, which other images explain behind a defense
        assert [standing(doubt, True, found_by) for doubt in doubts] == list(doubts)
    for explained in (False, None):
        assert [standing(doubt, explained, beside.SQUARES) for doubt in doubts] == list(doubts)


@pytest.mark.parametrize(
    ("changes", "sent", "words"),
    [
        ({}, [4, 8], "rounds 4 and 8, none of which was audited (audit-every=4 audits them)"),
        ({}, [4], "round 4, which was not audited (audit-every=4 audits them)"),
        ({}, [4, 10], ""),
        ({"audit_every": 0}, [4, 8], ""),  # nothing is judged
        ({"defenses": "none"}, [4, 8], ""),  # the update tells more
        ({"defenses": "gaussian"}, [4, 8], ""),
        ({"defenses": "channel-natural"}, [4, 8], ""),  # squares of the same noisy images
        ({"defenses": "dgp,leakage-guard"}, [4, 8], ""),
        ({}, [], ""),
    ],
)
def test_rounds_in_which_more_leaves_are_told_where_none_was_audited(
    tmp_path: Path, changes: dict[str, object], sent: list[int], words: str
) -> None:
    audits: list[dict[str, object]] = [
        {"round": 10, "kind": "client", "client": 0, "outcome": "scored"},
        {"round": 10, "kind": "client", "client": 1, "outcome": "scored"},
        {"round": 4, "kind": "control", "client": None, "outcome": "scored"},
        {"round": 8, "kind": "client", "client": 0, "outcome": "no-consent"},
    ]
    run = Run(**{"rounds": 10, "audit_every": 10, "defenses": "priprune", **changes})
    told = f"squared gradients left beside the updates of {words}" if words else ""
    for client in (0, 1):
        file(
            tmp_path, *(Job(a["round"], a["kind"], a["client"], "", "", squares=a["client"] != client) for a in audits)
        )  # type: ignore[arg-type]
        assert never_audited(run, sent, audits, tmp_path) == told, "one of two clients kept its squares"


def test_the_audit_of_a_site_that_kept_its_squares_is_none_of_those_that_left(tmp_path: Path) -> None:
    audits = [{"round": 4, "kind": "client", "client": 0, "outcome": "scored"}]
    file(tmp_path, Job(4, "client", 0, "", "", squares=False))
    assert never_audited(Run(defenses="priprune"), [4], audits, tmp_path).endswith("(audit-every=4 audits them)")


def file(queue: Path, *jobs: Job) -> None:
    for job in jobs:
        (queue / job.folder).mkdir(exist_ok=True)
        write_json(queue / job.folder / JOB, {"job": asdict(job)})


@pytest.mark.parametrize(
    ("defenses", "images", "doubted"),
    [
        (("gaussian",), 1, True),
        (("top-k", "mask-hiding"), 1, True),
        (("gaussian",), 2, False),  # 160 statistics are too few for 128 pixels
        (("channel-natural", "gaussian"), 1, False),  # statistics of noisy images
        (("none",), 1, False),
    ],
)
def test_statistics_that_nothing_explains_leave_a_doubt(defenses: tuple[str, ...], images: int, doubted: bool) -> None:
    task = Task("tests.attacks.engine.test_beside:wide", (1, 8, 8), 10)
    params, buffers = initial(task, 0)
    moved = {name: buffer + 1 for name, buffer in buffers.items()}
    view = ServerView(params, params, buffers=buffers, received_buffers=moved, defenses=defenses, num_examples=images)
    assert unread(view, task) == (STATISTICS if doubted else "")
    assert unread(replace(view, steps=3), task) == unread(view, task), "each step's own, of the same images"
    assert (
        unread(replace(view, received_buffers={}), task) == unread(replace(view, received_buffers=buffers), task) == ""
    )
