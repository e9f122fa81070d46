"""``Prune``: this project's pruning schemes around any strategy of Flower's that averages.

    strategy = Prune(FedAvg(fraction_train=0.5), "magnitude", rate=0.3)

The scheme's mask is everybody's. It is applied to the model before the strategy sees it, to every reply before the
strategy averages them, and to what the strategy makes of them, so that the optimiser of FedAdam and its like works on
the pruned model. At rate 0 nothing is touched: the strategy's own bits.

*What is pruned.* With ``model``: the weights of linear and convolution layers (``tasks.task.prunable``). Without one:
float arrays of two dimensions and more whose name ends in ``weight`` and names no embedding and no normalisation.
Never: arrays that two names share (tied weights), frozen weights, biases, norms, buffers.

*Schemes.* ``random`` and ``magnitude`` need nothing more, ``synflow`` the model and the shape of its input, ``snip``
and ``grasp`` public examples (x, y) beside. The others need Prunella's own clients.

*On the wire.* A client with ``Defend`` says so in its answers. From then on it is sent the kept weights only, with the
mask's bits where it does not hold them, and answers with the weights that differ (``flower.arrays``). Clients without
are sent dense arrays, zeros included. A client that answers a coded message with an error is sent dense ones again.

In a mixed federation ``Defend`` may withhold metrics that other clients tell; those that not all tell are left out, as
Flower's strategies would refuse to aggregate them.
"""

import logging
from collections.abc import Iterable
from typing import Any, cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor, nn

from prunella.core.config import kebab, parse_run
from prunella.core.errors import ConfigError, WireError
from prunella.core.trees import Mask, Tree, apply_mask, count, size
from prunella.flower.arrays import (
    MARK,
    REST,
    WIRE,
    Shapes,
    close_record,
    fits,
    floats,
    is_buffer,
    is_coded,
    open_answer,
    whole,
)
from prunella.flower.layer import Layer, Trained, common_metrics, countable
from prunella.pruning.selection import density
from prunella.strategies import find, scheme_settings
from prunella.strategies.round.server_model import ServerModel
from prunella.strategies.round.strategy import MaskedMean
from prunella.tasks.examples import Examples
from prunella.tasks.task import prunable as prunable_layers
from prunella.wire.encode import fingerprint
from prunella.wire.records import from_dense, record_bytes, to_dense

SCHEMES = ("random", "magnitude", "synflow", "snip", "grasp")
NEEDS_MODEL, NEEDS_PUBLIC = {"synflow", "snip", "grasp"}, {"snip", "grasp"}
NEVER = ("embed", "norm", "wte", "wpe", "ln_", "bn")
logger = logging.getLogger(__name__)


def prunable_names(tree: Tree, model: nn.Module | None) -> frozenset[str]:
    """Which arrays of a model a scheme may prune. Raises ``ConfigError`` where there is none."""
    if model is not None:
        trained = {name for name, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}
        names = set(prunable_layers(model)) & trained & tree.keys()
    else:
        names = {n for n, t in tree.items() if t.dim() > 1 and n.endswith("weight") and not is_buffer(n, tree)}
        names = {n for n in names if not any(word in n.lower() for word in NEVER)}
    names = {name for name in names if tree[name].is_floating_point() and not _shared(name, tree)}
    if not names:
        raise ConfigError("Prune found nothing to prune among the arrays: give it the model, as model=Net()")
    return frozenset(names)


def _shared(name: str, tree: Tree) -> bool:
    """Whether another name has the same values: tied weights, of which one must not be pruned alone."""
    mine = tree[name]
    return any(n != name and t.shape == mine.shape and torch.equal(t, mine) for n, t in tree.items())


