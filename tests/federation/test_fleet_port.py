"""What a site can reach of a real SuperLink answers SuperNodes only, over gRPC and over HTTP."""

from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from prunella.deploy.ports import LOOPBACK, wait_open
from prunella.deploy.runtime import flower_release
from tests.federation.running import Place

pytestmark = [pytest.mark.federation, pytest.mark.newest]
COMMANDS = ("/v1/control/list-runs", "/v1/control/start-run", "/v1/runtime/pull-task-input", "/docs", "/openapi.json")


def status(address: str, path: str, **headers: str) -> int:
    """Of a request in HTTP/1.1; 0 for an answer that is not HTTP/1.1, as that of a gRPC server."""
    try:
        return httpx.post(f"http://{address}{path}", content=b"", headers=headers, timeout=30).status_code
    except (httpx.RemoteProtocolError, httpx.ReadError):
        return 0


def test_the_port_of_the_supernodes_takes_no_commands(tmp_path: Path) -> None:
    with ExitStack() as stack:
        place = Place(tmp_path, stack)
        place.start("link.log", "superlink", "--insecure", "--fleet", place.fleet, "--control", place.control)
        for address in (place.control, place.fleet):
            assert wait_open(int(address.rpartition(":")[2]), 90, host=LOOPBACK), place.said("link.log")
        here, there = ([status(address, path) for path in COMMANDS] for address in (place.control, place.fleet))
        assert set(here[:3]) & {404, 0} == set(), f"the paths exist where commands are taken: {here}"
        assert set(there) == {0 if flower_release.speaks_grpc() else 404}, there
        page = {"Origin": "https://evil.example"}, {"Host": "evil.example"}
        assert [status(place.control, path, **said) for said in page for path in COMMANDS] == [403] * 10
        activate = status(place.fleet, "/v1/fleet/activate-node")
        assert activate == 0 if flower_release.speaks_grpc() else activate not in (0, 200, 404), activate
