"""The view of an audit: exactly what the server saw of one client, or of all of them as one sum.

A sum is attacked as what it is: the mean update of all its clients' images together. The server knows how many clients
are in it, the run's steps and batch size, and the sum of their example counts, but no client's own. Clients take their
steps apart and the attacks take them together, which is the same for one step of equal batches without batch norm, and
else an approximation: the control, a sum of public clients that step apart, shows what the attack is worth there.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from prunella.attacks.engine import beside
from prunella.attacks.engine.case import noisy_images
from prunella.attacks.engine.statistics import determined_by
from prunella.core.config import Run
from prunella.core.trees import Mask, Tree, add, apply_mask, map_trees, subtract, zeros_like
from prunella.core.types import ServerView
from prunella.server.audit.job import Job
from prunella.strategies.round.replies import Contribution, Expected
from prunella.strategies.round.telling import squares_tell
from prunella.strategies.secure_sum.collector import OpenedSum, moved
from prunella.tasks.task import Task

SQUARES = "squared gradients of pruned weights left beside the update, and nothing explained them"
STATISTICS = (
    "batch norm's statistics left beside the update, more numbers than its images have pixels, and nothing explained "
    "them"
)
UNEQUAL = (
    "the sum hides how much each client weighs, and the attack takes all as equal: they are where every client has {0} "
    "examples (local-steps × batch-size) or more and secure-sum.examples={0}"
)


def view_of(run: Run, expected: Expected, contribution: Contribution, start: Tree) -> ServerView:
    """Exactly what the server saw of one client in one round. ``start``: the weights from which training began."""
    moved = add(contribution.update, subtract(expected.params, start))
    return replace(
        expected_view(run, expected, frozenset()),
        params=start,
        update=apply_mask(moved, contribution.shared),
        mask=contribution.base,
        shared=contribution.shared,
        importance=contribution.importance,
        received_buffers=contribution.buffers,
        num_examples=min(run.local_steps * run.batch_size, contribution.weight),
        batch_size=min(run.batch_size, contribution.weight),
        defenses=contribution.applied,
    )


def any_left(squares: Tree | None) -> bool:
    """Whether squared gradients came at all. A site with conditions sends zeros."""
    return squares is not None and any(bool(t.any()) for t in squares.values())


def never_audited(run: Run, sent: Sequence[int], audits: Iterable[Mapping[str, Any]], queue: Path) -> str:
    """What verdicts have to know of the rounds in which squared gradients were ``sent``: "" if a view in which there
    were some was audited, or if none had to be. ``queue`` has the jobs that led to the ``audits``."""
    told = {(job.round, job.client) for job in Job.all(queue) if job.squares and job.kind == "client"}
    clients = [a for a in audits if a["kind"] == "client" and a["round"] in sent]
    scored = {(a["round"], a["client"]) for a in clients if a["outcome"] != "no-consent"}
    if not sent or not run.audit_every or told & scored or not squares_tell(run.defense_names):
        return ""
    which = f"round {sent[0]}" if len(sent) == 1 else f"rounds {', '.join(map(str, sent[:-1]))} and {sent[-1]}"
    none = "which was not audited" if len(sent) == 1 else "none of which was audited"
    return f"squared gradients left beside the updates of {which}, {none} (audit-every={sent[0]} audits them)"


def standing(doubt: str, explained: bool | None, found_by: str | None) -> str:
    """What is left of a view's doubt once its attack has ended. Images that explain the squares or the statistics
    settle one about these. Images that explain the update alone do not: other images may do so behind a defense. Nor
    does anything settle what a sum hides of its clients."""
    settled = {SQUARES: beside.SQUARES, STATISTICS: beside.STATISTICS}.get(doubt)
    return "" if explained and settled is not None and found_by == settled else doubt


def unread(view: ServerView, task: Task) -> str:
    """Why finding nothing in a view, of a client or a sum, and images that do not explain it, would prove nothing; ""
    where nothing is known that would: what the defenses withhold of the update, or change in it, may be told by what
    leaves around them, squared gradients and batch norm's statistics."""
    if set(view.defenses) <= {"none"}:
        return ""
    if not noisy_images(view) and determined_by(task.structure(), view, task.shape, view.images_used or 1):
        return STATISTICS
    if view.importance is None or view.shared is None or not squares_tell(view.defenses):
        return ""
    return SQUARES if any(bool(t[~view.shared[name]].any()) for name, t in view.importance.items()) else ""


def expected_view(run: Run, expected: Expected, importance: frozenset[str]) -> ServerView:
    """The view of a client that sent nothing and holds at least as many images as its steps take: the pattern of a
    round's canaries where no client is audited. ``importance`` names the tensors whose squared gradients are sent."""
    nothing = zeros_like(expected.params)
    return ServerView(
        params=expected.params,
        update=nothing,
        mask=expected.mask,
        shared=expected.mask,
        buffers=expected.buffers,
        importance={name: nothing[name] for name in sorted(importance)} or None,
        received_buffers=expected.buffers,
        num_examples=run.local_steps * run.batch_size,
        steps=run.local_steps,
        batch_size=run.batch_size,
        learning_rate=run.rate_in(expected.round),
        momentum=run.momentum,
        weight_decay=run.weight_decay,
        defenses=expected.defenses,
    )


def moved_mask(expected: Expected, base: Mask) -> Mask | None:
    """The mask a client was sent, where it moved that while it trained. One that only shrank was so from the start."""
    inside = base is expected.mask or not any(bool((base[name] & ~kept).any()) for name, kept in expected.mask.items())
    return None if inside else expected.mask


def sum_view(run: Run, expected: Expected, opened: OpenedSum, counted: int) -> ServerView:
    """What the server saw of all clients of a masked sum. Each counts for ``counted`` examples at most, so a sum of
    counts says how many images were used only where that is no fewer than a round's."""
    sites, each = len(opened.clients), run.local_steps * run.batch_size
    known = opened.examples if counted >= each else sites * each
    return replace(
        expected_view(run, expected, frozenset()),
        update=map_trees(lambda mean, like: mean.to(like.dtype), opened.update, expected.params),
        received_buffers=map_trees(moved, expected.buffers, opened.change),
        num_examples=min(sites * each, known),
        batch_size=min(sites * run.batch_size, known),
    )


def unequal(run: Run, opened: OpenedSum, counted: int) -> str:
    """Why finding nothing in a sum would prove nothing where its clients may weigh differently, "" where they do not.
    Each counts for ``counted`` examples at most."""
    each = run.local_steps * run.batch_size
    equal = counted >= each and opened.examples == len(opened.clients) * counted
    return "" if equal else UNEQUAL.format(each)
