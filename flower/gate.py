"""``Gate``: a site's own conditions around an app that it approved, whatever the app declares.

    answer = Gate(app, node_config)(message, context)

``prunella supernode --approve app.fab`` (``deploy.runtime.approved``) calls the app of an approved bundle so, in the
process that would have called it. The defenses and the account of ``flower.site`` stand outermost: a ``Defend`` of the
app's own lets everything pass, and what any mod of the app does, it does to the answer before it is defended. The
conditions are those that the SuperNode was started with. An app is handed the context that it could change, and Flower
keeps it from message to message: a message under another node configuration is refused.

What leaves is built here anew, and holds of the app's answer

* for ``train`` the arrays, under the name and in the order in which they were received, with the same shapes. A zero
  whose sign alone changed is the zero received: no defense looks at the sign of zero;
* ``num-examples``, a whole number, and the metrics that the site lists, in one record named ``metrics``; other numbers
  are left out.

An answer with any other record is refused, so is one to ``evaluate`` or ``query`` with arrays, and a run that asks for
less than the site requires (without the gate the stricter wins). Whatever the app raises becomes one text; where this
project stopped it (past the budget, say), the reason as this project wrote it.

This is no sandbox. The app runs in the same process and can do there what it likes: docs/threats.md has a list.

Errors: ``PrunellaError``, which the server is told; it names settings, and arrays as the server named them.
"""

import copy
import logging
from collections.abc import Mapping
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from prunella.core.errors import ConfigError, DefenseError, PrunellaError
from prunella.core.trees import Tree
from prunella.flower.arrays import EXAMPLES, whole
from prunella.flower.defend import BEFORE, FAILED, GATED, Defend, check_order, defended, in_own_words, inner_mods
from prunella.flower.handled import HANDLED
from prunella.flower.legacy import is_legacy
from prunella.flower.scheme import Settled
from prunella.flower.site import Site, check_weakened
from prunella.wire.records import from_dense, to_dense

METRICS = "metrics"
MOST = 2**31  # examples that an answer may speak for
logger = logging.getLogger(__name__)


class Gate:
    """An approved ``app``, called as Flower calls a ``ClientApp``; ``node_config`` is what its SuperNode began with."""

    def __init__(self, app: ClientApp, node_config: Mapping[str, Any]) -> None:
        self._app, self._own = app, dict(node_config)

    def __call__(self, message: Message, context: Context) -> Message:
        if dict(context.node_config) != self._own:
            raise ConfigError("the message came under another node configuration than this SuperNode's: start it again")
        if is_legacy(message.content):
            raise ConfigError("this site's gate reads messages of Flower's Message API only: port the app to it")
        asked = under_same(message, RecordDict())
        own = copy.copy(context)
        own.node_config, own.run_config = dict(self._own), dict(context.run_config)
        try:
            with in_own_words():
                site = Site(own, message.metadata.message_type)
                check_mods(message, self._app)
                check_weakened(own.run_config, site.asked, site.policy)
                return defended(message, context, lambda given, its: self._ask(given, its, asked), site, ())
        finally:
            context.node_config = dict(self._own)

    def _ask(self, given: Message, context: Context, asked: Message) -> Message:
        """The app's answer as ``Defend`` may see it: an answer to ``asked``, which the app has not had in hand."""
        trains = asked.metadata.message_type.partition(".")[0] == "train"
        name, record = whole(given.content) if trains else ("", ArrayRecord())
        received, token = from_dense(record), GATED.set(True)
        # Flower answers an exception with the message's own metadata, so the app gets others.
        given = under_same(given, given.content)
        try:
            content = rebuilt(self._app(given, context).content, name, received)
        except Refused as error:
            raise DefenseError(f"this site lets out the model and listed numbers only: {error}") from None
        except BaseException as error:  # SystemExit, too, has a text of the app's
            work = HANDLED.get()
            if isinstance(error, Settled) and work is not None and work.local.done:
                raise Settled("the first mask is made") from None  # whose text an app may have written
            logger.exception("the approved app could not handle a message")
            raise PrunellaError((work and work.refused) or FAILED) from None
        finally:
            GATED.reset(token)
        return Message(content, reply_to=asked)


def under_same(message: Message, content: RecordDict) -> Message:
    """A message with that content under a copy of the other's metadata."""
    make: Any = Message
    made: Message = make(content=content, metadata=copy.copy(message.metadata))
    return made


class Refused(Exception):
    """An answer that may not leave; the text is one of those below."""


def check_mods(message: Message, app: ClientApp) -> None:
    """Refuse mods whose own promise to the server a defense outside of them would break."""
    kind = message.metadata.message_type
    functions: list[Any] = [app._call, app._registered_funcs.get(kind if "." in kind else f"{kind}.default")]
    if functions == [None, None]:  # no failure of the app's, of which there may be few
        raise ConfigError("the approved app has no function for this type of message")
    mods = [mod for function in functions for mod in inner_mods(function) if not isinstance(mod, Defend)]
    if found := sorted({getattr(mod, "__name__", "") for mod in mods} & BEFORE):
        raise ConfigError(f"{found[0]} promises a norm that this site's defenses change: approve the app without it")
    check_order(message, mods)


def rebuilt(content: RecordDict, name: str, received: Tree) -> RecordDict:
    """What may be in an answer, of which nothing is taken as it came. ``name`` is the record of the model's arrays, ""
    where none may leave. Raises ``Refused``."""
    if set(content.array_records) != ({name} if name else set()):
        raise Refused(f"answer with one record of arrays, named {name!r}" if name else "answer without arrays")
    if content.config_records or set(content.metric_records) - {METRICS}:
        raise Refused(f"beside the arrays answer with one record of numbers, named {METRICS!r}")
    numbers = dict(content.metric_records.get(METRICS, {}))
    count = numbers.get(EXAMPLES, 0)
    if type(count) is not int or not 0 <= count < MOST:
        raise Refused(f"{EXAMPLES} must be a whole number")
    records: dict[str, ArrayRecord | MetricRecord | ConfigRecord] = {METRICS: MetricRecord(numbers)}
    if name:
        arrays = from_dense(content.array_records[name])
        if arrays.keys() != received.keys():
            raise Refused("the arrays of the answer must have the names of those received")
        records |= {name: to_dense({each: _as_received(arrays[each], received[each]) for each in received})}
    return RecordDict(records)


def _as_received(after: Tensor, before: Tensor) -> Tensor:
    """``after``, and bit for bit ``before`` where they are equal: zeros have a sign, which no defense looks at."""
    same_kind = after.dtype == before.dtype or (after.is_floating_point() and before.is_floating_point())
    if after.shape != before.shape or not same_kind:
        raise Refused("the arrays of the answer must have the shapes and types of those received")
    if not after.is_floating_point():
        return after
    start = before.to(after.dtype)
    return torch.where(after == start, start, after + 0.0)
