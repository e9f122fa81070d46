"""What the owner of an app has to be told once in a run, since nothing else would show it.

At the server: that clients answer without ``Defend``, though the run names defenses (``Undefended``). At a client: that
batch norm's statistics leave undefended, what an ε cannot know of a loader or of layers that stay there, and which
numbers do.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from logging import INFO, WARNING
from typing import Any, TypeGuard

import torch
from flwr.app import Message, MetricRecord, RecordDict
from flwr.common.config import get_fused_config
from flwr.common.logger import log
from flwr.serverapp import Grid
from torch import nn

from prunella.core.trees import Tree
from prunella.flower.arrays import EXAMPLES, MARK, is_buffer
from prunella.flower.site import Site, asked_names

MOST = 3  # arrays that are named one by one


def _config_of(grid: Grid | None) -> Mapping[str, Any]:
    """The run's configuration; empty where the grid or the installed app does not tell it. A strategy is not given
    it."""
    try:
        return {} if grid is None else get_fused_config(grid.run)
    except Exception:  # noqa: BLE001 - a grid of somebody's own: what is told is less, and the run goes on
        return {}


class Undefended:
    """Tells the server's log once whether clients answer without ``Defend``: as a warning where the run names defenses.

    ``dense`` says that such clients are sent and answer dense arrays where others are not (``Prune``).
    """

    def __init__(self, run_config: Mapping[str, Any] | None = None, dense: bool = False) -> None:
        self._config, self._dense, self._told = run_config, dense, False
        self._grid: Grid | None = None

    def begin(self, grid: Grid) -> None:
        """Remember the ``grid`` of the round, which knows the run."""
        self._grid = grid

    def look(self, replies: Iterable[Message]) -> list[Message]:
        """The answers of a round, as they came."""
        replies = list(replies)
        answered = [reply.content for reply in replies if not reply.has_error()]
        without = [content for content in answered if MARK not in content.config_records]
        if without and not self._told:
            self._told = True
            self._tell(f"{len(without)} of {len(answered)} clients answered without Defend")
        return replies

    def _tell(self, who: str) -> None:
        config = _config_of(self._grid) if self._config is None else self._config
        named = ",".join(name for name in asked_names(config) if name != "none")
        what = f"{who}: undefended{', and dense' if self._dense else ''}"
        if named:
            log(WARNING, "the run names defenses '%s', but %s: write ClientApp(mods=[Defend()])", named, what)
        else:
            log(INFO, "%s", what)


def tell_statistics(site: Site, after: Tree, before: Tree) -> None:
    """Warn the site's log once in a run of statistics of batch norm that leave past its defenses."""
    defenses = [name for name in site.names if name != "none"]
    moved = [n for n in after if is_buffer(n, after) and not torch.equal(after[n], before[n])]
    if defenses and moved and site.first("statistics"):
        log(
            WARNING,
            "batch norm's running statistics leave undefended (%s): %s works on weights only; use GroupNorm, "
            "which an ε allows, too",
            _some(moved),
            ",".join(defenses),
        )


def _some(names: Sequence[str]) -> str:
    """The first of many names.

    >>> _some(["a"]), _some(list("abcdef"))
    ('a', 'a, b, c and 3 more')
    """
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return ", ".join(names[:MOST]) + more


def is_finite_number(value: object) -> TypeGuard[int | float]:
    """Whether a metric is of the kind that leaves: no list, and neither NaN nor infinite."""
    return isinstance(value, int | float) and -1e300 < value < 1e300


def tell_own_loader(site: Site) -> None:
    """Warn once in a run, in the site's log, of what an ε cannot know of a loader of the app's own."""
    if site.first("loader"):
        log(
            WARNING,
            "guard.step on batches of a loader of your own: its ε holds only if no random number changes an example "
            "before it is here, as augmentation does; otherwise take guard.loader(loader)",
        )


def tell_kept(site: Site, model: nn.Module, came: Container[str]) -> None:
    """Warn once in a run, in the site's log, of floating arrays of the model that are not among those that ``came``: an
    ε covers the steps of a guarded loop, and not what has made these. Buffers that no ``state_dict`` holds are made by
    the model's own code (frequencies of positions, masks of attention)."""
    state = model.state_dict().keys()
    buffers = [(name, buffer) for name, buffer in model.named_buffers() if name in state]
    kept = [name for name, t in (*model.named_parameters(), *buffers) if t.is_floating_point() and name not in came]
    if kept and site.first("kept"):
        log(
            WARNING,
            "the guarded model has arrays that did not come with the message (%s): its ε holds only if they are made "
            "of nothing that is private, as layers trained here are, or a mean of this client's images",
            _some(kept),
        )


def tell_withheld(site: Site, content: RecordDict, listed: Container[str]) -> None:
    """Name once in a run, in the site's log, the numbers of an answer that stay on the client: those that are not
    listed, and of those listed the ones that are no finite number of the first record of metrics."""
    names = dict.fromkeys(name for record in content.metric_records.values() for name in record)
    leaving = next(iter(content.metric_records.values()), MetricRecord())
    dropped = [n for n in names if n in listed and not is_finite_number(leaving.get(n))]
    if dropped and site.first("dropped"):
        log(
            WARNING,
            "metrics that are listed and did not leave: %s; only finite numbers of one record leave, no lists. Where "
            "another client tells one, Flower's strategies end the run, unless Record, Prune or Robust is around them",
            ", ".join(dropped),
        )
    kept = [name for name in names if name != EXAMPLES and name not in listed]
    if not kept or not site.first("withheld"):
        return
    how = f"list those that may leave: Defend(metrics={tuple(kept)!r}), or metrics='{','.join(kept)}' at the node"
    if site.chain.private is not None:
        how = "under an ε no number leaves but the count of examples"
    log(INFO, "metrics that stay on this client: %s; %s", ", ".join(kept), how)
