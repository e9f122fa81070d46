"""Which Flower is installed is read off its files, and is what importing it shows."""

import importlib
from pathlib import Path

import pytest

from prunella.deploy.runtime import flower_release


def test_the_transport_is_that_of_the_installed_flower() -> None:
    from flwr.supernode import start_client_internal

    assert flower_release.speaks_grpc() is hasattr(start_client_internal, "grpc_request_response")
    module = importlib.import_module(flower_release.connection())
    opens = getattr(module, "grpc_request_response" if flower_release.speaks_grpc() else "http_request_response")
    assert callable(opens) and module.HEARTBEAT_DEFAULT_INTERVAL > 0


def test_other_releases_are_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    assert flower_release.is_started()
    for version, started in (
        ("1.38.0", False),
        ("1.39.7", True),
        ("1.4.2", False),
        ("1.42.1", True),
        ("1.43.0", False),
    ):
        monkeypatch.setattr(flower_release.metadata, "version", lambda _, version=version: version)
        assert flower_release.is_started() is started


def test_a_flower_without_the_grpc_client_speaks_http(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "flwr").mkdir()
    (tmp_path / "flwr" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(importlib.import_module("sys").modules, "flwr")
    assert not flower_release.speaks_grpc() and flower_release.connection().endswith("fleet_http_connection")
