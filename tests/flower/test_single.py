"""What is asked of one example alone; of whole loops in tests/flower/test_any_model.py."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flwr.app import Context, Message
from torch import Tensor, nn
from torch.nn import functional

from prunella.core.errors import ConfigError, PrunellaError
from prunella.flower.defend import Defend
from prunella.flower.loop import protected
from prunella.flower.single import is_joint, require_single_gradients
from tests.flower.foreign import RATE, batches, make, run

WEIGHTS = torch.tensor([1.0, 50.0, 0.01, 3.0])
LOGITS, CLASSES = torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64)
ONE = torch.zeros(3, 1)


def of_examples(answer: Tensor, y: Tensor) -> Tensor:
    """The fix that the warning names."""
    return (WEIGHTS[y] * functional.cross_entropy(answer, y, reduction="none")).mean()


@pytest.mark.parametrize(
    ("loss", "answer", "y", "joint"),
    [
        (nn.CrossEntropyLoss(), LOGITS, CLASSES, False),
        (nn.CrossEntropyLoss(label_smoothing=0.1), LOGITS, CLASSES, False),
        (nn.CrossEntropyLoss(), torch.zeros(3, 4, 5, 5), torch.zeros(3, 5, 5, dtype=torch.int64), False),
        (nn.CrossEntropyLoss(), LOGITS, torch.zeros(3, 4), False),
        (nn.NLLLoss(), LOGITS, CLASSES, False),
        (nn.MSELoss(), ONE, ONE, False),
        (nn.BCELoss(), ONE, ONE, False),
        (nn.BCEWithLogitsLoss(pos_weight=torch.tensor([5.0])), ONE, ONE, False),
        (nn.BCEWithLogitsLoss(weight=WEIGHTS), LOGITS, LOGITS, False),
        (of_examples, LOGITS, CLASSES, False),
        (of_examples, LOGITS.bfloat16(), CLASSES, False),
        (nn.CrossEntropyLoss(weight=WEIGHTS), LOGITS, CLASSES, True),
        (nn.NLLLoss(weight=WEIGHTS), LOGITS, CLASSES, True),
        (nn.CrossEntropyLoss(reduction="sum"), LOGITS, CLASSES, True),
        (nn.MSELoss(reduction="sum"), ONE, ONE, True),
        (nn.CrossEntropyLoss(ignore_index=1), LOGITS, CLASSES, True),
        (lambda answer, y: functional.mse_loss(answer - answer.mean(0), y), ONE, ONE, True),
    ],
)
def test_a_loss_is_joint_where_the_mean_of_single_ones_is_another(
    loss: Any, answer: Tensor, y: Tensor, joint: bool
) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    assert is_joint(loss, answer, y) is joint
    assert torch.equal(torch.get_rng_state(), before)


def looped(loss: Callable[[Tensor, Tensor], Tensor]) -> Any:
    def loop(model: nn.Module, message: Message, context: Context) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        with protected(message, context, model) as guard:
            for x, y in batches(0):
                guard.step(x, y, loss, optimizer)

    return loop


@pytest.mark.parametrize(
    ("loss", "defenses", "times"),
    [
        (nn.CrossEntropyLoss(weight=torch.arange(1.0, 11.0)), "dp-sgd", 2),  # two sites
        (nn.CrossEntropyLoss(weight=torch.arange(1.0, 11.0)), "none", 0),
        (nn.CrossEntropyLoss(), "dp-sgd", 0),
    ],
)
def test_a_joint_loss_is_said_once_in_a_run_under_an_epsilon(
    loss: Any, defenses: str, times: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(make([Defend()], looped(loss)), tmp_path, {"defenses": defenses}, rounds=2)
    assert caplog.text.count("class weights divide out") == times


def test_a_refusal_keeps_the_text_of_the_app_s_exception_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(error: PrunellaError) -> PrunellaError:
        return error

    def failing(answer: Tensor, y: Tensor) -> Tensor:
        raise KeyError("a secret")

    net, work = nn.Linear(4, 4), SimpleNamespace(refuse=refuse)
    params, x = {name: p.detach() for name, p in net.named_parameters()}, torch.zeros(3, 4)
    require_single_gradients(work, net, params, x, CLASSES, 3, functional.cross_entropy)  # type: ignore[arg-type]
    net = nn.Linear(4, 4)  # one that was not asked before
    with pytest.raises(ConfigError, match="KeyError; the rest is in this client's own log") as caught:
        require_single_gradients(work, net, params, x, CLASSES, 3, failing)  # type: ignore[arg-type]
    assert "a secret" not in str(caught.value) and "a secret" in caplog.text
