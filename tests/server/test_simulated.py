"""Errors of clients in a simulation, as Ray itself makes them."""

import logging
import traceback

import pytest
from flwr.app import Error, Message, RecordDict
from flwr.clientapp.client_app import ClientAppException
from flwr.common.logger import log
from flwr.supercore.task_identity import TaskIdentity
from ray.exceptions import RayTaskError

from prunella.core.errors import DefenseError
from prunella.server.simulated import plain, untold
from prunella.strategies.round.replies import ReplyError, require_answer

TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
TEXT = "dp-sgd: it's 'too' weak\nhere"


def raised(error: Exception) -> Exception:
    """What ``ray.get`` raises where a ClientApp raised this, in the way of Flower's actor."""
    try:
        try:
            raise error
        except Exception as inner:
            raise ClientAppException(str(inner)) from inner
    except ClientAppException as outer:
        told: Exception = RayTaskError("ray::ClientAppActor.run", traceback.format_exc(), outer).as_instanceof_cause()
        return told


def answer(error: Exception) -> Message:
    """The reply that Flower's engine makes of it."""
    question = Message(RecordDict(), dst_node_id=3, message_type="train")
    question.metadata.__dict__["_message_id"] = "m3"
    return Message(Error(code=2, reason=str(type(error)) + ":<'" + str(error) + "'>"), reply_to=question)


@pytest.mark.parametrize("error", [DefenseError(TEXT), ValueError(TEXT), DefenseError("no")])
def test_an_answer_from_ray_reads_as_one_of_a_supernode(error: Exception) -> None:
    from_ray, here = answer(raised(error)), answer(error)
    assert "Traceback" not in here.error.reason and len(from_ray.error.reason) > 500
    found = plain(from_ray)
    said = []
    for reply in (found, here):
        with pytest.raises(ReplyError) as told:
            require_answer(reply)
        said.append((str(told.value), told.value.refused, told.value.reason))
    assert said[0] == said[1] and found.metadata == from_ray.metadata
    assert said[0][1] is isinstance(error, DefenseError)


def test_of_an_error_without_a_text_nothing_is_left() -> None:
    assert plain(answer(raised(ValueError()))).error.reason == "<class 'Exception'>:<''>"


def test_other_answers_stay_as_they_are() -> None:
    question = Message(RecordDict(), dst_node_id=3, message_type="train")
    for reply in (Message(RecordDict(), reply_to=question), answer(DefenseError(TEXT))):
        assert plain(reply) is reply


def test_flower_s_log_is_without_the_tracebacks_of_what_is_raised_on_purpose(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("flwr")
    logger.addFilter(untold)
    logger.addHandler(caplog.handler)
    try:
        for error in (DefenseError(TEXT), ValueError(TEXT), TypeError("a bug")):
            if isinstance(error, TypeError):  # of what handles a refusal
                error.__context__ = DefenseError(TEXT)
            log(logging.ERROR, raised(error))
        log(logging.ERROR, "a word of %s", "Flower's")
    finally:
        logger.removeHandler(caplog.handler)
        logger.removeFilter(untold)
    said = list(dict.fromkeys(record.getMessage() for record in caplog.records))
    assert len(said) == 3 and "ValueError" in said[0] and "a bug" in said[1] and said[2] == "a word of Flower's"
