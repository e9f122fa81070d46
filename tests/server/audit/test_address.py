import socket

import pytest

from prunella.core.errors import ConfigError
from prunella.deploy.ports import free_ports
from prunella.server.audit.address import check_cluster, cluster_address, parts, require_answer


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_ADDRESS", "RAY_USE_TLS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "address",
    ["gpu:10001", "ray://gpu", "ray://gpu:99999", "ray://gpu:x", "ray://:1", "http://gpu:1", "ray://a@gpu:1",
     "ray://gpu:1/", "ray://gpu:1?a=b", "10.0.0.1:6379", "local"],
)  # fmt: skip
def test_what_is_no_address_of_a_cluster_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"not ray://HOST:PORT"):
        parts(address)


def test_host_and_port_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parts("ray://GPU.example:10001") == ("gpu.example", 10001) and parts("ray://[::1]:9") == ("::1", 9)
    monkeypatch.setenv("RAY_ADDRESS", "ray://127.0.0.1:9")
    assert cluster_address("auto") == "ray://127.0.0.1:9" and cluster_address("ray://[::1]:9") == "ray://[::1]:9"


@pytest.mark.parametrize("tls", [None, "", "0", "no"])
def test_updates_leave_this_machine_encrypted_or_not_at_all(monkeypatch: pytest.MonkeyPatch, tls: str | None) -> None:
    if tls is not None:
        monkeypatch.setenv("RAY_USE_TLS", tls)
    with pytest.raises(ConfigError, match="RAY_USE_TLS=1"):
        cluster_address("ray://gpu.example:10001")
    monkeypatch.setenv("RAY_USE_TLS", "1")
    assert cluster_address("ray://gpu.example:10001") == "ray://gpu.example:10001"


def test_auto_without_an_address_and_ray_that_is_not_installed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="set RAY_ADDRESS"):
        cluster_address("auto")
    monkeypatch.setattr("prunella.core.extras.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'pip install "prunella\[simulation\]"'):
        cluster_address("ray://127.0.0.1:9")


def test_who_answers_and_who_does_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"ray://127.0.0.1:{server.getsockname()[1]}"
        require_answer(address)
        check_cluster(address, here=True)
    (port,) = free_ports(1)
    with pytest.raises(ConnectionError, match="nothing answers at audit-cluster") as error:
        require_answer(f"ray://127.0.0.1:{port}")
    assert "127.0.0.1" not in str(error.value)


def test_before_a_run_all_is_checked_here_and_the_form_from_elsewhere() -> None:
    (port,) = free_ports(1)
    with pytest.raises(ConfigError, match="start Ray there, or leave audit-cluster empty"):
        check_cluster(f"ray://127.0.0.1:{port}", here=True)
    check_cluster(f"ray://127.0.0.1:{port}", here=False)
    check_cluster("ray://gpu.example:1", here=False)
    check_cluster("auto", here=False)
    with pytest.raises(ConfigError, match="not ray://HOST:PORT"):
        check_cluster("gpu.example", here=False)
