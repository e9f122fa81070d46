"""What wraps a strategy of Flower's: messages on their way out, replies on their way in.

A *layer* is a strategy itself, so that layers stack: ``Record(Prune(FedAvg(), "magnitude"), "traces", task, how)``.
Flower's ``start`` calls the outermost one; each hands on to the next, and the innermost is anybody's own. Around a
strategy of Flower's older API, the layers are one of that API (``flower.older``).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import reduce
from logging import INFO
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.server.strategy import Strategy as OlderStrategy
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from prunella.core.errors import ConfigError
from prunella.core.trees import Mask, Tree, map_trees, where, zeros_like
from prunella.core.untrusted import MAX_COUNT
from prunella.flower.arrays import EXAMPLES, OWN, whole
from prunella.flower.older import Inner, Outer
from prunella.strategies.round.masked_mean import MaskedSum
from prunella.wire.records import from_dense, to_dense

Trained = tuple[ArrayRecord | None, MetricRecord | None]


def of_one_form(contents: Sequence[RecordDict], named: str) -> list[bool]:
    """Which of the plain contents of replies have the records that most of them have, by name; of two forms that as
    many have, the one whose model is ``named``. Flower's strategies end the run for one that differs."""

    def names(content: RecordDict) -> tuple[tuple[str, ...], tuple[str, ...]]:
        own = (name for name in content.array_records if not name.startswith(OWN))
        return tuple(sorted(own)), tuple(sorted(content.metric_records))

    found = Counter(map(names, contents))
    most = max(found, key=lambda form: (found[form], form[0] == (named,)), default=None)
    return [names(content) == most for content in contents]


def countable(content: RecordDict, key: str) -> bool:
    """Whether a reply says how much it weighs, as a number that can be one: Flower's strategies divide by the sum."""
    counts = [record.get(key) for record in content.metric_records.values()]
    return len(counts) == 1 and isinstance(counts[0], int | float) and 1 <= counts[0] <= MAX_COUNT


def no_count(key: str) -> str:
    """Why an answer that does not weigh anything is left out, and what its client can do."""
    if key == EXAMPLES:
        return f"its metric {key} is no count"
    return (
        f"its metric {key} is no count: a client with Defend has to list it, as Defend(metrics=({key!r},)); under an ε "
        f"{EXAMPLES} alone leaves: give the strategy weighted_by_key={EXAMPLES!r}"
    )


def weight_key(strategy: Strategy) -> str:
    """The metric by which a strategy averages."""
    return str(getattr(strategy, "weighted_by_key", EXAMPLES))


def common_metrics(replies: Iterable[Message], strategy: Strategy) -> list[Message]:
    """The replies without the metrics that not every record of a name has in one form: as a number, or as a list of as
    many. Flower's strategies end the run over one. What ``strategy`` averages by stays."""
    replies = list(replies)
    contents = [reply.content for reply in replies if not reply.has_error()]

    def forms(record: MetricRecord) -> set[tuple[str, int]]:
        return {(key, len(value) if isinstance(value, list) else -1) for key, value in record.items()}

    for name in dict.fromkeys(name for content in contents for name in content.metric_records):
        held = [content for content in contents if name in content.metric_records]
        common = {key for key, _ in set.intersection(*(forms(content.metric_records[name]) for content in held))}
        common.add(weight_key(strategy))
        for content in held:
            record = content.metric_records[name]
            if left := sorted(record.keys() - common):
                log(INFO, "left out of the metrics, since not every client tells them: %s", ", ".join(left))
                content[name] = MetricRecord({key: value for key, value in record.items() if key in common})
    return replies


def fill(held: list[tuple[RecordDict, Mask, float]], previous: Tree) -> None:
    """Put the mean of those who hold a weight where others do not: a strategy that averages all then finds that mean,
    and the ``previous`` weight where nobody holds it.

    Each is the plain content of an answer, the mask that it was trained under, and its weight.
    """
    trees = [from_dense(whole(content)[1]) for content, _, _ in held]
    mean = MaskedSum(inside := {name: trees[0][name] for name in held[0][1]})
    for tree, (_, base, weight) in zip(trees, held, strict=True):
        mean.add({name: tree[name] for name in base}, base, float(weight))
    somebody = reduce(lambda a, b: a if a is b else map_trees(torch.logical_or, a, b), (base for _, base, _ in held))
    whole_mean = where(somebody, mean.result(zeros_like(inside), "holders"), {name: previous[name] for name in inside})
    for tree, (content, base, _) in zip(trees, held, strict=True):
        name, record = whole(content)
        filled = to_dense({n: torch.where(kept, tree[n], whole_mean[n].to(tree[n].dtype)) for n, kept in base.items()})
        content[name] = ArrayRecord({n: filled.get(n, array) for n, array in record.items()})


class Layer(Strategy):
    """Hands everything on to ``strategy``. Around one of Flower's older API what is made is an ``Outer`` with this
    layer in it. Raises ``ConfigError`` for a strategy that runs its rounds itself."""

    def __new__(cls, strategy: Any = None, *given: Any, **more: Any) -> Any:
        if not isinstance(strategy, OlderStrategy):
            return super().__new__(cls)
        inner = strategy.inner if isinstance(strategy, Outer) else Inner(strategy)
        return Outer(cls(strategy.layer if isinstance(strategy, Outer) else inner, *given, **more), inner)

    def __init__(self, strategy: Strategy) -> None:
        if not isinstance(strategy, Strategy):
            raise ConfigError(
                f"{type(self).__name__} wraps a strategy of flwr.serverapp.strategy or flwr.server.strategy, not "
                f"{type(strategy).__name__}"
            )
        if type(strategy).start is not Strategy.start and not isinstance(strategy, Layer):
            raise ConfigError(
                f"{type(strategy).__name__} has a start() of its own, which nothing can be wrapped around"
            )
        self.strategy = strategy

    def __getattr__(self, name: str) -> Any:
        """Settings of the inner strategy, as an app may read them."""
        if name == "strategy":
            raise AttributeError(name)
        return getattr(self.strategy, name)

    def plain_sent(self, message: Message) -> RecordDict:
        """The content of a message sent, its arrays dense, whatever this layer or one inside made of them."""
        return self.strategy.plain_sent(message) if isinstance(self.strategy, Layer) else message.content

    def plain_reply(self, message: Message) -> RecordDict:
        """The content of a reply, its arrays dense. Raises ``WireError``."""
        return self.strategy.plain_reply(message) if isinstance(self.strategy, Layer) else message.content

    def beside(self, message: Message) -> dict[str, Tree | None]:
        """What else a server sees of a reply, by the fields of ``ServerView``. Raises ``WireError``."""
        return self.strategy.beside(message) if isinstance(self.strategy, Layer) else {}

    @property
    def inside(self) -> "list[Layer]":
        """The layers inside of this one."""
        return [self.strategy, *self.strategy.inside] if isinstance(self.strategy, Layer) else []

    @property
    def named(self) -> str:
        """The name of the model's record in the messages of the strategy."""
        return str(getattr(self.strategy, "arrayrecord_key", "arrays"))

    @property
    def weight(self) -> str:
        """The metric by which the strategy averages."""
        return weight_key(self.strategy)

    def summary(self) -> None:
        self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Trained:
        return self.strategy.aggregate_train(server_round, self._comparable(replies))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return self.strategy.aggregate_evaluate(server_round, self._comparable(replies))

    def _comparable(self, replies: Iterable[Message]) -> Iterable[Message]:
        """By the innermost layer: those outside of it have left out whose answers do not count."""
        return replies if isinstance(self.strategy, Layer) else common_metrics(replies, self.strategy)
