"""Layers around a strategy of Flower's older API (``flwr.server.strategy``), for the server that comes with it.

    strategy = Prune(FedAvg(initial_parameters=parameters), "magnitude", rate=0.3, model=Net())
    app = ServerApp(config=config, strategy=strategy)

``Inner`` is the older strategy as one of the Message API, which layers wrap. ``Outer`` is the layers as an older
strategy, which Flower's server calls: it sends what the layers made of a message, and hands them the replies as they
came. Between the two there are no other layers than the Message API's.

Flower's server reads dense arrays, so every ``FitIns`` and ``FitRes`` has them, and a strategy that stands outside (a
wrapper that clips, say) works on those. What it changes of an answer reaches the layers; a model that it changes on the
way out is refused, since the layers would send another.

Arrays have positions for names. A layer that needs to know which is which has the module (``legacy.positions``).
Strategies that keep a model of their own, as FedAdam and FedAvgM do, are given the one that layers made of it.

Errors: ``ConfigError`` for a strategy whose parameters are no arrays, and for a server without a SuperLink.
"""

import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.common import (
    Code,
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    Parameters,
    Scalar,
    Status,
    bytes_to_ndarray,
    parameters_to_ndarrays,
)
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy as OlderStrategy
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from prunella.core.errors import ConfigError, PrunellaError, WireError
from prunella.flower.arrays import EXAMPLES, whole
from prunella.flower.legacy import COUNT, LOSS

if TYPE_CHECKING:
    from prunella.flower.layer import Layer

logger = logging.getLogger(__name__)
NUMPY = "numpy.ndarray"
METRICS = "metrics"
LEFT_OUT = "an answer was left out; the log says why"
Results = list[tuple[ClientProxy, Any]]
Failures = list[Any]


def arrays_of(parameters: Parameters) -> ArrayRecord:
    """Parameters as arrays "0", "1", …, byte for byte. Raises ``ConfigError`` for those that are no arrays."""
    if parameters.tensor_type != NUMPY or not parameters.tensors:
        raise ConfigError("the strategy's parameters are no arrays, so there is nothing to average, prune or record")
    found: dict[str, Array] = {}
    for at, data in enumerate(parameters.tensors):
        array = bytes_to_ndarray(data)
        found[str(at)] = Array(str(array.dtype), tuple(array.shape), NUMPY, data)
    return ArrayRecord(found)


def parameters_of(record: ArrayRecord) -> Parameters:
    """The inverse of ``arrays_of``. Raises ``WireError``."""
    names = [str(at) for at in range(len(record))]
    if set(record) != set(names):
        raise WireError("name", "the arrays of the message have no positions")
    return Parameters([record[name].data for name in names], NUMPY)


def gathered(content: RecordDict, kind: str) -> RecordDict:
    """A client's answer with its counts and its loss in one record, as layers look for them."""
    numbers: dict[str, Any] = {}
    for name, record, key in ((EXAMPLES, "num_examples", COUNT), (LOSS, "loss", LOSS)):
        found = content.metric_records.get(f"{kind}.{record}", MetricRecord())
        numbers |= {name: found[key]} if key in found else {}
    others = {name: record for name, record in content.items() if name not in content.metric_records}
    return RecordDict({**others, METRICS: MetricRecord(numbers)})


def result_of(content: RecordDict, kind: str) -> Any:
    """The ``FitRes`` or ``EvaluateRes`` of a gathered answer with dense arrays. Raises ``WireError``."""
    told = content.metric_records.get(METRICS, MetricRecord())
    status = content.config_records.get(f"{kind}.status", ConfigRecord({"code": 0, "message": ""}))
    metrics = cast("dict[str, Scalar]", dict(content.config_records.get(f"{kind}.metrics", ConfigRecord())))
    try:
        ok, examples = Status(Code(status["code"]), str(status["message"])), int(cast("int", told[EXAMPLES]))
        if kind == "evaluateres":
            return EvaluateRes(ok, float(cast("float", told[LOSS])), examples, metrics)
        whole(content)
        return FitRes(ok, parameters_of(content.array_records["fitres.parameters"]), examples, metrics)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise WireError("malformed", "the answer has no status, no count, no loss or no arrays") from None


