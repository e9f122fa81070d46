import pytest
import torch

from prunella.core.types import ServerView


def test_describe_names_what_the_server_had_and_nothing_it_had_not() -> None:
    tree = {"w": torch.zeros(2)}
    view = ServerView(params=tree, update=tree, labels=torch.tensor([1]), steps=1)
    text = view.describe()
    assert "labels" in text and "steps" in text
    assert "importance" not in text and "buffers" not in text


@pytest.mark.parametrize(
    ("steps", "batch", "examples", "used"),
    [(1, 16, 100, 16), (3, 16, 100, 48), (3, 16, 20, 20), (None, 16, None, 16), (2, None, 9, 9), (2, None, None, None)],
)
def test_the_images_that_trained_are_those_of_the_steps_and_no_more_than_there_are(
    steps: int | None, batch: int | None, examples: int | None, used: int | None
) -> None:
    """A trace of a Flower app tells all examples of the client, of which one step takes a batch."""
    assert ServerView({}, {}, steps=steps, batch_size=batch, num_examples=examples).images_used == used
