"""Messages of Flower's older API (a ``NumPyClient`` behind ``client_fn``), as those of the Message API and back.

Such a message has the same content under other names: ``fitins.parameters`` comes, and ``fitres.parameters``,
``fitres.num_examples``, ``fitres.metrics`` and ``fitres.status`` go (``flwr.compat``). Its arrays have positions where
others have names: "0", "1", … Thus batch norm's statistics cannot be told from weights. They pass the defenses as
weights do, and its counter is refused, as any integer that changes.

A server of this API cannot read an evaluation without a loss, and may ask a client for the weights to begin with.
Where the one may not leave, and always for the other, the client refuses and says what to write.
"""

import logging
from collections.abc import Collection, Container
from typing import Any

from flwr.app import ConfigRecord, MetricRecord, RecordDict
from torch import nn

from prunella.core.errors import ConfigError, DefenseError
from prunella.flower.arrays import EXAMPLES

ANSWERS = {"train": "fitres", "evaluate": "evaluateres"}
ASKED = ("fitins.", "evaluateins.", "getparametersins.", "getpropertiesins.")
COUNT, LOSS = "num_examples", "loss"
logger = logging.getLogger(__name__)


def is_legacy(content: RecordDict) -> bool:
    return any(name.startswith(ASKED) for name in content)


def check_asked(category: str, listed: Container[str]) -> None:
    """Refuse, before the app is asked, what could not be answered. Raises ``ConfigError``."""
    if category not in ANSWERS:
        raise ConfigError(
            f"{category}: Defend lets no client's own parameters or properties leave; give the server's strategy "
            "initial_parameters=ndarrays_to_parameters(...)"
        )
    if category == "evaluate" and LOSS not in listed:
        raise ConfigError(
            "a server of Flower's older API reads no evaluation without its loss, which is not listed here: write "
            "Defend(metrics=('loss',)), or fraction_evaluate=0.0 into the server's strategy; under an ε only the latter"
        )


def opened(content: RecordDict, category: str) -> RecordDict:
    """An answer as the Message API has it: its arrays, and all numbers in one record. Raises ``DefenseError``."""
    kind = ANSWERS[category]
    status = content.config_records.get(f"{kind}.status", ConfigRecord())
    if status.get("code") != 0:
        logger.error("the app answered with a status that is not OK: %s", status.get("message"))
        raise DefenseError("the app answered with a status that is not OK; this client's own log says why")
    numbers = content.config_records.get(f"{kind}.metrics", ConfigRecord())
    told: dict[str, Any] = {n: v for n, v in numbers.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    for name, key, record in ((LOSS, LOSS, "loss"), (EXAMPLES, COUNT, "num_examples")):
        found = content.metric_records.get(f"{kind}.{record}", MetricRecord()).get(key)
        if isinstance(found, int | float):
            told[name] = found
    return RecordDict({**content.array_records, "metrics": MetricRecord(told)})


def closed(content: RecordDict, category: str) -> RecordDict:
    """The inverse of ``opened``, of an answer that may leave. Raises ``ConfigError`` where it lacks a number."""
    kind = ANSWERS[category]
    told: dict[str, Any] = {n: v for record in content.metric_records.values() for n, v in record.items()}
    needed = {EXAMPLES: COUNT} if category == "train" else {EXAMPLES: COUNT, LOSS: LOSS}
    if missing := sorted(needed.keys() - told):
        raise ConfigError(f"the answer has no {missing[0]} that is a finite number")
    rest = {n: v for n, v in told.items() if n not in needed}
    return RecordDict(
        {
            **content.array_records,
            **content.config_records,
            **{f"{kind}.{key}": MetricRecord({key: told[name]}) for name, key in needed.items()},
            f"{kind}.metrics": ConfigRecord(rest),
            f"{kind}.status": ConfigRecord({"code": 0, "message": ""}),
        }
    )


WRAPPERS = {"_orig_mod", "module"}  # under which torch.compile and DataParallel keep the module that they are given


def unknown_array(name: str, received: Collection[str]) -> ConfigError:
    """What to say where the model has an array of a name that the message does not have."""
    if ".".join(part for part in name.split(".") if part not in WRAPPERS) in received:
        return ConfigError(
            "protected: the model is wrapped (torch.compile, DataParallel), and its names are not the message's: give "
            "protected the module itself (model._orig_mod, model.module)"
        )
    return ConfigError(
        f"protected: the message has no array named {name}: send the model's state_dict, or, of layers that stay here, "
        "train none in the guarded loop (requires_grad_(False) before protected)"
    )


def positions(model: nn.Module, received: Collection[str]) -> dict[str, str]:
    """The name under which each of the model's arrays came: its own, or its position in the ``state_dict`` or among
    the ``parameters()``, whichever has as many. Raises ``ConfigError``."""
    named = list(model.state_dict())
    if set(received) != {str(at) for at in range(len(received))}:
        return {name: name for name in named}
    for names in (named, [name for name, _ in model.named_parameters()]):
        if len(names) == len(received):
            return {name: str(at) for at, name in enumerate(names)}
    raise ConfigError(
        f"{len(received)} arrays without names came, and the state_dict of the model has {len(named)}: send all of them"
    )
