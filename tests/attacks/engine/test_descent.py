import pytest
import torch
from torch import Tensor, nn

from prunella.attacks.engine.descent import Adam, Lbfgs, Problem, descend, optimizer_name
from prunella.attacks.engine.inversion import Inversion
from prunella.attacks.engine.progress import Progress
from prunella.core.errors import AttackError
from prunella.core.types import Reconstruction


def squares(x: Tensor, goals: Tensor, rule: Inversion, joint: bool = False) -> tuple[Problem, list[Tensor]]:
    """Every entry of x has its own goal; also the objectives of every evaluation."""
    seen: list[Tensor] = []

    def evaluate() -> tuple[Tensor, Tensor]:
        x.grad = 2 * (x - goals)
        seen.append((x - goals).square())
        return seen[-1].sum(), seen[-1]

    def progress(place: int) -> Progress:
        return Progress(rule, lambda value, i: Reconstruction(x[place].clone(), None, value, i))

    return Problem([x], evaluate, [progress(i) for i in range(len(x))], joint), seen


@pytest.mark.parametrize("optimizer", ["adam", "lbfgs"])
def test_every_guess_comes_to_its_goal(optimizer: str) -> None:
    x, goals = torch.tensor([0.0, 1.0]), torch.tensor([0.75, 0.25])
    problem, _ = squares(x, goals, Inversion(tolerance=1e-6, patience=1000))
    steps = Lbfgs([x], 200) if optimizer == "lbfgs" else Adam([x], [x], 0.1, 200, signed=False)
    for found, goal in zip(descend(problem, steps, 200), goals, strict=True):
        assert float((found.x - goal).abs()) < 1e-2 and found.iterations <= 200


def test_pixels_stay_in_the_box_and_move_by_the_sign() -> None:
    x, goals = torch.tensor([0.5, 0.5]), torch.tensor([5.0, 0.49])
    problem, _ = squares(x, goals, Inversion(tolerance=0.0))
    descend(problem, Adam([x], [x], 0.1, 1, signed=True), 1)
    assert float(x[0] - 0.5) == pytest.approx(float(0.5 - x[1]), abs=1e-6)
    problem, _ = squares(x, goals, Inversion(tolerance=0.0))
    descend(problem, Adam([x], [x], 0.1, 50, signed=True), 50)
    assert float(x[0]) == 1.0


@pytest.mark.parametrize("joint", [False, True])
def test_guesses_stop_one_by_one_or_together(joint: bool) -> None:
    """The first guess may stop at once. By itself it does; in a group it goes on as long as the other."""
    x = torch.zeros(2)
    problem, seen = squares(x, torch.tensor([0.5, 0.5]), Inversion(tolerance=0.0, patience=100), joint)
    problem.progress[0].rule = Inversion(tolerance=10.0)
    found = descend(problem, Adam([x], [x], 0.1, 10, signed=False), 10)
    assert len(seen) == 11 and found[1].iterations > 0
    assert (found[0].iterations > 0) == joint


def test_the_last_iterations_are_looked_at_and_none_follows() -> None:
    x = torch.tensor([0.0])
    problem, seen = squares(x, torch.tensor([1.0]), Inversion(tolerance=0.0, patience=100))
    descend(problem, Adam([x], [], 0.01, 7, signed=False), 7)
    assert len(seen) == 8
    problem, _ = squares(x, torch.tensor([1.0]), Inversion(tolerance=0.0, patience=100))
    assert descend(problem, Lbfgs([x], 30), 30)[0].iterations in (20, 30)


def test_an_objective_that_is_not_finite_ends_the_attack() -> None:
    x = torch.tensor([float("nan")])
    with pytest.raises(AttackError, match="not finite"):
        descend(squares(x, torch.tensor([1.0]), Inversion())[0], Lbfgs([x], 20), 20)


def test_auto_is_lbfgs_for_sigmoids() -> None:
    smooth, other = nn.Sequential(nn.Linear(1, 1), nn.Sigmoid()), nn.Sequential(nn.Linear(1, 1), nn.ReLU())
    assert [optimizer_name("auto", module) for module in (smooth, other)] == ["lbfgs", "adam"]
    assert optimizer_name("adam", smooth) == "adam"


def test_lbfgs_forgets_a_curvature_that_leads_nowhere() -> None:
    """At a kink no step along the old estimate helps: the next chunk begins along the gradient, and goes on."""
    x = torch.tensor([3.0, 1.0])

    def evaluate() -> tuple[Tensor, Tensor]:
        x.grad = torch.stack([x[0].sign(), 20 * x[1]])  # |x0| + 10 x1^2
        value = x[0].abs() + 10 * x[1].square()
        return value, value.reshape(1)

    steps = Lbfgs([x], 20)
    lengths = []
    for chunk in range(5):
        steps.step(evaluate, chunk)
        lengths.append(steps.taken())
    assert 0 in lengths  # forgotten
    assert float(evaluate()[0]) < 0.01