class Inner(Strategy):
    """An older strategy, as layers call one. ``manager`` and what came last are set by ``Outer``."""

    def __init__(self, strategy: OlderStrategy) -> None:
        self.older = strategy
        self.manager: ClientManager | None = None
        self.proxies: dict[int, ClientProxy] = {}
        self.failures: Failures = []  # of the round, as Flower's server has them
        self.came = 0  # answers of the round
        self.loss: float | None = None
        self.metrics: dict[str, Scalar] = {}

    def __getattr__(self, name: str) -> Any:
        """Settings of the older strategy, as an app may read them."""
        if name == "older":
            raise AttributeError(name)
        return getattr(self.older, name)

    def summary(self) -> None: ...

    @property
    def run(self) -> Any:
        """The run, as the grid of a client that was asked knows it: a layer takes this for its grid."""
        return next(iter(self.proxies.values())).grid.run  # type: ignore[attr-defined]

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        model = parameters_of(arrays)
        older: Any = self.older
        if hasattr(older, "current_weights"):
            older.current_weights = parameters_to_ndarrays(model)
        if getattr(older, "server_opt", False):
            older.initial_parameters = model  # FedAvgM's name for the model it moves
        asked = self.older.configure_fit(server_round, model, cast("ClientManager", self.manager))
        return self._messages("fitins", MessageType.TRAIN, asked)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        model, manager = parameters_of(arrays), cast("ClientManager", self.manager)
        return self._messages(
            "evaluateins", MessageType.EVALUATE, self.older.configure_evaluate(server_round, model, manager)
        )

    def _messages(self, kind: str, category: str, asked: Iterable[tuple[ClientProxy, Any]]) -> list[Message]:
        contents: dict[int, RecordDict] = {}  # clients mostly get one and the same
        messages = []
        for proxy, ins in asked:
            node = getattr(proxy, "node_id", None)
            if node is None or not hasattr(proxy, "grid"):
                raise ConfigError("layers need a SuperLink: start the app with `flwr run`, not with start_server()")
            self.proxies[node] = proxy
            if id(ins) not in contents:
                records: dict[str, Any] = {
                    f"{kind}.parameters": arrays_of(ins.parameters),
                    f"{kind}.config": ConfigRecord(ins.config),
                }
                contents[id(ins)] = RecordDict(records)
            messages.append(Message(contents[id(ins)], dst_node_id=node, message_type=category))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        results, failures = self._results("fitres", replies)
        found, self.metrics = self.older.aggregate_fit(server_round, results, failures)
        return (None if found is None else arrays_of(found)), None

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        results, failures = self._results("evaluateres", replies)
        self.loss, self.metrics = self.older.aggregate_evaluate(server_round, results, failures)
        return None

    def _results(self, kind: str, replies: Iterable[Message]) -> tuple[Results, Failures]:
        """What is left of the answers, and one failure more for each that a layer left out."""
        good = [reply for reply in replies if not reply.has_error()]
        results = [(self.proxies[each.metadata.src_node_id], result_of(each.content, kind)) for each in good]
        return results, [*self.failures, *[WireError("malformed", LEFT_OUT)] * (self.came - len(results))]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:
        """What a layer wants of a grid."""
        for message in messages:
            grid: Grid = self.proxies[message.metadata.dst_node_id].grid  # type: ignore[attr-defined]
            yield from grid.send_and_receive([message], timeout=timeout)


