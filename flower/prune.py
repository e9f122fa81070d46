"""``Prune``: this project's pruning schemes around any strategy of Flower's that averages.

    strategy = Prune(FedAvg(fraction_train=0.5), "magnitude", rate=0.3)

The scheme's mask is everybody's. It is applied to the model before the strategy sees it, to every reply before the
strategy averages them, and to what the strategy makes of them, so that the optimiser of FedAdam and its like works on
the pruned model. At rate 0 nothing is touched: the strategy's own bits.

*What is pruned:* ``flower.prunable``. With ``model``, the app's module, it is read off layers; without, off names.

*Schemes.* ``random`` and ``magnitude`` need nothing more, ``synflow`` the model and the shape of its input, ``snip``
and ``grasp`` public examples (x, y) beside. ``prunefl`` and ``feddst`` need clients with ``Defend`` and ``protected``
(``flower.scheme``); clients without train along under the mask. PruneFL counts what a weight costs in multiply-adds
where it is given model and shape, and else the same for all. FedDST's move is due after ``train_first`` of
``local_steps``, which the app's loop has to reach; its mean is over those who hold a weight: for the strategy, the
others answer that mean. ``fed-ltp-one-shot`` starts from its winning ticket in place of the strategy's own weights, and
needs public examples and the ``task``. The other schemes need Prunella's own clients.

*On the wire.* A client with ``Defend`` says so in its answers. From then on it is sent the kept weights only, with the
mask's bits where it does not hold them, and answers with the weights that differ (``flower.arrays``). Before, the bits
of a mask and what the scheme asks for stand in a config record ``prunella`` beside the dense model, which an app does
not look at. Clients without are sent dense arrays, zeros included. A client that answers a coded message with an error
is sent dense ones again.

In a mixed federation ``Defend`` may withhold metrics that other clients tell; those that not all tell are left out, as
Flower's strategies would refuse to aggregate them.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor, nn

from prunella.core.config import kebab, parse_run
from prunella.core.errors import ConfigError, WireError
from prunella.core.trees import Mask, Tree, apply_mask, count, full_mask, size
from prunella.flower.arrays import (
    MARK,
    REST,
    WIRE,
    Shapes,
    close_record,
    fits,
    floats,
    is_coded,
    open_answer,
    whole,
)
from prunella.flower.layer import Layer, Trained, common_metrics, countable, fill
from prunella.flower.legacy import positions
from prunella.flower.prunable import prunable_names
from prunella.flower.record import Record
from prunella.flower.scheme import BASE, IMPORTANCE, SchemeOrder
from prunella.pruning.selection import density
from prunella.strategies import find, scheme_settings
from prunella.strategies.prunefl import PruneFL
from prunella.strategies.round.replies import Contribution, ReplyError, read_base, read_importance
from prunella.strategies.round.server_model import ServerModel
from prunella.strategies.round.strategy import MaskedMean
from prunella.tasks.examples import Examples
from prunella.tasks.task import Task
from prunella.wire.encode import encode_mask, fingerprint
from prunella.wire.records import from_dense, record_bytes, to_dense
from prunella.wire.sparse import SparseTree

SCHEMES = ("random", "magnitude", "synflow", "snip", "grasp", "prunefl", "feddst", "fed-ltp-one-shot")
NEEDS_MODEL, NEEDS_PUBLIC = {"synflow", "snip", "grasp"}, {"snip", "grasp", "fed-ltp-one-shot"}
INSTEAD = {
    "lotteryfl": "its clients prune by scores of held-out examples, each to a mask of its own: take feddst",
    "fed-ltp-iterative": "every client gets a mask of its own, and Prune has one for all: take fed-ltp-one-shot",
}
logger = logging.getLogger(__name__)


class Prune(Layer):
    """``rate`` is the share of the prunable weights that is removed; ``settings`` are the scheme's (``ramp_rounds=3``).

    ``model`` is the app's module, ``shape`` its input [C, H, W], ``public`` images and labels that are nobody's secret,
    ``local_steps`` how many a client takes in a round (FedDST), ``task`` the model to draw fresh weights of, in place
    of ``model`` and ``shape`` (Fed-LTP one-shot). Raises ``ConfigError``.
    """

    def __init__(
        self,
        strategy: Strategy,
        scheme: str,
        rate: float = 0.3,
        *,
        seed: int = 0,
        model: nn.Module | None = None,
        shape: tuple[int, int, int] | None = None,
        public: tuple[Tensor, Tensor] | None = None,
        task: Task | None = None,
        local_steps: int = 5,
        **settings: Any,
    ) -> None:
        super().__init__(strategy)
        if wrong := [type(layer).__name__ for layer in self.inside if isinstance(layer, Prune | Record)]:
            raise ConfigError(f"{wrong[0]} stands inside of Prune: write Record(Prune(...)), and Prune once")
        entry = find(scheme)
        if scheme not in SCHEMES:
            why = f" ({INSTEAD[scheme]})" if scheme in INSTEAD else ""
            raise ConfigError(f"{scheme} needs Prunella's own clients{why}; Prune works with {', '.join(SCHEMES)}")
        if task is not None:
            model, shape = model or task.build(), task.shape
        elif scheme == "fed-ltp-one-shot":
            fix = 'task=Task("my_app.task:Net", (3, 32, 32), 10), from prunella import Task'
            raise ConfigError(f"{scheme} starts from fresh weights of the model, which it has to be told: {fix}")
        if scheme in NEEDS_MODEL and (model is None or shape is None):
            raise ConfigError(f"{scheme} needs the model and the shape of its input: model=Net(), shape=(3, 32, 32)")
        if scheme in NEEDS_PUBLIC and public is None:
            raise ConfigError(f"{scheme} prunes on examples that are nobody's secret: give public=(images, labels)")
        if scheme == "prunefl" and (model is None or shape is None):
            if settings.setdefault("cost", "uniform") != "uniform":
                raise ConfigError("prunefl counts multiply-adds in the model: give model=Net(), shape=(3, 32, 32)")
        self._raw = {f"{entry.section or scheme}.{kebab(key)}": value for key, value in settings.items()}
        self._run = parse_run({"strategy": scheme, "rate": rate, "seed": seed, "local-steps": local_steps})
        self._settings = scheme_settings(scheme, self._raw)
        self._model, self._shape, self._public, self._task = model, shape, public, task
        self._entry = entry
        self._scheme: MaskedMean | None = None
        self.mask: Mask | None = None
        self.bytes_down = self.bytes_up = 0
        self._coding: dict[int, bytes] = {}  # by node with Defend: the fingerprint of the mask it holds
        self._without: set[int] = set()  # nodes that answered without Defend
        self._sent: dict[int, RecordDict] = {}  # by node: what its message says, dense
        self._shapes: dict[int, Shapes] = {}  # by node: what its last dense message had, and it reads coded ones by

    # ---- the mask

    def _begin(self, tree: Tree, ask: Callable[[], Iterator[Message]]) -> Tree:
        """Make the scheme and the first mask; ``ask`` asks clients for one, if the scheme has them make it. Returns the
        weights to start from where they are not those of ``tree``."""
        names = prunable_names(tree, self._model)
        public = None if self._public is None else Examples(*self._public)
        module, shape = self._model or nn.Identity(), self._shape or (1, 1, 1)
        known, params = ServerModel(module, shape, tuple(floats(tree)), names, public, self._task), self._params(tree)
        first: Tree = {}
        came = {} if self._model is None else positions(self._model, tree)
        own = {name: name for name in params} | {at: name for name, at in came.items() if at in params}
        self._scheme = self._entry.strategy(self._run, known, self._settings)
        if not self._run.rate:
            self.mask = full_mask(params)
        elif isinstance(self._scheme, PruneFL):
            if self._scheme.settings.cost != "uniform" and any(at != name for at, name in own.items()):
                why = "prunefl counts multiply-adds by names, and arrays of Flower's older API have none"
                raise ConfigError(f"{why}: leave shape= out")
            everything = full_mask(params)
            found = (self._read_first(self._scheme, reply, everything) for reply in ask())
            self.mask = next((mask for mask in found if mask is not None), everything)
        else:
            # By the module's names, which its layers are found by. These schemes ask no client.
            parameters, prunable = tuple(own[n] for n in known.parameters), frozenset(own[n] for n in names)
            named, mine = replace(known, parameters=parameters, prunable=prunable), {own[n]: params[n] for n in params}
            maker = self._entry.strategy(self._run, named, self._settings)
            given, mask = maker.first_model(mine, cast("Any", None), [])
            self.mask = {n: {**full_mask(mine), **mask}[own[n]] for n in params}
            if not given.keys() <= mine.keys():
                raise ConfigError("the task's model has other arrays than those sent: name the app's own model")
            first = {} if given is mine else {n: given[own[n]].to(tree[n].dtype) for n in params if own[n] in given}
        if count(self.mask) == size(self.mask) and self._entry.client.first_mask and self._run.rate:
            logger.warning("no client made a first mask, so the first rounds are dense")
        return first

    def _ask_first(self, messages: Iterable[Message], grid: Grid) -> Iterator[Message]:
        """The answers of those whom the strategy asks in its first round, one after the other, until one will do."""
        order = self._order(0)
        for message in sorted(messages, key=lambda each: each.metadata.dst_node_id):
            content = RecordDict({**message.content, MARK: ConfigRecord(order.record())})
            asked = Message(content, dst_node_id=message.metadata.dst_node_id, message_type=MessageType.TRAIN)
            self.bytes_down += sum(record_bytes(record) for record in content.array_records.values())
            yield from grid.send_and_receive([asked], timeout=self._run.round_seconds)

    def _read_first(self, scheme: PruneFL, reply: Message, everything: Mask) -> Mask | None:
        mask = scheme.read_mask(reply, everything)
        if reply.has_content():
            self.bytes_up += sum(record_bytes(record) for record in reply.content.array_records.values())
        if mask is None:
            why = reply.error.reason if reply.has_error() else "its mask is not a valid one"
            logger.warning("node %d makes no first mask: %s", reply.metadata.src_node_id, why)
        return mask

    def _order(self, server_round: int) -> SchemeOrder:
        """What the scheme asks of clients in a round; round 0 makes the first mask."""
        part, scheme = self._entry.client, self._scheme
        if scheme is None or not self._run.rate:
            return SchemeOrder()
        asks = part.plan is not None or bool(scheme.importance_names(server_round)) or not server_round
        if not asks:
            return SchemeOrder()
        names = tuple(sorted(scheme.model.prunable))
        costs = scheme.costs() if isinstance(scheme, PruneFL) and not server_round else {}
        told = tuple(costs[name] for name in names) if costs else ()
        run, settings = self._run, json.dumps(self._raw)
        return SchemeOrder(run.strategy, server_round, run.rate, run.local_steps, names, told, settings)

    @staticmethod
    def _params(tree: Tree) -> Tree:
        """Scores are made in float32; buffers get a full mask like any other array that is not prunable."""
        return {name: t if t.dtype == torch.float64 else t.float() for name, t in floats(tree).items()}

    @property
    def density(self) -> float:
        """Share of the prunable weights that the mask keeps; 1 before the first round."""
        return density(self.mask, self._scheme.model.prunable) if self.mask and self._scheme else 1.0

    def _masked(self, arrays: ArrayRecord, mask: Mask | None = None) -> ArrayRecord:
        """The arrays under the mask, everybody's if no other is given; the record itself where nothing is pruned."""
        mask = self.mask or {} if mask is None else mask
        if count(mask) == size(mask):
            return arrays
        thin = [name for name in arrays if name in mask and not bool(mask[name].all())]
        whole_ones = from_dense(ArrayRecord({name: arrays[name] for name in thin}))
        if odd := [name for name in thin if whole_ones[name].shape != mask[name].shape]:
            raise WireError("shape", f"{odd[0]} does not have the shape of the model's")
        pruned = to_dense(apply_mask(whole_ones, {name: mask[name] for name in thin}))
        return ArrayRecord({name: pruned.get(name, array) for name, array in arrays.items()})

    # ---- what Flower calls

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        configure = super().configure_train
        if self.mask is None:
            ask = lambda: self._ask_first(configure(server_round, arrays, config, grid), grid)  # noqa: E731
            first = to_dense(self._begin(from_dense(arrays), ask))
            arrays = ArrayRecord({name: first.get(name, array) for name, array in arrays.items()})
        masked, scheme = self._masked(arrays), self._scheme
        if scheme is not None and self.mask is not None:
            found = self._params(from_dense(masked))
            scheme.downlink.begin(server_round, {name: found[name] for name in self.mask}, self.mask, {})
        return self._outgoing(configure(server_round, masked, config, grid), self._order(server_round))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self._outgoing(
            super().configure_evaluate(server_round, self._masked(arrays), config, grid), SchemeOrder()
        )

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Trained:
        arrays, metrics = super().aggregate_train(server_round, self._incoming(replies, trained=True))
        if arrays is None or self._scheme is None or self.mask is None:
            return arrays, metrics
        found = self._params(from_dense(arrays))  # averaging makes a float of batch norm's counter: not in the mask
        params = apply_mask({name: found[name] for name in self.mask}, self._limit)
        if self._run.rate:
            self.mask = self._scheme.revise_mask(server_round, params, self.mask)
        return self._masked(arrays), metrics

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return super().aggregate_evaluate(server_round, self._incoming(replies, trained=False))

    @property
    def _limit(self) -> Mask:
        """Where this round's answers may have values."""
        allowed = self._scheme.downlink.expected().allowed if self._scheme else None
        return (self.mask or {}) if allowed is None else allowed

    # ---- the wire

    def _outgoing(self, messages: Iterable[Message], order: SchemeOrder) -> list[Message]:
        """Code the messages of nodes that read coded ones, and tell those that may have Defend what is asked."""
        messages, coded, shapes_of = list(messages), dict[tuple[int, bool], RecordDict](), dict[int, Shapes]()
        self._sent = {message.metadata.dst_node_id: message.content for message in messages}
        mask = self.mask or {}
        pruned = count(mask) < size(mask)
        for message in messages:
            node, content = message.metadata.dst_node_id, message.content
            shapes = shapes_of.setdefault(id(content), Shapes.of(from_dense(whole(content)[1])))
            if node in self._coding and self._shapes.get(node) == shapes:
                holds = self._coding[node] == fingerprint(self.mask or {})
                if (id(content), holds) not in coded:
                    coded[id(content), holds] = self._coded(content, holds)
                message.content, told = coded[id(content), holds], b""
            else:
                self._shapes[node], told = shapes, _bits(mask, shapes) if pruned and node not in self._without else b""
            mark = {**({"mask": told} if told else {}), **(order.record() if order.scheme else {})}
            if mark and node not in self._without:
                message.content = RecordDict({**message.content, MARK: ConfigRecord(mark)})
                self.bytes_down += len(told)
            self.bytes_down += sum(record_bytes(record) for record in message.content.array_records.values())
        return messages

    def _coded(self, content: RecordDict, holds: bool) -> RecordDict:
        name, record = whole(content)
        tree, mask = from_dense(record), self.mask or {}
        kept, rest = close_record(tree, {n: mask[n] for n in tree if n in mask}, mask if holds else None)
        others = {n: r for n, r in content.items() if n != name}
        return RecordDict({name: kept, **({REST: rest} if rest else {}), **others})

    def plain_sent(self, message: Message) -> RecordDict:
        return self._sent.get(message.metadata.dst_node_id, message.content)

    def plain_reply(self, message: Message) -> RecordDict:
        """What the strategy sees of a reply: dense, zero outside the mask, without this project's own records."""
        content = message.content
        others = {n: r for n, r in content.items() if n not in content.array_records and n != MARK}
        if not content.array_records:
            return RecordDict(others)
        name, record = whole(content)
        if is_coded(content):
            if message.metadata.src_node_id not in self._sent:
                raise WireError("malformed", "a coded answer of a client that nobody asked")
            _, sent = whole(self._sent[message.metadata.src_node_id])
            record = to_dense(open_answer(content, from_dense(sent), self.mask or {}))
        return RecordDict({name: self._masked(record, self._base(content)), **others})

    def beside(self, message: Message) -> dict[str, Tree | None]:
        """The mask that a client trained under, and the squared gradients that it sent."""
        content = message.content
        return {**super().beside(message), "mask": self._base(content), "importance": self._importance(content)}

    def _importance(self, content: RecordDict) -> Tree | None:
        """Of an answer, where the scheme asked for them. Raises ``WireError`` or ``ReplyError``."""
        if IMPORTANCE not in content.array_records or self._scheme is None or not self._sent:
            return None
        expected = self._scheme.downlink.expected()
        names = self._scheme.importance_names(expected.round)
        like = {name: expected.params[name].float() for name in sorted(names)}
        return read_importance(content.array_records[IMPORTANCE], like) if names else None

    def _base(self, content: RecordDict) -> Mask:
        """The mask that a client trained under: the one it was sent, or where the scheme lets it move, its own."""
        if BASE in content.array_records and self._scheme is not None:
            try:
                return read_base(content.array_records[BASE], self._scheme.downlink.expected())
            except ReplyError as error:
                raise WireError("mask", str(error)) from error
        return self.mask or {}

    def _incoming(self, replies: Iterable[Message], trained: bool) -> list[Message]:
        """The replies as the strategy is to see them. One that cannot be read is left out, and the log says so."""
        result, held = [], list[tuple[RecordDict, Mask, float]]()
        for reply in replies:
            node = reply.metadata.src_node_id
            if reply.has_error():
                self._coding.pop(node, None)
                result.append(reply)
                continue
            self.bytes_up += sum(record_bytes(record) for record in reply.content.array_records.values())
            try:
                plain = self.plain_reply(reply)
                if trained:
                    self._require_fit(node, plain)
                    found = self._contribution(reply, plain)
                    held.append((plain, found.base, found.weight))
            except (WireError, ReplyError) as error:
                self._coding.pop(node, None)
                logger.warning("the answer of node %d is left out: %s", node, error)
                continue
            if trained and self._scheme is not None:
                self._scheme.note(found)
            self._note(node, reply.content.config_records.get(MARK))
            reply.content = plain
            result.append(reply)
        if any(base is not self.mask for _, base, _ in held):
            fill(held)
        common_metrics([reply.content for reply in result if not reply.has_error()])
        return result

    def _contribution(self, reply: Message, plain: RecordDict) -> Contribution:
        """What the scheme is told of an answer."""
        content = reply.content
        base, importance, (weights,) = self._base(content), self._importance(content), plain.metric_records.values()
        node, weight = reply.metadata.src_node_id, cast("int", weights[self.weight])
        return Contribution(node, base, SparseTree({}, {}), base, weight, 0.0, 0, importance)

    def _require_fit(self, node: int, plain: RecordDict) -> None:
        """Raise ``WireError`` for an answer that the strategy could not average with the others."""
        if node not in self._sent or not fits(*(from_dense(whole(c)[1]) for c in (plain, self._sent[node]))):
            raise WireError("shape", "its arrays are not those of the model")
        if not countable(plain, self.weight):
            raise WireError("malformed", f"its metric {self.weight} is no count")

    def _note(self, node: int, mark: ConfigRecord | None) -> None:
        if mark is not None and mark.get("wire") == WIRE:
            held = mark.get("mask")
            self._coding[node] = held if isinstance(held, bytes) else b""
        else:
            self._without.add(node)


def _bits(mask: Mask, shapes: Shapes) -> bytes:
    """The mask over all floating arrays of a message: averaging makes one of batch norm's counter."""
    return encode_mask({n: mask.get(n, torch.ones_like(t, dtype=torch.bool)) for n, t in shapes.like().items()})
