"""``Robust``: this project's robust aggregations (``strategies.round.robust``) around any averaging strategy.

    strategy = Prune(Robust(FedAvg(min_train_nodes=3), "median", liars=1), "magnitude", rate=0.3)

The replies of a round are merged by the rule, and the strategy is handed that one model in every reply: what it
averages is then the robust model, and what it does afterwards (FedAdam's step) it does with that. A coordinate that a
client left as it was sent counts as its vote to leave it, since a foreign app's reply does not tell that from an
abstention. A first round that asks fewer than the quorum, 2f+1 clients for f liars, ends the run, since no answers
could move the model; where later fewer are there, or fewer answer well, it stays as it was sent.

Inside ``Prune`` the rule sees pruned models. Arrays of integers are merged by their median. A reply with other names,
shapes or kinds of numbers, a value that is not finite or a count that is none is left out. All replies that are left
weigh the same.
"""

import logging
from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from prunella.core.config import kebab, parse_section
from prunella.core.errors import ConfigError, WireError, unknown
from prunella.core.trees import Tree, full_mask, subtract
from prunella.flower.arrays import OWN, fits, whole
from prunella.flower.central import refuse_beside, wrapper_around, wrapper_inside
from prunella.flower.layer import Layer, Trained, countable, no_count, of_one_form
from prunella.strategies.round.robust import BESIDE_NORM_BOUND, ROBUST, Median, by_median, quorum
from prunella.wire.records import from_dense, to_dense

logger = logging.getLogger(__name__)


class Robust(Layer):
    """``rule`` is ``median``, ``trimmed-mean`` or ``norm-bound``; ``settings`` are the rule's (``liars=1``).

    Raises ``ConfigError``, in a first round that asks too few clients to outvote the liars, too.
    """

    def __init__(self, strategy: Strategy, rule: str = "median", **settings: Any) -> None:
        super().__init__(strategy)
        if rule not in ROBUST:
            raise unknown("robust aggregation", rule, ROBUST)
        self._refuse(wrapper_inside(strategy))
        raw = {f"{rule}.{kebab(key)}": value for key, value in settings.items()}
        self._rule = ROBUST[rule]
        self._settings: Any = parse_section(raw, rule, self._rule.settings)
        self._liars = int(getattr(self._settings, "liars", BESIDE_NORM_BOUND))
        self._quorum = 1 if rule == "norm-bound" else quorum(self._liars)
        self._before: Tree = {}
        self._asked = False  # any client, by now

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._refuse(wrapper_around())
        self._before = from_dense(arrays)
        messages = list(super().configure_train(server_round, arrays, config, grid))
        asked = len({message.metadata.dst_node_id for message in messages})
        first, self._asked = not self._asked, True
        if first and 0 < asked < self._quorum:
            fewer = f", or tolerate fewer with liars={(asked - 1) // 2}" if asked > 2 else ""
            raise ConfigError(
                f"round {server_round} asks {asked} clients, and {self._quorum} answers are needed to outvote "
                f"{self._liars} malicious: set the strategy's min_train_nodes={self._quorum} (min_fit_clients of the "
                f"older API){fewer}"
            )
        return messages

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Trained:
        read, errors = self._read(replies)
        if not read:
            return super().aggregate_train(server_round, errors)
        merged = self._merged([tree for _, tree in read])
        for reply, tree in read:
            name, _ = whole(reply.content)
            others = {n: r for n, r in reply.content.items() if n != name}
            if not isinstance(self.strategy, Layer):  # which understands records of ours; Flower's ends the run
                others = {n: r for n, r in others.items() if not n.startswith(OWN)}
            model = {key: merged[key].to(self._before[key].dtype) for key in tree}
            others |= {n: MetricRecord({**r, self.weight: 1}) for n, r in reply.content.metric_records.items()}
            reply.content = RecordDict({name: to_dense(model), **others})
        return super().aggregate_train(server_round, [*(reply for reply, _ in read), *errors])

    def _refuse(self, wrapper: str) -> None:
        """Raise ``ConfigError`` beside a ``wrapper`` for central differential privacy."""
        refuse_beside(type(self).__name__, wrapper, "leave one of the two out")

    def _read(self, replies: Iterable[Message]) -> tuple[list[tuple[Message, Tree]], list[Message]]:
        """The replies whose arrays are the model's, and those that are errors."""
        read, errors, contents = list[tuple[Message, Tree]](), list[Message](), list[RecordDict]()
        for reply in replies:
            if reply.has_error():
                errors.append(reply)
                continue
            try:
                plain = self.plain_reply(reply)
                tree = from_dense(whole(plain)[1])
                if not fits(tree, self._before):
                    raise WireError("shape", "its arrays are not those of the model, or not finite")
                if not countable(reply.content, self.weight):
                    raise WireError("malformed", no_count(self.weight))
                read.append((reply, tree))
                contents.append(plain)
            except WireError as error:
                logger.warning("the answer of node %d is left out: %s", reply.metadata.src_node_id, error)
        alike = of_one_form(contents, self.named)
        for (reply, _), kept in zip(read, alike, strict=True):
            if not kept:
                logger.warning("the answer of node %d is left out: its records differ", reply.metadata.src_node_id)
        return [each for each, kept in zip(read, alike, strict=True) if kept], errors

    def _merged(self, trees: list[Tree]) -> Tree:
        """The model after the round, in float64. Names, not order, say which array is which."""
        before = {name: tensor.double() for name, tensor in self._before.items()}
        if len(trees) < self._quorum:
            logger.warning(
                "%d valid answers, and %d are needed to outvote %d liars: the model stays as it was sent",
                len(trees),
                self._quorum,
                self._liars,
            )
            return before
        params = {n: t for n, t in before.items() if self._before[n].is_floating_point()}
        others = {n: t for n, t in before.items() if n not in params}
        merged: Tree = {}
        for part, total in (
            (params, self._rule.make(params, self._settings)),
            (others, by_median(others, Median(self._liars))),
        ):
            everywhere = full_mask(part)
            for tree in trees:
                total.add(subtract({n: tree[n].double() for n in part}, part), everywhere, 1.0)
            merged |= total.result(part, "holders")
        return merged