class Asked(ClientProxy):
    """One client in one round: it is sent ``message``, which layers made, and ``reply`` is theirs as it came. ``model``
    and what ``fit`` answers are for Flower's server, dense."""

    def __init__(self, layer: "Layer", inner: Inner, message: Message) -> None:
        self.node_id, self._layer, self._inner, self._message = message.metadata.dst_node_id, layer, inner, message
        self._proxy = inner.proxies[self.node_id]
        super().__init__(self._proxy.cid)
        self.properties = self._proxy.properties
        self.model = parameters_of(whole(layer.plain_sent(message))[1])
        self.reply: Message | None = None
        self._told: Parameters | None = None

    @property
    def config(self) -> dict[str, Scalar]:
        (found,) = (record for name, record in self._message.content.config_records.items() if name.endswith(".config"))
        return cast("dict[str, Scalar]", dict(found))

    def fit(self, ins: FitIns, timeout: float | None, group_id: int | None) -> FitRes:
        result: FitRes = self._ask("fit", ins, timeout, group_id)
        self._told = result.parameters
        return result

    def evaluate(self, ins: EvaluateIns, timeout: float | None, group_id: int | None) -> EvaluateRes:
        result: EvaluateRes = self._ask("evaluate", ins, timeout, group_id)
        return result

    def _ask(self, what: str, ins: FitIns | EvaluateIns, timeout: float | None, group_id: int | None) -> Any:
        if ins.parameters != self.model:
            name = type(self._layer).__name__
            raise ConfigError(f"what stands outside of {name} changed the model that is sent: put it inside of {name}")
        content = {**self._message.content, f"{what}ins.config": ConfigRecord(cast("Any", ins.config))}
        category, group = self._message.metadata.message_type, str(group_id) if group_id else ""
        sent = Message(RecordDict(content), self.node_id, category, group_id=group, ttl=timeout)
        reply = next(iter(self._inner.send_and_receive([sent])), None)
        if reply is None or reply.has_error():
            self.reply = reply
            why = "no answer came" if reply is None else f"its answer is an error: {reply.error.reason}"
            logger.warning("node %d: %s", self.node_id, why)  # Flower's older server counts failures, and tells none
            raise ValueError(why)
        try:
            reply.content = gathered(reply.content, f"{what}res")
            result = result_of(self._layer.plain_reply(reply), f"{what}res")
        except PrunellaError as error:  # to the layers it is an error, too
            self.reply = Message(Error(0, str(error)), reply_to=sent)
            logger.warning("the answer of node %d is left out: %s", self.node_id, error)
            raise
        self.reply = reply if result.status.code == Code.OK else None
        return result

    def answer(self, result: FitRes | EvaluateRes) -> Message:
        """What layers get: the reply, with what something outside of them changed of ``result``."""
        kind, told = ("fitres", {}) if isinstance(result, FitRes) else ("evaluateres", {LOSS: result.loss})
        numbers, metrics = {EXAMPLES: result.num_examples, **told}, ConfigRecord(cast("Any", result.metrics))
        content = {**(self.reply.content if self.reply is not None else {})}
        content |= {METRICS: MetricRecord(cast("Any", numbers)), f"{kind}.metrics": metrics}
        if isinstance(result, FitRes) and result.parameters != self._told:
            content["fitres.parameters"] = arrays_of(result.parameters)
        return Message(RecordDict(content), reply_to=self._message)

    def get_properties(self, *given: Any, **more: Any) -> Any:
        return self._proxy.get_properties(*given, **more)

    def get_parameters(self, *given: Any, **more: Any) -> Any:
        return self._proxy.get_parameters(*given, **more)

    def reconnect(self, *given: Any, **more: Any) -> Any:
        return self._proxy.reconnect(*given, **more)


class Outer(OlderStrategy):
    """Layers around an older strategy, as Flower's older server calls them."""

    def __init__(self, layer: "Layer", inner: Inner) -> None:
        self.layer, self.inner = layer, inner
        self._asked: list[Asked] = []

    def __getattr__(self, name: str) -> Any:
        """What the layers and the strategy tell of themselves."""
        if name in ("layer", "inner"):
            raise AttributeError(name)
        return getattr(self.layer, name)

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters | None:
        return self.inner.older.initialize_parameters(client_manager)

    def evaluate(self, server_round: int, parameters: Parameters) -> tuple[float, dict[str, Scalar]] | None:
        return self.inner.older.evaluate(server_round, parameters)

    def configure_fit(self, server_round: int, parameters: Parameters, client_manager: ClientManager) -> Any:
        return self._configure(self.layer.configure_train, FitIns, server_round, parameters, client_manager)

    def configure_evaluate(self, server_round: int, parameters: Parameters, client_manager: ClientManager) -> Any:
        return self._configure(self.layer.configure_evaluate, EvaluateIns, server_round, parameters, client_manager)

    def _configure(self, call: Any, ins: Any, server_round: int, parameters: Parameters, manager: ClientManager) -> Any:
        self.inner.manager = manager
        messages = call(server_round, arrays_of(parameters), ConfigRecord(), self.inner)
        self._asked = [Asked(self.layer, self.inner, message) for message in messages]
        return [(asked, ins(asked.model, asked.config)) for asked in self._asked]

    def aggregate_fit(
        self, server_round: int, results: Results, failures: Failures
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        arrays, _ = self.layer.aggregate_train(server_round, self._replies(results, failures))
        return (None if arrays is None else parameters_of(arrays)), self.inner.metrics

    def aggregate_evaluate(
        self, server_round: int, results: Results, failures: Failures
    ) -> tuple[float | None, dict[str, Scalar]]:
        self.layer.aggregate_evaluate(server_round, self._replies(results, failures))
        return self.inner.loss, self.inner.metrics

    def _replies(self, results: Results, failures: Failures) -> list[Message]:
        """The answers of a round for the layers, in the order of Flower's server, and then those that are errors."""
        real = self.inner.proxies
        told = [(real[each[0].node_id], each[1]) if isinstance(each, tuple) else each for each in failures]
        self.inner.failures, self.inner.came = told, len(results)
        good = [cast("Asked", proxy).answer(result) for proxy, result in results]
        return good + [each.reply for each in self._asked if each.reply is not None and each.reply.has_error()]
