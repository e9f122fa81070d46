"""The client's side of an epsilon: what a request will cost is charged, or refused, before anything is computed.

The digest of a request covers all its answer depends on: weights, mask, defense state, settings and the examples. What
other runs let through of the same examples counts (``client.accounts``). The same request again gets the same answer
for nothing; another one under the same name is refused (``privacy.ledger.spend``).
"""

from client.session import Session
from client.state import Memory
from core.errors import DefenseError
from privacy.accounting import Charge
from privacy.chain import flatten_state
from privacy.ledger import Ledger, answer, charge, digest, merge, projected, record
from privacy.noisy_count import noisy_count
from strategies.local import Received


def account(session: Session, memory: Memory, received: Received, request: str, steps: int) -> Ledger:
    """The ledger as it will be after ``steps`` local steps for ``request``. Raises ``DefenseError`` past the budget."""
    procedure, examples = session.procedure, len(session.examples)
    privacy, elsewhere = session.privacy, session.elsewhere
    if procedure.chain.private is None:
        return record(memory.ledger, procedure.chain, steps, None, privacy, elsewhere)
    batch = min(session.run.batch_size, examples)
    settings = [link.settings for link in procedure.chain.links]
    text = repr((request, steps, batch, examples, session.accounts.name, procedure.sgd, settings))
    made = digest([received.params, received.mask, flatten_state({**memory.state, "scheme": memory.scheme})], text)
    new = charge(procedure.chain, (request, made), steps, examples, batch)
    return record(memory.ledger, procedure.chain, steps, new, privacy, elsewhere)


def _validation_charge(session: Session, request: str, made: str) -> Charge | None:
    """What telling a noisy count costs in this run; None where it tells none."""
    private, scale = session.procedure.chain.private, session.privacy.validation_noise
    if private is None or not scale or session.run.evaluation != "clients":
        return None
    return Charge(request, made, noise=private.noise_multiplier, sampling=1.0, steps=0, laplace=scale)


def epsilon_next(session: Session, ledger: Ledger) -> dict[str, float]:
    """What the ledger line tells the server of the next round: the epsilon it would bring and the budget, where there
    is one. So the server need not ask a client that would refuse."""
    batch, count = min(session.run.batch_size, len(session.examples)), len(session.examples)
    training = charge(session.procedure.chain, ("next", ""), session.run.local_steps, count, batch)
    if training is None or not session.privacy.epsilon_budget:
        return {}
    validation = _validation_charge(session, "next", "")
    again = [training] + ([validation] if validation is not None else [])
    total = projected(ledger, again, session.privacy, session.elsewhere)
    return {} if total is None else {"epsilon_next": total, "epsilon_budget": session.privacy.epsilon_budget}


def noisy_correct(session: Session, round: int, received: Received, correct: int) -> int:
    """The number of held-out examples that are labelled right, with noise, and charged before it is told."""
    tensors = [received.params, received.mask, received.buffers]
    new = _validation_charge(session, f"validation {round}", digest(tensors, session.accounts.name))
    if new is None:
        raise DefenseError("evaluation=clients would tell exact scores, which ε does not cover")
    known = merge(session.store.load(round + 1).ledger, session.accounts.charged())
    session.accounts.write(answer(known, new, session.privacy, session.elsewhere))
    return noisy_count(correct, new.laplace, session.generator(round, "validation"))


def require_charged(session: Session, done: int, charged: int) -> None:
    """Refuse to answer when more was computed than was paid for."""
    if session.procedure.chain.private is not None and done > charged:
        raise DefenseError(f"{done} local steps were taken where {charged} were charged")


def require_uncovered_is_allowed(session: Session, what: str, mend: str) -> None:
    """Refuse evaluation on a client under an epsilon: exact scores of private examples would leave without noise."""
    if session.procedure.chain.private is not None:
        raise DefenseError(f"{what} uses exact scores of private examples, which ε does not cover: {mend}")
