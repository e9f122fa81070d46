"""What the server of any Flower app sees of its clients, recorded as traces to attack later.

``Record`` wraps a strategy of the Message API; from then on what was sent to a chosen client and what it answered
become one trace (``attacks.trace``) each round. Nothing the strategy sees changes, but that a metric is left out which
not every client tells, since Flower's strategies end the run over one. ``record`` does the same to the strategy itself,
and gives it back.

    task = Task("my_app.model:build", (3, 32, 32), 10)
    strategy = Record(FedAvg(), "traces", task, Training(learning_rate=0.1, batch_size=32))

It understands full models only: one ``ArrayRecord`` each way, by the names of the module's ``state_dict``. An app that
sends something else, or another model than the task names, gets an error before its first round. Where a client's
answer cannot be recorded, its trace is missing and the log says why; the round goes on.

Of clients with ``Defend`` a trace names the defenses that they say they applied, and outside of ``Prune`` it has the
mask that they trained under and what they sent for the scheme, squared gradients: as the trace of an own run has them.
A defended coordinate that did not move counts as withheld, since the answer does not tell the two apart; a tensor that
moved in no answer yet, neither in an earlier round nor in another client's, is named as one that seems frozen.

The traces hold updates of private data: they are owner-readable only, and belong where the server's secrets are.
"""

import math
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from logging import WARNING
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import nn

from prunella.attacks.engine.matching import check_tree, check_view
from prunella.attacks.trace import save_trace
from prunella.core.errors import AttackError, ConfigError, PrunellaError
from prunella.core.trees import Tree, map_trees
from prunella.core.types import ServerView
from prunella.core.untrusted import MAX_COUNT
from prunella.flower.arrays import EXAMPLES, MARK, whole
from prunella.flower.handled import wide
from prunella.flower.layer import Layer, Trained, common_metrics
from prunella.flower.legacy import positions
from prunella.flower.notices import Undefended
from prunella.privacy import DEFENSES
from prunella.tasks.task import Task
from prunella.wire.records import from_dense

_OWN = re.compile(r"[\w.]{1,100}:[\w.]{1,100}")  # the import path of somebody's own
RECORDED = "recorded_by_prunella"  # set on a strategy
Plain = Callable[[Message], RecordDict]
Beside = Callable[[Message], dict[str, Tree | None]]


@dataclass(frozen=True)
class Training:
    """How clients train, as the server knows it: SGD over all their examples, ``epochs`` times, unless ``steps`` says
    how many batches they take."""

    learning_rate: float
    batch_size: int
    epochs: int = 1
    steps: int | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        """Raises ``ConfigError`` for a training that there is not."""
        least = {"batch_size": self.batch_size, "epochs": self.epochs, "steps": 1 if self.steps is None else self.steps}
        if wrong := [name for name, value in least.items() if not isinstance(value, Integral) or value < 1]:
            raise ConfigError(f"Training: {wrong[0]} is a whole number of at least 1")
        if not self.learning_rate > 0 or self.momentum < 0 or self.weight_decay < 0:
            raise ConfigError("Training: a learning_rate is above 0, momentum and weight_decay are not below it")

    def taken(self, examples: int) -> int:
        """Local steps of a client with so many examples.

        >>> Training(0.1, batch_size=32, epochs=2).taken(100)
        8
        """
        return self.steps if self.steps is not None else self.epochs * math.ceil(examples / self.batch_size)


def everyone(round: int, node: int) -> bool:
    return True


def content_of(message: Message) -> RecordDict:
    return message.content


def nothing_beside(message: Message) -> dict[str, Tree | None]:
    return {}


def _as_answered(sent: Tree, answer: Tree) -> Tree:
    """What was sent, as a client has it that answers in other types: servers' optimisers make float64 of a model, and
    the rounding of a weight that a client left alone is no change that it sent."""
    return map_trees(lambda before, after: before.to(after.dtype), sent, answer)


