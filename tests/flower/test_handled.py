from types import SimpleNamespace

import pytest
import torch

from prunella.core.errors import DefenseError
from prunella.flower.handled import Handled, check_loop, needs_loop
from prunella.privacy.chain import build_chain


def test_which_defenses_need_the_loop() -> None:
    assert needs_loop(build_chain(["gaussian", "dgp"], {})) == ["gaussian"]
    assert needs_loop(build_chain(["priprune"], {})) == ["priprune"]
    assert needs_loop(build_chain(["top-k", "mask-hiding"], {})) == needs_loop(build_chain(["none"], {})) == []


def test_an_answer_has_to_be_the_model_that_the_guard_left() -> None:
    few = lambda steps: None  # noqa: E731
    site = SimpleNamespace(chain=build_chain(["gaussian"], {}), policy=None, require_few=few)
    tree = {"w": torch.ones(2)}
    work = Handled(site, tree, {"w": torch.ones(2, dtype=torch.bool)}, (), {})
    with pytest.raises(DefenseError, match="no step went through it"):
        check_loop(work, tree)
    work.guard, work.left = SimpleNamespace(), {"w": torch.ones(2)}
    with pytest.raises(DefenseError, match="where the loader yields no batch"):
        check_loop(work, tree)
    work.left, work.steps = {"w": torch.zeros(2)}, 1
    check_loop(work, {"w": torch.zeros(2)})
    with pytest.raises(DefenseError, match="w of the answer is not what"):
        check_loop(work, tree)


def test_a_buffer_that_moved_is_named_with_what_to_do() -> None:
    """As that of spectral norm or a running centre does; the app did answer with the model of the loop."""
    site = SimpleNamespace(chain=build_chain(["gaussian"], {}), policy=None, require_few=lambda steps: None)
    received = {"w": torch.ones(2), "center": torch.zeros(2)}
    work = Handled(site, received, {name: torch.ones(2, dtype=torch.bool) for name in received}, (), {})
    work.left, work.steps = {"w": torch.zeros(2)}, 1
    check_loop(work, {"w": torch.zeros(2), "center": torch.zeros(2)})
    with pytest.raises(DefenseError, match=r"center is no trained weight .*eval\(\), .*persistent=False"):
        check_loop(work, {"w": torch.zeros(2), "center": torch.ones(2)})
