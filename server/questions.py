"""What clients' answers say of what they have spent, and what it means that one did not come: ``Books.ledgers``.

A question counts as charged until its answer is there (``privacy.ledger.spending``). So does one from before the first
round: whoever made the run's first mask may never be chosen for a round, and has spent all the same.
"""

from contextlib import suppress
from typing import Protocol

from flwr.app import Message

from prunella.privacy.ledger import spending
from prunella.privacy.ledger.spending import Line
from prunella.strategies.round.replies import ReplyError, read_ledger, require_answer


class Books(Protocol):
    """Who keeps the ledger lines, by client."""

    ledgers: dict[str, Line]


def note_refusal(books: Books, client: int, reply: Message) -> None:
    """A client that says it will not answer has charged nothing for the question."""
    try:
        require_answer(reply)
    except ReplyError as error:
        if error.refused:
            books.ledgers = spending.uncharged(books.ledgers, client)


def note_line(books: Books, client: int, line: Line, trained: bool = False) -> None:
    """The line that came with an answer. ``trained``: in a round that is not a repeated one."""
    books.ledgers = {**books.ledgers, str(client): spending.heard(books.ledgers.get(str(client), {}), line, trained)}


def note_answer(books: Books, client: int, reply: Message) -> None:
    """The client's line as its answer has it; where it has none, which no ε covers, nothing was charged."""
    if reply.has_error():
        note_refusal(books, client, reply)
    elif "ledger" in reply.content.config_records:
        with suppress(ReplyError):  # an answer that is none counts as a failure elsewhere
            note_line(books, client, read_ledger(reply.content))
    elif "epsilon" not in books.ledgers[str(client)]:
        books.ledgers = spending.uncharged(books.ledgers, client)


def note_first(books: Books, answers: list[tuple[int, Message]]) -> None:
    """What clients answered that were asked before the first round. Empties ``answers``."""
    while answers:
        note_answer(books, *answers.pop(0))
