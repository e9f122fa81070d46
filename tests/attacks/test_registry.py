"""The registry is loaded when one of its names is first used; tests/attacks/test_attacks.py asks its attacks."""

import subprocess
import sys

import pytest

from prunella import attacks
from prunella.attacks import registry


def test_a_name_brings_the_registry_without_slow_packages_and_the_package_alone_does_not() -> None:
    code = (
        "import sys, prunella.attacks.score.level; assert not {'torch', 'prunella.attacks.registry'} & set(sys.modules)"
        "\nfrom prunella.attacks import find_attack; assert 'torch' in sys.modules and find_attack('sgi').adaptive"
        "\nassert not {'scipy.stats', 'scipy.optimize'} & set(sys.modules), 'a second, in every process of a run'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_name_is_the_registrys_and_no_other_is_there() -> None:
    assert all(getattr(attacks, name) is getattr(registry, name) for name in attacks.__all__)
    with pytest.raises(AttributeError, match="no attribute 'ATTACK'"):
        attacks.ATTACK  # noqa: B018
