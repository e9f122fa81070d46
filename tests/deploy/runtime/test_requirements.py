"""Another Flower, or a package that is not installed, is said before any process starts, with what to install."""

import pytest

from prunella.core.errors import ConfigError
from prunella.deploy.errors import UsageError
from prunella.deploy.runtime import requirements


def test_what_is_installed_here_passes() -> None:
    requirements.check()
    requirements.check("server")
    requirements.check("simulation")


def test_another_flower_is_refused_and_the_right_one_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements.flower_release.metadata, "version", lambda name: "1.38.0")
    with pytest.raises(UsageError, match=r"flwr 1\.38\.0 are not started: pip install 'flwr==1\.39\.\*' \(gRPC\) or"):
        requirements.check()


def test_another_system_is_told_what_runs_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements.sys, "platform", "darwin")
    with pytest.raises(UsageError, match="on Linux only: .*`flower-supernode`"):
        requirements.check()


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prunella.core.extras.find_spec", lambda name: None if name == "pyarrow" else name)
    with pytest.raises(ConfigError, match=r'this needs pyarrow: pip install "prunella\[server\]"'):
        requirements.check("server")
