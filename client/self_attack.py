"""The leakage guard on the client: the round's own images, the view the server would have, the verdict.

The images are drawn again from the round's stream, as for an audit, before any defense touched them. With a data
defense the attack rebuilds what was trained on, and is scored against the originals all the same.
"""

from dataclasses import replace

from prunella.client.audit import truth
from prunella.client.session import ServerRequest, Session
from prunella.core.errors import DefenseError
from prunella.core.trees import to_device
from prunella.core.types import ServerView
from prunella.privacy.chain import ChainState
from prunella.privacy.leakage_guard import NAME, unguarded
from prunella.strategies.round.local import LocalResult, Received


def before_training(session: Session, state: ChainState) -> ChainState:
    """The state to train with: a guarded chain adds no noise of its own, since the attack will decide about it."""
    return {**state, NAME: unguarded(state[NAME])} if session.procedure.chain.guard is not None else state


def after_training(
    session: Session, round: int, request: ServerRequest, received: Received, result: LocalResult
) -> LocalResult:
    """The result with what may leave. Raises ``DefenseError`` when it must stay; then nothing is saved either."""
    settings = session.procedure.chain.guard
    if settings is None:
        return result
    if session.scheme.client.undone is not None:
        raise DefenseError(f"{NAME} attacks plain SGD only: choose another strategy than {session.run.strategy}")
    from prunella.attacks.self_attack import guarded  # a run without a guard need not load the attacks

    private, run = truth(session, request), session.run
    private = private.on(session.device)
    batch = min(run.batch_size, len(session.data.examples))
    view = ServerView(
        params=received.params,
        update=result.outgoing.update,
        mask=result.base,
        buffers=to_device(received.buffers, session.device),
        received_buffers=result.buffers,
        num_examples=min(run.local_steps * batch, len(session.data.examples)),
        steps=run.local_steps,
        batch_size=batch,
        learning_rate=run.rate_in(round),
        momentum=run.momentum,
        weight_decay=run.weight_decay,
        defenses=result.applied,
    )
    outgoing = guarded(result.outgoing, view, private, session.data.task, settings, request.generator("guard"))
    return replace(result, outgoing=outgoing)
