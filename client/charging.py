"""The client's side of an epsilon: what a request will cost is charged, or refused, before anything is computed.

The charge is on the disk before the first example is trained on. From then on a failure has one constant text: which
one it was, and whether there was one, could answer a question about a single example for nothing.
"""

import logging
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord

from prunella.client.session import ServerRequest, Session
from prunella.core.device import repeatable
from prunella.core.errors import DefenseError, PrunellaError
from prunella.core.trees import Tree
from prunella.privacy.accounting import LAPLACE, Charge
from prunella.privacy.chain import check_model
from prunella.privacy.ledger.ledger import TOLD, UNBOUNDED, Ledger, Tally, add, charge, digest, line, spend
from prunella.strategies import validates
from prunella.tasks.per_example import require_examples_apart, require_unmixed
from prunella.tasks.training import mode

FAILED = "this client could not answer under its ε; its own log says why"
CHARGED = "what it costs in nats was charged before; see this client's own log"
TRIES = 10  # passes, where a thread that draws every millisecond was seen in 3 of 10
logger = logging.getLogger(__name__)


def _charge(session: Session, digest: str, steps: int) -> Charge:
    """What a round costs. Held-out examples that a scheme validates on pass no channel, and noise that anybody can draw
    again bounds nothing."""
    if validates(session.run.strategy) or session.node.seed is not None:
        return UNBOUNDED
    batch, count = min(session.run.batch_size, len(session.data.examples)), len(session.data.examples)
    return charge(session.procedure.chain, digest, steps, count, batch)


def account(session: Session, request: ServerRequest, steps: int) -> tuple[Charge, Ledger]:
    """Charge ``steps`` local steps, on the disk when this returns. Raises ``DefenseError`` past the budget."""
    new = _charge(session, request.digest, steps)
    return new, _spend(session, new)


def _spend(session: Session, new: Charge) -> Ledger:
    after = spend(session.accounts.ledger(), new, session.privacy)
    session.accounts.charge(new)
    return after


def _validation_charge(session: Session, digest: str) -> Charge | None:
    """What telling a noisy count costs in this run; None where it tells none."""
    scale = session.privacy.validation_noise
    if session.procedure.chain.private is None or not scale or session.run.evaluation != "clients":
        return None
    if not LAPLACE[0] <= scale <= LAPLACE[1]:
        raise DefenseError(f"privacy.validation-noise must lie between {LAPLACE[0]:g} and {LAPLACE[1]:g}")
    return Charge(digest, laplace=scale)


def caveats(session: Session) -> tuple[str, ...]:
    """What weakens the claims of this run's defenses."""
    found = [] if session.node.seed is None else ["client-seed: noise that can be drawn again, no ε and no nats"]
    private = session.procedure.chain.private is not None
    doubt = session.privacy.doubt(len(session.data.examples)) if private else ""
    return (*found, *([doubt] if doubt else []))


def told(session: Session, tally: Tally, ledger: Ledger) -> ConfigRecord:
    """The ledger line of an answer."""
    return ConfigRecord({**line(tally, ledger, session.privacy), **epsilon_next(session, ledger)})


def epsilon_next(session: Session, ledger: Ledger) -> dict[str, float]:
    """What the ledger line tells the server of the next round: the epsilon it would bring, which is what this client
    has spent where its next answer does not arrive; and the budget, where there is one, so that the server need not
    ask a client that would refuse."""
    if session.procedure.chain.private is None:
        return {}
    validation = _validation_charge(session, "next count")
    again = [_charge(session, "next round", session.run.local_steps)] + ([validation] if validation else [])
    total, budget = add(ledger, *again).epsilon(session.privacy), session.privacy.epsilon_budget
    if total is None or total > TOLD:
        return {}
    return {"epsilon_next": total} | ({"epsilon_budget": budget} if budget else {})


def account_for_scores(session: Session) -> float:
    """Note that exact scores of held-out examples leave, which no bound covers: noise of scale 0."""
    _spend(session, UNBOUNDED)
    return 0.0


