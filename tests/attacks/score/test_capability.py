import pytest

from prunella.attacks.score.capability import Attacked, capability
from prunella.core.errors import AttackError

NONE = Attacked(auc=0.8, mse=0.145)


def test_no_defense_is_zero_and_a_perfect_one_ends_where_a_coin_does() -> None:
    assert capability(NONE, NONE).gdc == 0
    best = capability(NONE, Attacked(auc=0.5, mse=1e12))
    assert best.membership == pytest.approx(0.375) and best.reconstruction == pytest.approx(1)
    assert best.gdc == pytest.approx(0.6875)


def test_it_is_the_printed_formula_and_a_worse_figure_is_negative() -> None:
    """CHN's Natural channel at kappa 100 against none, MSE 0.541 and 0.145, with an AUC made up."""
    defended = Attacked(auc=0.6, mse=0.541)
    dra = (1 / NONE.mse - 1 / defended.mse) / (1 / NONE.mse)
    assert capability(NONE, defended).gdc == pytest.approx(((0.8 - 0.6) / 0.8 + dra) / 2)
    assert capability(defended, NONE).gdc < 0


@pytest.mark.parametrize("auc, mse", [(0.0, 1.0), (1.1, 1.0), (0.5, 0.0), (0.5, float("inf")), (float("nan"), 1.0)])
def test_figures_that_cannot_be_are_refused(auc: float, mse: float) -> None:
    with pytest.raises(AttackError, match="GDC needs"):
        Attacked(auc, mse)
