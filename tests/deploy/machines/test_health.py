"""Health as seen by the kernel: real sockets, and the exit codes of the command the images run."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from prunella.deploy.machines.health import connected, healthy, peers
from prunella.deploy.ports import free_ports
from prunella.deploy.runtime.processes import environment, importable


def check(*arguments: str) -> int:
    command = [sys.executable, "-m", "prunella.deploy.machines.health", *arguments]
    return subprocess.run(command, env=importable(environment()), capture_output=True).returncode


def test_a_connection_counts_while_it_lasts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not connected(port)
        with socket.create_connection(("127.0.0.1", port)):
            assert connected(port) and healthy("connected", str(port))
    assert not connected(port)


def test_the_command_says_it_by_its_exit_code() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert check("listens", f"127.0.0.1:{server.getsockname()[1]}") == 0
    assert check("listens", f"127.0.0.1:{free_ports(1)[0]}") == 1
    assert check("connected", str(free_ports(1)[0])) == 1


def test_the_kernels_own_table_is_understood() -> None:
    assert all(0 < port < 65536 for port in peers(Path("/proc/net/tcp").read_text()))


@pytest.mark.parametrize(
    "given", [("listens", "9092"), ("connected", "127.0.0.1:9092"), ("lives", "1"), ("listens", "a:b")]
)
def test_a_check_that_is_none_is_no_health(given: tuple[str, str]) -> None:
    with pytest.raises(ValueError):
        healthy(*given)
    assert check(*given) == 1