def account_for_count(session: Session, request: ServerRequest) -> float:
    """Charge a noisy count of held-out examples, on the disk when this returns: the scale of its noise."""
    new = _validation_charge(session, request.digest)
    if new is None or session.node.seed is not None:
        raise DefenseError("evaluation=clients would tell exact scores, or noise that others can draw: no ε covers it")
    if not session.accounts.ledger().covered:
        raise DefenseError("not every answer about these examples, in any run, had an ε: their scores stay here")
    _spend(session, new)
    return new.laplace


def require_coverable(session: Session, buffers: Tree) -> None:
    """Refuse, under an epsilon, a scheme that validates on private examples, and a model whose answer depends on more
    than the request's digest knows: batch statistics, or draws (dropout), which are tried here on an empty image. So is
    one whose answer to an example depends on others."""
    chain, module = session.procedure.chain, session.procedure.module
    if chain.private is None:
        return
    if validates(session.run.strategy):
        require_uncovered_is_allowed(session, f"strategy={session.run.strategy}", "choose another strategy")
    check_model(chain, buffers)
    require_unmixed(module)
    if _draws(module, torch.zeros(2, *session.data.task.shape, device=session.device)):
        raise DefenseError(
            f"{type(module).__name__} draws random numbers while it trains (dropout, precode), which no ε covers: "
            "choose a model without"
        )
    image, label = torch.zeros(1, *session.data.task.shape), torch.zeros(1, dtype=torch.int64)
    params = {name: p.detach() for name, p in module.named_parameters()}
    with mode(module, True):
        require_examples_apart(module, params, buffers, image.to(session.device), label.to(session.device))


def _draws(module: torch.nn.Module, images: torch.Tensor) -> bool:
    """Whether a forward pass [N, C, H, W] draws random numbers. From Python's generator only where every one of
    ``TRIES`` passes does: Flower's threads draw from it now and then, and must cost no answer."""
    for _ in range(TRIES):
        before, own = _drawn(), random.getstate()
        with torch.no_grad(), mode(module, True):
            module(images)
        if _drawn() != before:
            return True
        if random.getstate() == own:
            return False
    return True


def _drawn() -> tuple[bytes, ...]:
    """The state of PyTorch's and NumPy's global generators. Not of Python's, from which Flower's threads draw."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    numpy_state: Any = np.random.get_state(legacy=False)["state"]  # noqa: NPY002 - the global one is what is watched
    place = str(numpy_state["pos"]).encode()
    return *(state.numpy().tobytes() for state in (torch.get_rng_state(), *cuda)), numpy_state["key"].tobytes(), place


@contextmanager
def charged(session: Session, price: Charge = UNBOUNDED) -> Iterator[None]:
    """The work that was charged for. Under an epsilon every failure has one text, and so has a draw that the request's
    digest does not know of. Where only the answer given before may leave again (``confirm``), a GPU makes the same one.
    """
    if session.procedure.chain.private is None:
        again = session.device if price != UNBOUNDED else torch.device("cpu")
        try:
            with repeatable(again, strict=False):
                yield
        except PrunellaError as error:
            if price.nats is None:
                raise
            raise DefenseError(f"{error} ({CHARGED})") from error  # not a refusal, which costs nothing
        return
    try:
        before = _drawn()
        yield
        if _drawn() != before:
            raise DefenseError("something drew from a global generator, which the request's digest does not know of")
    except Exception:
        logger.exception("a message under an ε could not be answered")
        raise DefenseError(FAILED) from None


def confirm(session: Session, request: ServerRequest, charged: Charge, trees: Iterable[Tree]) -> None:
    """Refuse an answer that is not the one given before, where its noise is what protects it."""
    if charged != UNBOUNDED:
        session.accounts.confirm(request.digest, digest(trees, ""))


def require_charged(session: Session, done: int, charged: int) -> None:
    """Refuse to answer when more was computed than was paid for."""
    if session.procedure.chain.private is not None and done > charged:
        raise DefenseError(f"{done} local steps were taken where {charged} were charged")


def require_uncovered_is_allowed(session: Session, what: str, fix: str) -> None:
    """Refuse, under an epsilon, what would let exact scores of private examples leave without noise."""
    if session.procedure.chain.private is not None:
        raise DefenseError(f"{what} uses exact scores of private examples, which ε does not cover: {fix}")