def _single(tree: Tree) -> Tree:
    """In float32, in which attacks compute."""
    return map_trees(torch.Tensor.float, tree)


def applied(content: RecordDict) -> tuple[str, ...]:
    """The defenses that a client with ``Defend`` says it applied, those of its owner's own among them, which nobody
    imports here: an update behind one is not an undefended one."""
    told = content.config_records.get(MARK, ConfigRecord()).get("applied")
    return (
        tuple(str(name) for name in told if name in DEFENSES or _OWN.fullmatch(str(name)))
        if isinstance(told, list)
        else ()
    )


@dataclass
class Recorder:
    """``chosen(round, node id)`` names the clients to record; ``examples`` is the metric that counts a client's."""

    task: Task
    folder: Path
    training: Training
    chosen: Callable[[int, int], bool] = everyone
    examples: str = EXAMPLES
    _sent: dict[int, tuple[Tree, Tree]] = field(default_factory=dict)
    _moved: set[str] = field(default_factory=set)  # in any recorded answer of this run so far

    def __post_init__(self) -> None:
        """Raises ``ConfigError`` for a task that no trace can hold, and for what is no task or no training."""
        if not isinstance(self.task, Task):
            raise ConfigError('the recorder\'s task is no Task: write Task("my_app.model:build", (3, 32, 32), 10)')
        if not isinstance(self.training, Training):
            raise ConfigError("how clients train is no Training: write Training(learning_rate=0.1, batch_size=32)")
        if not callable(self.chosen):
            raise ConfigError("chosen is a function of round and node: write chosen=lambda round, node: round == 1")
        self.folder = Path(self.folder)
        if not isinstance(self.task.shape, tuple | list):
            raise ConfigError("a Task is of model, shape and classes: write Task(model, (3, 32, 32), 10)")
        if len(self.task.shape) != 3:
            raise ConfigError(
                f"the task's shape {self.task.shape} is not (C, H, W): write (1, 1, {math.prod(self.task.shape)}) and "
                "let the model of the task flatten what it is given"
            )
        module: nn.Module = self.task.build()
        self._params = {name: p.detach() for name, p in module.named_parameters()}
        self._every = module.state_dict()  # tied weights under all their names, of which a trace has the first
        first = {id(p): name for name, p in module.named_parameters()}
        every = module.named_parameters(remove_duplicate=False)
        self._tied = {name: first[id(p)] for name, p in every if name not in self._params}
        self._buffers = {name: b for name, b in module.named_buffers() if name in module.state_dict()}
        self._module = module

    def split(self, content: Any) -> tuple[Tree, Tree]:
        """The parameters and float buffers of a message. Raises ``AttackError`` that says what differs."""
        records: list[ArrayRecord] = list(content.array_records.values())
        if len(records) != 1:
            raise AttackError(f"the message has {len(records)} array records; one, of the whole model, is understood")
        own = self._own(records[0])
        tree = {own.get(name, name): tensor for name, tensor in from_dense(records[0]).items()}
        tree = {**{name: tree[first] for name, first in self._tied.items() if first in tree}, **tree}
        check_tree(f"the arrays of the message and {self.task.model}", tree, self._every)
        if odd := [name for name in self._params if not tree[name].is_floating_point()]:
            kind = str(tree[odd[0]].dtype).removeprefix("torch.")
            raise AttackError(f"{odd[0]} is of {kind}, and a trace is of floating-point weights")
        # By the module's type: averaging makes a float of batch norm's counter.
        buffers = {name: tree[name] for name, buffer in self._buffers.items() if buffer.is_floating_point()}
        return {name: tree[name] for name in self._params}, buffers

    def _own(self, record: ArrayRecord) -> dict[str, str]:
        """The module's name of each array that came: those of Flower's older API have positions."""
        return {at: name for name, at in positions(self._module, record).items()}

    def remember(self, round: int, messages: Iterable[Message], plain: Plain = content_of) -> list[Message]:
        """Keep what goes out to the chosen clients; ``plain`` is a message's content with dense arrays. A model that is
        not the task's raises ``AttackError``."""
        messages = list(messages)
        self._sent = {}
        split: dict[int, tuple[Tree, Tree]] = {}  # clients mostly get one and the same record
        for message in messages:
            node, content = message.metadata.dst_node_id, plain(message)
            if self.chosen(round, node):
                if id(content) not in split:
                    split[id(content)] = self.split(content)
                self._sent[node] = split[id(content)]
        if self._sent:
            self._require_folder()
        return messages

    def _require_folder(self) -> None:
        """Make the folder of the traces, before a client trains for one that cannot be written."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            told = f"traces cannot be written into {self.folder} ({type(error).__name__}): name another folder"
            raise ConfigError(told) from None

    def record(
        self, round: int, replies: Iterable[Message], plain: Plain = content_of, beside: Beside = nothing_beside
    ) -> list[Message]:
        """Traces of the chosen clients' answers; ``beside`` is what else an answer tells (``Layer.beside``)."""
        replies = list(replies)
        self._look(replies, plain)
        for reply in replies:
            node = reply.metadata.src_node_id
            if node not in self._sent or reply.has_error():
                continue
            try:
                content = plain(reply)
                view = self.view(content, *self._sent.pop(node))
                if MARK in reply.content.config_records:
                    own = self._own(whole(content)[1])
                    view = self._with(view, applied(reply.content), beside(reply), own)
                check_view(view, self._module)
                about = {"round": round, "node": str(node)}
                save_trace(self.folder / f"round-{round:06d}-node-{node}.safetensors", view, self.task, about)
            except Exception as error:  # noqa: BLE001 - bytes of a stranger: whatever they raise, the round goes on
                told = str(error) if isinstance(error, PrunellaError) else type(error).__name__
                log(WARNING, "no trace of node %d in round %d: %s", node, round, told)
        return replies

    def _look(self, replies: Iterable[Message], plain: Plain) -> None:
        """Learn which tensors move in this round, before its traces are written: a defense may withhold all of a small
        one that other answers show to be trained."""
        for reply in replies:
            if self._params.keys() <= self._moved:
                return
            if reply.metadata.src_node_id in self._sent and not reply.has_error():
                with suppress(Exception):  # of an answer that cannot be recorded: its own turn tells why
                    view = self.view(plain(reply), *self._sent[reply.metadata.src_node_id])
                    check_view(view, self._module)
                    self._moved |= {name for name, change in view.update.items() if bool(change.any())}

    def view(self, reply: RecordDict, params: Tree, buffers: Tree) -> ServerView:
        """What the server saw of one client. Raises ``AttackError`` when the answer does not fit what was sent."""
        after, received = self.split(reply)
        update = map_trees(lambda a, b: (wide(a) - wide(b)).float(), after, _as_answered(params, after))
        examples, training = self._count(reply.metric_records.values()), self.training
        return ServerView(
            _single(params),
            update,
            # What did not move at all the app has frozen, whatever the module says: a change of zero would be none.
            shared={name: torch.full_like(t, bool(t.any()), dtype=torch.bool) for name, t in update.items()},
            buffers=_single(_as_answered(buffers, received)),
            received_buffers=_single(received),
            num_examples=examples,
            steps=training.taken(examples),
            batch_size=min(training.batch_size, examples),
            learning_rate=training.learning_rate,
            momentum=training.momentum,
            weight_decay=training.weight_decay,
        )

    def _with(
        self, view: ServerView, defenses: tuple[str, ...], beside: dict[str, Tree | None], own: dict[str, str]
    ) -> ServerView:
        """The view of a client with ``Defend``: the defenses it applied, and ``beside`` under the names ``own``."""
        named: dict[str, Tree] = {
            field: {own[name]: tensor for name, tensor in tree.items() if own.get(name) in self._params}
            for field, tree in beside.items()
            if tree is not None
        }
        told = replace(view, mask=named.get("mask"), importance=named.get("importance"), defenses=defenses)
        if set(defenses) - {"none"}:
            moved = {name: change != 0 for name, change in view.update.items()}
            still = view.update.keys() - self._moved  # not what the scheme pruned whole: its gradients may be told
            seems = (name for name in still if told.mask is None or bool(told.mask[name].any()))
            return replace(told, shared=moved, frozen=tuple(sorted(seems)))
        if told.mask is None or view.shared is None:
            return told
        return replace(told, shared=map_trees(torch.logical_and, told.mask, view.shared))

    def _count(self, records: Iterable[MetricRecord]) -> int:
        for metrics in records:
            count = metrics.get(self.examples)
            if isinstance(count, int | float) and 1 <= count <= MAX_COUNT:
                return int(count)
        raise AttackError(f"the reply has no metric {self.examples!r} from 1 to {MAX_COUNT}")


