"""``Prune``: this project's pruning schemes around any strategy of Flower's that averages.

    strategy = Prune(FedAvg(fraction_train=0.5), "magnitude", rate=0.3)

The scheme's mask is everybody's, or a client's own. It is applied to the model before the strategy sees it, to every
reply before the strategy averages them, and to what the strategy makes of them, so that the optimiser of FedAdam and
its like works on the pruned model. At rate 0 nothing is touched: the strategy's own bits. With the run's configuration
it also holds the location sets that ``defenses = "adgp"`` needs (``flower.aligned``).

*What is pruned:* ``flower.prunable``. With ``model``, the app's module, it is read off layers; without, off names.

*Schemes.* ``random`` and ``magnitude`` need nothing more, ``synflow`` the model and the shape of its input, ``snip``
and ``grasp`` public examples (x, y) beside. ``prunefl`` and ``feddst`` need clients with ``Defend`` and ``protected``
(``flower.scheme``); clients without train along under the mask. PruneFL counts what a weight costs in multiply-adds
where it is given model and shape, and else the same for all. FedDST's move is due after ``train_first`` of
``local_steps``, which the app's loop has to reach; its mean is over those who hold a weight: for the strategy, the
others answer that mean, and where nobody holds it, what it was. The Fed-LTP schemes start from a winning ticket in
place of the strategy's own weights, and need public examples and the ``task``.

*Masks of single clients.* ``fed-ltp-iterative`` gives each node one of its models when it is first asked, and asks the
strategy once more at the start, for how many that will be, unless ``slots`` says so. In ``lotteryfl`` clients prune on
their own (``flower.planned``). A client without ``Defend`` is sent dense arrays under the mask it was given (in
``lotteryfl`` everybody's, which stays full), trains all of them, and counts in the mean inside that mask only. Masks
are known by node id: a SuperNode without a registered key that starts again is a new client.

*On the wire.* A client with ``Defend`` says so in its answers. From then on it is sent the kept weights only, with the
mask's bits where it does not hold them, and answers with the weights that differ (``flower.arrays``). Before, the bits
of a mask and what the scheme asks for stand in a config record ``prunella`` beside the dense model, which an app does
not look at. Clients without are sent dense arrays, zeros included. A client that answers a coded message with an error
is sent dense ones again.

In a mixed federation ``Defend`` may withhold metrics that other clients tell; those that not all tell are left out, as
Flower's strategies would refuse to aggregate them.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from logging import INFO
from typing import Any, cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor, nn

from prunella.core.errors import ConfigError, WireError
from prunella.core.trees import Mask, Tree, apply_mask, count, full_mask, size
from prunella.flower.aligned import Aligned
from prunella.flower.arrays import MARK, fits, is_coded, open_answer, whole
from prunella.flower.central import refuse_beside, wrapper_around, wrapper_inside
from prunella.flower.layer import Layer, Trained, countable, fill, no_count, of_one_form
from prunella.flower.nodes import KnownNodes, masked
from prunella.flower.notices import Undefended
from prunella.flower.record import Record, applied, is_recorded
from prunella.flower.scheme import BASE, IMPORTANCE, SchemeOrder
from prunella.flower.setup import Given, Setup, scored
from prunella.privacy.adgp import NAME as ADGP
from prunella.strategies import one_public_mask
from prunella.strategies.prunefl import PruneFL
from prunella.strategies.round.replies import Contribution, ReplyError, read_base, read_importance
from prunella.strategies.round.roster import Member
from prunella.strategies.round.strategy import MaskedMean
from prunella.tasks.task import Task
from prunella.wire.encode import decode_mask
from prunella.wire.records import from_dense, record_bytes, to_dense
from prunella.wire.sparse import SparseTree

logger = logging.getLogger(__name__)


class Prune(Layer):
    """``rate`` is the share of the prunable weights that is removed; ``settings`` are the scheme's (``ramp_rounds=3``).

    ``model`` is the app's module, ``shape`` its input [C, H, W], ``public`` images and labels that are nobody's secret,
    ``local_steps`` how many a client takes in a round (FedDST), ``task`` the model to draw fresh weights of, in place
    of ``model`` and ``shape`` (Fed-LTP), ``run_config`` the run's, of which ADGP's settings are read. Raises
    ``ConfigError``.
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
        run_config: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(strategy)
        if wrong := [type(layer).__name__ for layer in self.inside if isinstance(layer, Prune | Record)]:
            raise ConfigError(f"{wrong[0]} stands inside of Prune: write Record(Prune(...)), and Prune once")
        if any(map(is_recorded, (*self.inside, [self, *self.inside][-1].strategy))):
            raise ConfigError(
                "record(...) stands inside of Prune, where masks and defenses are not seen: write Record(Prune(...), "
                "folder, task, training)"
            )
        run = {"strategy": scheme, "rate": rate, "seed": seed, "local-steps": local_steps}
        self._setup = Setup.of(run, settings, Given(model, shape, public, task))
        self._run, self._entry = self._setup.run, self._setup.entry
        self._aligned = Aligned.of(run_config, self._entry, scheme, seed)
        if self._aligned is not None or (rate and not one_public_mask(scheme)):
            named = scheme if self._aligned is None else ADGP
            refuse_beside(named, wrapper_inside(strategy), "choose random or magnitude, and another defense than adgp")
        self._undefended = Undefended(run_config, dense=True)
        self._scheme: MaskedMean | None = None
        self.mask: Mask | None = None
        self.bytes_down = self.bytes_up = 0
        self._before = (0, 0)  # bytes down and up before the round
        self._own: dict[int, Mask] = {}  # of this round, by node, where it is not everybody's
        self._first: ArrayRecord | None = None  # what the run starts from, where clients go back to it
        self._nodes = KnownNodes()

    # ---- the mask

    def _begin(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> ArrayRecord:
        """Make the scheme and the first mask. Returns the arrays to start from."""
        configure, tree = super().configure_train, from_dense(arrays)

        def messages() -> list[Message]:
            return list(configure(server_round, arrays, config, grid))

        def ask(scheme: MaskedMean) -> Iterator[Mask | None]:
            everything = full_mask(scored(tree))
            for reply in self._ask_first(messages(), self._setup.order(scheme, 0), grid):
                yield self._read_first(cast("PruneFL", scheme), reply, everything)

        self._scheme, self.mask, weights = self._setup.begin(tree, ask, lambda: len(messages()))
        if count(self.mask) == size(self.mask) and self._entry.client.first_mask and self._run.rate:
            logger.warning("no client made a first mask, so the first rounds are dense")
        first = to_dense(weights)
        arrays = ArrayRecord({name: first.get(name, array) for name, array in arrays.items()})
        self._first = arrays if self._setup.rewinds() else None
        return arrays

    def _ask_first(self, messages: Iterable[Message], order: SchemeOrder, grid: Grid) -> Iterator[Message]:
        """The answers of those whom the strategy asks in its first round, one after the other, until one will do."""
        for message in sorted(messages, key=lambda each: each.metadata.dst_node_id):
            content = RecordDict({**message.content, MARK: ConfigRecord(order.record())})
            asked = Message(content, dst_node_id=message.metadata.dst_node_id, message_type=MessageType.TRAIN)
            self.bytes_down += sum(record_bytes(record) for record in content.array_records.values())
            yield from grid.send_and_receive([asked], timeout=self._run.round_seconds)

    def _read_first(self, scheme: PruneFL, reply: Message, everything: Mask) -> Mask | None:
        if reply.has_content():
            self.bytes_up += sum(record_bytes(record) for record in reply.content.array_records.values())
        try:
            return scheme.read_mask(reply, everything)
        except (ReplyError, WireError) as error:
            logger.warning("node %d makes no first mask: %s", reply.metadata.src_node_id, error)
            return None

    @property
    def density(self) -> float:
        """Share of the prunable weights that the mask keeps, or the mean of clients' own; 1 before the first round."""
        return self._scheme.downlink.density(self.mask) if self.mask and self._scheme else 1.0

    def mask_of(self, node: int) -> Mask:
        """The mask that a node was last sent the model under."""
        return self._own.get(node, self.mask or {})

    def _address(self, nodes: list[int], server_round: int | None = None) -> None:
        """Find the masks of those who are sent something; in a training round the scheme may give them out."""
        scheme, self._own = self._scheme, {}
        if scheme is None or not self._run.rate:
            return
        members = [Member(node, node) for node in sorted(nodes)]
        if server_round is not None:
            scheme.downlink.asked = {member.node: member for member in members}
            scheme.assign(server_round, members)
        masks: dict[bytes, Mask] = {}
        for node, coded in scheme.downlink.address(members).items():
            if coded is not None:
                if coded not in masks:
                    masks[coded] = decode_mask(coded, self.mask or {})
                self._own[node] = masks[coded]

    # ---- what Flower calls

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if outside := wrapper_around():
            raise ConfigError(f"{outside} cannot read the messages of Prune inside of it: write Prune({outside}(...))")
        begins, self._before = self.mask is None, (self.bytes_down, self.bytes_up)
        self._undefended.begin(grid)
        if not begins and not (self.mask or {}).keys() <= arrays.keys():
            raise ConfigError("this Prune has pruned a model of other arrays: make one for each start()")
        if begins:
            arrays = self._begin(server_round, arrays, config, grid)
        pruned, scheme = masked(arrays, self.mask or {}), self._scheme
        if scheme is not None and self.mask is not None:
            found = scored(from_dense(pruned))
            scheme.downlink.begin(server_round, {name: found[name] for name in self.mask}, self.mask, {})
        messages = list(super().configure_train(server_round, pruned, config, grid))
        nodes = [message.metadata.dst_node_id for message in messages]
        self._address(nodes, server_round)
        if self._aligned is not None:
            able = [node for node in nodes if node in self._nodes.held]
            able = able or [node for node in nodes if node not in self._nodes.without] or nodes
            self._aligned.begin(server_round, pruned, self.mask or {}, able)
        order = self._setup.order(scheme, server_round)
        return self._outgoing(messages, replace(order, starts=begins and self._first is not None), self._aligned)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = list(super().configure_evaluate(server_round, masked(arrays, self.mask or {}), config, grid))
        self._address([message.metadata.dst_node_id for message in messages])
        return self._outgoing(messages, SchemeOrder())

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Trained:
        replies = self._undefended.look(replies)
        arrays, metrics = super().aggregate_train(server_round, self._incoming(replies, trained=True))
        down, up = self.bytes_down - self._before[0], self.bytes_up - self._before[1]
        log(INFO, "Prune: arrays of %d bytes sent and %d received in round %d", down, up, server_round)
        if arrays is None or self._scheme is None or self.mask is None:
            return arrays, metrics
        if self._aligned is not None:
            settled = to_dense(self._aligned.settled(arrays))
            arrays = ArrayRecord({name: settled.get(name, array) for name, array in arrays.items()})
        found = scored(from_dense(arrays))  # averaging makes a float of batch norm's counter: not in the mask
        params = apply_mask({name: found[name] for name in self.mask}, self._limit)
        if self._run.rate:
            self.mask = self._scheme.revise_mask(server_round, params, self.mask)
        return masked(arrays, self.mask or {}), metrics

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return super().aggregate_evaluate(server_round, self._incoming(replies, trained=False))

    @property
    def _limit(self) -> Mask:
        """Where this round's answers may have values."""
        allowed = self._scheme.downlink.expected().allowed if self._scheme else None
        return (self.mask or {}) if allowed is None else allowed

    # ---- the wire

    def _outgoing(self, messages: list[Message], order: SchemeOrder, aligned: Aligned | None = None) -> list[Message]:
        self.bytes_down += self._nodes.close(messages, self.mask_of, order, self._first, aligned)
        return messages

    def plain_sent(self, message: Message) -> RecordDict:
        return self._nodes.sent.get(message.metadata.dst_node_id, message.content)

    def plain_reply(self, message: Message) -> RecordDict:
        """What the strategy sees of a reply: dense, zero outside the mask, without this project's own records."""
        content = message.content
        others = {n: r for n, r in content.items() if n not in content.array_records and n != MARK}
        if not content.array_records:
            return RecordDict(others)
        name, record = whole(content)
        if is_coded(content):
            if message.metadata.src_node_id not in self._nodes.sent:
                raise WireError("malformed", "a coded answer of a client that nobody asked")
            _, sent = whole(self._nodes.sent[message.metadata.src_node_id])
            record = to_dense(open_answer(content, from_dense(sent), self.mask_of(message.metadata.src_node_id)))
        return RecordDict({name: masked(record, self._base(message)), **others})

    def beside(self, message: Message) -> dict[str, Tree | None]:
        """The mask that a client trained under, and the squared gradients that it sent."""
        mask, importance = self._base(message), self._importance(message.content)
        return {**super().beside(message), "mask": mask, "importance": importance}

    def _importance(self, content: RecordDict) -> Tree | None:
        """Of an answer, where the scheme asked for them. Raises ``WireError`` or ``ReplyError``."""
        if IMPORTANCE not in content.array_records or self._scheme is None or not self._nodes.sent:
            return None
        expected = self._scheme.downlink.expected()
        names = self._scheme.importance_names(expected.round)
        like = {name: expected.params[name].float() for name in sorted(names)}
        return read_importance(content.array_records[IMPORTANCE], like) if names else None

    def _base(self, message: Message) -> Mask:
        """The mask that a client trained under: the one it was sent, or where the scheme lets it move, its own."""
        content, node = message.content, message.metadata.src_node_id
        if BASE not in content.array_records or self._scheme is None:
            return self.mask_of(node)
        expected = self._scheme.downlink.expected(node)
        # A dense message's mask has all floating arrays: averaging makes one of batch norm's counter.
        shapes = None if is_coded(content) else self._nodes.shapes.get(node)
        every = {} if shapes is None else full_mask(shapes.like())
        if every.keys() - expected.mask.keys():
            allowed = None if expected.allowed is None else {**every, **expected.allowed}
            params = {**{n: torch.zeros(kept.shape) for n, kept in every.items()}, **expected.params}
            order = {n: params[n] for n in every}
            expected = replace(
                expected, params=order, mask={n: expected.mask.get(n, every[n]) for n in every}, allowed=allowed
            )
        try:
            base = read_base(content.array_records[BASE], expected)
        except ReplyError as error:
            raise WireError("mask", str(error)) from error
        return {n: base[n] for n in self.mask or {}}

    def _incoming(self, replies: Iterable[Message], trained: bool) -> list[Message]:
        """The replies as the strategy is to see them. One that cannot be read, or that is of another form than most, is
        left out, and the log says so."""
        result, read = list[Message](), list[tuple[Message, RecordDict, Contribution | None]]()
        for reply in replies:
            if reply.has_error():
                self._nodes.forget(reply.metadata.src_node_id)
                result.append(reply)
                continue
            self.bytes_up += sum(record_bytes(record) for record in reply.content.array_records.values())
            try:
                plain = self.plain_reply(reply)
                read.append((reply, plain, self._checked(reply, plain) if trained else None))
            except (WireError, ReplyError) as error:
                self._leave_out(reply, error)
        held, alike = list[tuple[RecordDict, Mask, float]](), of_one_form([plain for _, plain, _ in read], self.named)
        for (reply, plain, found), kept in zip(read, alike, strict=True):
            if not kept:
                self._leave_out(reply, "its records are not the others'")
                continue
            self._note(reply, found)
            reply.content = plain
            result.append(reply)
            if found is not None:
                held.append((plain, found.base, found.weight))
        if self._scheme is not None and any(base is not self.mask for _, base, _ in held):
            fill(held, self._scheme.downlink.expected().params)
        return result

    def _leave_out(self, reply: Message, why: object) -> None:
        self._nodes.forget(reply.metadata.src_node_id)
        logger.warning("the answer of node %d is left out: %s", reply.metadata.src_node_id, why)

    def _checked(self, reply: Message, plain: RecordDict) -> Contribution:
        """What the scheme is told of an answer that the strategy can average. Raises ``WireError``."""
        node = reply.metadata.src_node_id
        self._require_fit(node, plain)
        if self._aligned is not None and ADGP in applied(reply.content):
            self._aligned.require_inside(plain, self._nodes.sent[node])
        return self._contribution(reply, plain)

    def _note(self, reply: Message, found: Contribution | None) -> None:
        """Remember an answer that counts."""
        node, mark = reply.metadata.src_node_id, reply.content.config_records.get(MARK)
        if found is not None and self._scheme is not None:
            self._scheme.note(found)
        self._nodes.note(node, mark)
        if found is not None and self._aligned is not None and mark is not None:
            self._aligned.note(node, mark)

    def _contribution(self, reply: Message, plain: RecordDict) -> Contribution:
        """What the scheme is told of an answer."""
        content = reply.content
        base, importance, (weights,) = self._base(reply), self._importance(content), plain.metric_records.values()
        node, weight = reply.metadata.src_node_id, cast("int", weights[self.weight])
        # Behind defenses an answer does not tell what was withheld from what did not move.
        defenses = applied(content)
        shared = base if set(defenses) <= {"none"} else {}
        sparse = SparseTree(shared, {})
        return Contribution(node, base, sparse, base, weight, None, 0, importance, applied=defenses)

    def _require_fit(self, node: int, plain: RecordDict) -> None:
        """Raise ``WireError`` for an answer that the strategy could not average with the others."""
        sent = self._nodes.sent.get(node)
        if sent is None or not fits(*(from_dense(whole(each)[1]) for each in (plain, sent))):
            raise WireError("shape", "its arrays are not those of the model")
        if not countable(plain, self.weight):
            raise WireError("malformed", no_count(self.weight))
