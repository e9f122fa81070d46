import torch

from prunella.core.types import ServerView


def test_describe_names_what_the_server_had_and_nothing_it_had_not() -> None:
    tree = {"w": torch.zeros(2)}
    view = ServerView(params=tree, update=tree, labels=torch.tensor([1]), steps=1)
    text = view.describe()
    assert "labels" in text and "steps" in text
    assert "importance" not in text and "buffers" not in text
