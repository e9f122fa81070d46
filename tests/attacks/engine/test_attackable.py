"""What cannot be attacked is told apart from what was attacked in vain."""

import pytest
import torch
from torch import Tensor, nn

from prunella.attacks.engine.attackable import require_images
from prunella.core.errors import AttackError
from prunella.core.types import ServerView
from prunella.tasks.task import ModuleTask, Task, initial


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.places, self.words, self.out = nn.Embedding(4, 2), nn.Embedding(9, 2), nn.Linear(2, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.words(ids).mean(dim=1))


def test_a_model_of_tokens_is_not_attacked_and_the_words_say_what_its_update_tells() -> None:
    update = {name: torch.zeros_like(p) for name, p in Reader().named_parameters()}
    update["words.weight"][[2, 5]] = 0.1
    with pytest.raises(AttackError) as told:
        require_images(ServerView(update, update), ModuleTask("reader", (1, 1, 4), 3, Reader()))
    assert "none was tried" in str(told.value) and "words.weight 2 of 9 rows moved" in str(told.value)
    assert "rebuilt" not in str(told.value)


def test_another_number_of_logits_is_none_of_the_task_s() -> None:
    wrong = ModuleTask("wrong", (1, 8, 8), 10, nn.Sequential(nn.Flatten(), nn.Linear(64, 9)))
    with pytest.raises(AttackError, match="10 logits, and the attacks here rebuild images: none was tried.*tells$"):
        require_images(ServerView({}, {}), wrong)


def test_a_model_of_images_is_attacked() -> None:
    task = Task("cnn", (1, 8, 8), 10)
    require_images(ServerView(initial(task, 0)[0], {}), task)


@pytest.mark.parametrize("logits", [1, 2])
def test_one_logit_is_not_attacked_and_two_are(logits: int) -> None:
    """The cross-entropy of one class is 0 whatever the image is."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, logits))
    loss = nn.functional.cross_entropy(module(torch.rand(3, 1, 8, 8)), torch.zeros(3, dtype=torch.long))
    assert bool(loss) is (logits == 2)
    view, task = ServerView(dict(module.named_parameters()), {}), ModuleTask("own", (1, 8, 8), logits, module)
    if logits == 2:
        require_images(view, task)
        return
    with pytest.raises(AttackError, match=r"one class.*always 0: none was tried"):
        require_images(view, task)