class Prune(Layer):
    """``rate`` is the share of the prunable weights that is removed; ``settings`` are the scheme's (``ramp_rounds=3``).

    ``model`` is the app's module, ``shape`` its input [C, H, W], ``public`` images and labels that are nobody's secret.
    Raises ``ConfigError``.
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
        **settings: Any,
    ) -> None:
        super().__init__(strategy)
        entry = find(scheme)
        if scheme not in SCHEMES:
            raise ConfigError(f"{scheme} needs Prunella's own clients; Prune works with {', '.join(SCHEMES)}")
        if scheme in NEEDS_MODEL and (model is None or shape is None):
            raise ConfigError(f"{scheme} needs the model and the shape of its input: model=Net(), shape=(3, 32, 32)")
        if scheme in NEEDS_PUBLIC and public is None:
            raise ConfigError(f"{scheme} prunes on examples that are nobody's secret: give public=(images, labels)")
        raw = {f"{entry.section or scheme}.{kebab(key)}": value for key, value in settings.items()}
        self._run = parse_run({"strategy": scheme, "rate": rate, "seed": seed})
        self._settings = scheme_settings(scheme, raw)
        self._model, self._shape, self._public = model, shape, public
        self._entry = entry
        self._scheme: MaskedMean | None = None
        self.mask: Mask | None = None
        self.bytes_down = self.bytes_up = 0
        self._coding: dict[int, bytes] = {}  # by node with Defend: the fingerprint of the mask it holds
        self._sent: dict[int, RecordDict] = {}  # by node: what its message says, dense
        self._shapes: dict[int, Shapes] = {}  # by node: what its last dense message had, and it reads coded ones by

    # ---- the mask

    def _begin(self, tree: Tree) -> None:
        names = prunable_names(tree, self._model)
        public = None if self._public is None else Examples(*self._public)
        module, shape = self._model or nn.Identity(), self._shape or (1, 1, 1)
        known = ServerModel(module, shape, tuple(floats(tree)), names, public)
        self._scheme = self._entry.strategy(self._run, known, self._settings)
        self.mask = self._scheme.first_mask(self._params(tree), cast("Any", None), [])  # these schemes ask no client

    @staticmethod
    def _params(tree: Tree) -> Tree:
        """Scores are made in float32; buffers get a full mask like any other array that is not prunable."""
        return {name: t if t.dtype == torch.float64 else t.float() for name, t in floats(tree).items()}

    @property
    def density(self) -> float:
        """Share of the prunable weights that the mask keeps; 1 before the first round."""
        return density(self.mask, self._scheme.model.prunable) if self.mask and self._scheme else 1.0

    def _masked(self, arrays: ArrayRecord) -> ArrayRecord:
        """The arrays under the mask; the record itself where nothing is pruned, or nothing outside is left."""
        mask = self.mask or {}
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
        if self.mask is None:
            self._begin(from_dense(arrays))
        return self._outgoing(super().configure_train(server_round, self._masked(arrays), config, grid))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self._outgoing(super().configure_evaluate(server_round, self._masked(arrays), config, grid))

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Trained:
        arrays, metrics = super().aggregate_train(server_round, self._incoming(replies, trained=True))
        if arrays is None or self._scheme is None or self.mask is None:
            return arrays, metrics
        found = self._params(from_dense(arrays))  # averaging makes a float of batch norm's counter: not in the mask
        params = apply_mask({name: found[name] for name in self.mask}, self.mask)
        self.mask = self._scheme.revise_mask(server_round, params, self.mask)
        return self._masked(arrays), metrics

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return super().aggregate_evaluate(server_round, self._incoming(replies, trained=False))

    # ---- the wire

    def _outgoing(self, messages: Iterable[Message]) -> list[Message]:
        """Code the messages of nodes that read coded ones."""
        messages, coded, shapes_of = list(messages), dict[tuple[int, bool], RecordDict](), dict[int, Shapes]()
        self._sent = {message.metadata.dst_node_id: message.content for message in messages}
        for message in messages:
            node, content = message.metadata.dst_node_id, message.content
            shapes = shapes_of.setdefault(id(content), Shapes.of(from_dense(whole(content)[1])))
            if node in self._coding and self._shapes.get(node) == shapes:
                holds = self._coding[node] == fingerprint(self.mask or {})
                if (id(content), holds) not in coded:
                    coded[id(content), holds] = self._coded(content, holds)
                message.content = coded[id(content), holds]
            else:
                self._shapes[node] = shapes
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
        return RecordDict({name: self._masked(record), **others})

    def _incoming(self, replies: Iterable[Message], trained: bool) -> list[Message]:
        """The replies as the strategy is to see them. One that cannot be read is left out, and the log says so."""
        result = []
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
            except WireError as error:
                self._coding.pop(node, None)
                logger.warning("the answer of node %d is left out: %s", node, error)
                continue
            self._note(node, reply.content.config_records.get(MARK))
            reply.content = plain
            result.append(reply)
        common_metrics([reply.content for reply in result if not reply.has_error()])
        return result

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