def is_recorded(strategy: Strategy) -> bool:
    """Whether ``record`` was given this strategy."""
    return RECORDED in vars(strategy)


def record(strategy: Strategy, recorder: Recorder) -> Strategy:
    """The same strategy, whose training messages and replies pass ``recorder`` on their way. Raises ``ConfigError`` for
    a layer that codes its messages: ``Record`` reads them."""
    layers = [strategy, *strategy.inside] if isinstance(strategy, Layer) else []
    if coding := [type(each).__name__ for each in layers if type(each).plain_sent is not Layer.plain_sent]:
        raise ConfigError(
            f"record() cannot read what {coding[0]} sends: write Record({coding[0]}(...), folder, task, training)"
        )
    configure, aggregate = strategy.configure_train, strategy.aggregate_train
    evaluated = strategy.aggregate_evaluate
    undefended = Undefended()

    def configure_train(server_round: int, *args: Any, **kwargs: Any) -> Iterable[Message]:
        undefended.begin(kwargs["grid"] if "grid" in kwargs else args[-1])
        return recorder.remember(server_round, configure(server_round, *args, **kwargs))

    def aggregate_train(server_round: int, replies: Iterable[Message]) -> Any:
        recorded = recorder.record(server_round, undefended.look(replies))
        return aggregate(server_round, recorded if layers else common_metrics(recorded, strategy))

    def aggregate_evaluate(server_round: int, replies: Iterable[Message]) -> Any:
        return evaluated(server_round, replies if layers else common_metrics(replies, strategy))

    # On the object and not in a subclass: a strategy with a start() of its own, or wrapped in others, stays what it is.
    vars(strategy).update({"configure_train": configure_train, "aggregate_train": aggregate_train, RECORDED: True})
    vars(strategy).update({"aggregate_evaluate": aggregate_evaluate})
    return strategy


class Record(Layer):
    """``strategy``, recorded into ``folder`` (``Recorder`` has the arguments). Outside of ``Prune``, a trace has the
    weights as the client got and gave them, pruned."""

    def __init__(
        self,
        strategy: Strategy,
        folder: Path | str,
        task: Task,
        training: Training,
        chosen: Callable[[int, int], bool] = everyone,
        examples: str = EXAMPLES,
    ) -> None:
        super().__init__(strategy)
        self.recorder = Recorder(task, Path(folder), training, chosen, examples)
        codes = any(type(each).plain_sent is not Layer.plain_sent for each in self.inside)
        self._undefended = None if codes else Undefended()  # Prune tells it itself

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = super().configure_train(server_round, arrays, config, grid)
        if self._undefended is not None:
            self._undefended.begin(grid)
        return self.recorder.remember(server_round, messages, self.plain_sent)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Trained:
        replies = list(replies) if self._undefended is None else self._undefended.look(replies)
        replies = self.recorder.record(server_round, replies, self.plain_reply, self.beside)
        return super().aggregate_train(server_round, replies)
