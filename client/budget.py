"""The client's side of an epsilon: what a request will cost is charged, or refused, before anything is computed.

The digest of a request covers all its answer depends on: weights, mask, defense state, settings and the examples. What
other runs let through of the same examples counts (``client.accounts``). The same request again gets the same answer
for nothing; another one under the same name is refused (``privacy.ledger.spend``).
"""

from client.session import Session
from client.state import Memory
from core.config import parse_section
from core.errors import DefenseError
from privacy.accounting import Privacy
from privacy.chain import flatten_state
from privacy.ledger import Ledger, charge, digest, record
from strategies.local import Received


def account(session: Session, memory: Memory, received: Received, request: str, steps: int) -> Ledger:
    """The ledger as it will be after ``steps`` local steps for ``request``. Raises ``DefenseError`` past the budget."""
    procedure, examples = session.procedure, len(session.examples)
    privacy, elsewhere = parse_section(session.raw, "privacy", Privacy), session.accounts.elsewhere()
    if procedure.chain.private is None:
        return record(memory.ledger, procedure.chain, steps, None, privacy, elsewhere)
    batch = min(session.run.batch_size, examples)
    settings = [link.settings for link in procedure.chain.links]
    text = repr((request, steps, batch, examples, session.accounts.name, procedure.sgd, settings))
    made = digest([received.params, received.mask, flatten_state({**memory.state, "scheme": memory.scheme})], text)
    new = charge(procedure.chain, (request, made), steps, examples, batch)
    return record(memory.ledger, procedure.chain, steps, new, privacy, elsewhere)


def require_charged(session: Session, done: int, charged: int) -> None:
    """Refuse to answer when more was computed than was paid for."""
    if session.procedure.chain.private is not None and done > charged:
        raise DefenseError(f"{done} local steps were taken where {charged} were charged")


def require_uncovered_is_allowed(session: Session, what: str, mend: str) -> None:
    """Refuse evaluation on a client under an epsilon: exact scores of private examples would leave without noise."""
    if session.procedure.chain.private is not None:
        raise DefenseError(f"{what} uses exact scores of private examples, which ε does not cover: {mend}")
