import torch

from prunella.tasks.data import load_test
from prunella.tasks.public import digits, in_shape, set_apart
from prunella.tasks.task import Task


def rows(x: torch.Tensor) -> list[tuple[float, ...]]:
    return sorted(tuple(image.flatten().tolist()) for image in x)


def test_public_and_remaining_examples_are_the_test_set_cut_in_two_by_seed() -> None:
    test = load_test("digits", None)
    task = Task("cnn", (1, 8, 8), 10)
    public, rest = set_apart(task, test, 0)
    assert rows(torch.cat([public.x, rest.x])) == rows(test.x)
    assert torch.equal(set_apart(task, test, 0)[0].x, public.x)
    assert not torch.equal(set_apart(task, test, 1)[0].x, public.x)


def test_without_test_examples_digits_stand_in_in_the_tasks_shape() -> None:
    public, rest = set_apart(Task("resnet18", (3, 32, 32), 5), None, 0)
    assert rest is None and len(public) == len(digits())
    assert tuple(public.x.shape[1:]) == (3, 32, 32) and int(public.y.max()) < 5


def test_images_that_fit_are_left_as_they_are() -> None:
    same = in_shape(digits(), Task("cnn", (1, 8, 8), 10))
    assert torch.equal(same.x, digits().x) and torch.equal(same.y, digits().y)
