"""Federated learning that is pruned, defended and honest about what it leaks.

``import prunella`` imports nothing else; a name of ``__all__`` brings its module with it when it is first used:

    audit(model, (x, y), defenses=…)  what a curious server would rebuild of these images, beside its matched control
    view, attack                      an update of a module of your own as a server sees it, and an attack on it
    ATTACKS, DEFENSES, STRATEGIES     everything there is to choose from, by the names that settings take
    Task                              a model, the shape of its inputs and the number of classes
    Defend, protected, Account        a Flower app of your own, its clients: defenses, in the loop too, and an account
    Prune, Robust                     its server: pruning and robust aggregation around a strategy of Flower's
    Record, Recorder, Training, record     keep what its server receives
    load_trace, ServerView            what was kept, as an attack takes it
    PrivateBatch, Reconstruction      the truth, and what an attack makes of a view
    score                             how alike the two are, beside baselines
    PrunellaError                     the ancestor of every error raised on purpose

What is neither here nor in the ``__init__`` of a package below is private and may change.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prunella.attacks import ATTACKS
    from prunella.attacks.score.leakage import score
    from prunella.attacks.trace import load_trace
    from prunella.core.errors import PrunellaError
    from prunella.core.types import PrivateBatch, Reconstruction, ServerView
    from prunella.flower.account import Account
    from prunella.flower.defend import Defend
    from prunella.flower.loop import protected
    from prunella.flower.prune import Prune
    from prunella.flower.record import Record, Recorder, Training, record
    from prunella.flower.robust import Robust
    from prunella.library.attack import attack
    from prunella.library.audit import audit
    from prunella.library.view import view
    from prunella.privacy import DEFENSES
    from prunella.strategies import STRATEGIES
    from prunella.tasks.task import Task

__version__ = "0.1.0"
__all__ = [
    "protected",
    "Robust",
    "Record",
    "Prune",
    "Defend",
    "Account",
    "ATTACKS",
    "DEFENSES",
    "STRATEGIES",
    "PrivateBatch",
    "PrunellaError",
    "Reconstruction",
    "Recorder",
    "ServerView",
    "Task",
    "Training",
    "attack",
    "audit",
    "load_trace",
    "record",
    "score",
    "view",
]

_MODULES = {
    "protected": "flower.loop",
    "Robust": "flower.robust",
    "Record": "flower.record",
    "Prune": "flower.prune",
    "Defend": "flower.defend",
    "Account": "flower.account",
    "ATTACKS": "attacks",
    "DEFENSES": "privacy",
    "STRATEGIES": "strategies",
    "PrivateBatch": "core.types",
    "PrunellaError": "core.errors",
    "Reconstruction": "core.types",
    "Recorder": "flower.record",
    "ServerView": "core.types",
    "Task": "tasks.task",
    "Training": "flower.record",
    "attack": "library.attack",
    "audit": "library.audit",
    "load_trace": "attacks.trace",
    "record": "flower.record",
    "score": "attacks.score.leakage",
    "view": "library.view",
}

if not (Path(__file__).parent / "core").is_dir():  # a checkout or an app's bundle: the packages lie beside this folder
    __path__.append(str(Path(__file__).resolve().parent.parent))


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
