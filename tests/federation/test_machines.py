"""Three hosts, as network namespaces joined by veth links: TLS, keys, a link cut in mid-round, and who is not let in.

Needs root and iproute2. Every address is inside namespaces made here; they are removed whatever happens.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from prunella.deploy.runtime import flower_release
from prunella.server.store.read import read_metrics, read_run
from tests.federation.running import ROOT, end

pytestmark = pytest.mark.federation
CENTRE, SITES = "centre", ("north", "south")
# The centre's address on the link to each site; it has another one there that no certificate names.
ADDRESS = {"north": "10.199.1.1", "south": "10.199.2.1"}
UNNAMED = "10.199.1.9"
CUT = 8.0  # seconds without a link: less than the 20 after which a SuperNode counts as dead
ROUNDS = 8


def ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


@dataclass
class World:
    """The hosts and what runs on them."""

    folder: Path
    prefix: str = field(default_factory=lambda: f"prunella-{os.getpid()}")

    def name(self, host: str) -> str:
        return f"{self.prefix}-{host}"

    def build(self) -> None:
        for host in (CENTRE, *SITES):
            ip("netns", "add", self.name(host))
            ip("-n", self.name(host), "link", "set", "lo", "up")
            (self.folder / host).mkdir()
        for site, address in ADDRESS.items():
            here, there = self.name(CENTRE), self.name(site)
            ip("link", "add", site, "netns", here, "type", "veth", "peer", "name", "eth0", "netns", there)
            ip("-n", here, "addr", "add", f"{address}/24", "dev", site)
            ip("-n", there, "addr", "add", f"{address[:-1]}2/24", "dev", "eth0")
            ip("-n", here, "link", "set", site, "up")
            ip("-n", there, "link", "set", "eth0", "up")
        ip("-n", self.name(CENTRE), "addr", "add", f"{UNNAMED}/24", "dev", "north")

    def remove(self) -> None:
        for host in (CENTRE, *SITES):
            subprocess.run(["ip", "netns", "del", self.name(host)], capture_output=True)

    def link(self, site: str, state: str) -> None:
        ip("-n", self.name(CENTRE), "link", "set", site, state)

    def start(self, host: str, *arguments: str, log: str = "") -> subprocess.Popen[str]:
        """``prunella`` on a host, in its own directory."""
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TERM": "dumb", "COLUMNS": "200"}
        command = [
            "ip",
            "netns",
            "exec",
            self.name(host),
            sys.executable,
            "-c",
            "from prunella.deploy.cli import start; start()",
        ]
        with open(self.folder / host / (log or "out.log"), "w") as out:
            return subprocess.Popen(
                [*command, *arguments], cwd=self.folder / host, env=env, text=True, stdout=out, stderr=subprocess.STDOUT
            )

    def supernode(self, site: str, address: str, *more: str, log: str = "") -> subprocess.Popen[str]:
        number = str(SITES.index(site))
        given = ["--superlink", f"{address}:9092", "--client-id", number, "--clients", "2", *more]
        return self.start(site, "supernode", *given, log=log)

    def said(self, host: str, log: str = "out.log") -> str:
        path = self.folder / host / log
        return path.read_text(errors="replace") if path.exists() else ""


def wait_for(condition: Callable[[], object], what: str, seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"gave up waiting for {what}"
        time.sleep(0.05)


def make_keys(folder: Path, *arguments: str) -> None:
    """``prunella keys`` at the centre; every site is given what it needs and nothing else."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [
        sys.executable,
        "-c",
        "from prunella.deploy.cli import start; start()",
        "keys",
        "--out",
        str(folder),
        *arguments,
    ]
    subprocess.run(command, check=True, env=env, capture_output=True)


def hand_out(keys: Path, site: str, place: Path, ca: Path | None = None) -> None:
    (place / "supernodes").mkdir(parents=True)
    shutil.copy(ca or keys / "ca.crt", place / "ca.crt")
    shutil.copy(keys / "supernodes" / site, place / "supernodes" / site)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The hosts with their keys and a SuperLink that knows them."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("needs root and iproute2, to make network namespaces")
    world = World(tmp_path_factory.mktemp("world"))
    with ExitStack() as stack:
        stack.callback(world.remove)
        try:
            world.build()
        except OSError as error:
            pytest.skip(f"network namespaces are not permitted here: {error}")
        keys = world.folder / CENTRE / "keys"
        hosts = [part for address in ADDRESS.values() for part in ("--host", address)]
        make_keys(keys, "--name", "north", "--name", "south", *hosts)
        for site in SITES:
            hand_out(keys, site, world.folder / site / "keys")
        stack.callback(end, world.start(CENTRE, "superlink"))
        register = world.start(CENTRE, "register", log="register.log")
        assert register.wait(90) == 0, world.said(CENTRE, "register.log") + world.said(CENTRE)
        yield world


def refused(world: World, attempts: dict[str, tuple[str, ...]]) -> dict[str, str]:
    """Start a SuperNode at the north for every attempt, none of which must get in; what each says at last."""
    with ExitStack() as stack:
        tried = {}
        for name, (address, *arguments) in attempts.items():
            own = ("--name", "north", "--home", name, "--stock", "--patience", "0", *arguments)
            tried[name] = world.supernode("north", address, *own, log=f"{name}.log")
            stack.callback(end, tried[name])
        for name, process in tried.items():
            assert process.wait(180) == 1, world.said("north", f"{name}.log")
    return {name: world.said("north", f"{name}.log").splitlines()[-1] for name in attempts}


def test_a_stranger_is_not_let_in_and_told_why(world: World) -> None:
    other, north = world.folder / "other", world.folder / "north"
    make_keys(other, "--name", "north")
    hand_out(other, "north", north / "strange-key", ca=north / "keys" / "ca.crt")
    hand_out(world.folder / CENTRE / "keys", "north", north / "strange-ca", ca=other / "ca.crt")
    said = refused(
        world,
        {
            "unknown": (ADDRESS["north"], "--keys", "strange-key"),
            "elsewhere": (ADDRESS["north"], "--keys", "strange-ca"),
            "unnamed": (UNNAMED, "--keys", "keys"),
        },
    )
    assert "prunella register" in said["unknown"]
    assert "copy ca.crt" in said["elsewhere"]
    assert "prunella keys --host" in said["unnamed"]


def test_a_link_cut_in_mid_round_loses_nothing(world: World) -> None:
    with ExitStack() as stack:
        for site in SITES:
            stack.callback(end, world.supernode(site, ADDRESS[site], "--name", site))
        options = ["-c", f"rounds={ROUNDS}", "-c", "audit-every=0", "-c", "strategy=random", "--run-id", "cut"]
        submit = world.start(CENTRE, "submit", *options, log="submit.log")
        stack.callback(end, submit)
        run = world.folder / CENTRE / "runs" / "cut"

        def reached() -> int:
            return max((r["round"] for r in read_metrics(run)), default=0) if (run / "metrics.jsonl").exists() else 0

        wait_for(lambda: reached() >= 2 or submit.poll() is not None, "round 2")
        world.link("south", "down")
        time.sleep(1.0)  # what was on its way has arrived
        before = reached()
        assert 2 <= before < ROUNDS - 1, world.said(CENTRE, "submit.log")
        time.sleep(CUT)
        stalled = reached()
        world.link("south", "up")
        assert stalled == before, "the round in which the link was cut could not have ended without the south"
        assert submit.wait(90) == 0, world.said(CENTRE, "submit.log") + world.said("south")
    assert read_run(run)["status"] == "completed"
    rows = read_metrics(run)
    assert [r["value"] for r in rows if r["metric"] == "round"] == list(range(1, ROUNDS + 1))
    assert [r["value"] for r in rows if r["metric"] == "clients_selected"] == [2.0] * ROUNDS
    assert not [r for r in rows if r["metric"] == "client_failures_total"]
    assert max(r["value"] for r in rows if r["metric"] == "round_seconds") > CUT
    signed_off = "[Fleet.DeactivateNode] Deactivated"
    wait_for(lambda: world.said(CENTRE).count(signed_off) == len(SITES), "both sites to sign off", seconds=10)
    # It was gRPC, or a newer Flower's HTTP, with TLS; what clients remember lies on their hosts, for their eyes only.
    transport = "gRPC-rere" if flower_release.speaks_grpc() else "HTTP"
    assert f"Starting Fleet API ({transport}) on 0.0.0.0:9092" in world.said(CENTRE)
    for site in SITES:
        command = world.said(site).splitlines()[0]
        assert f"--superlink {ADDRESS[site]}:9092" in command and "--insecure" not in command
        state = world.folder / site / site / "state"
        assert state.stat().st_mode & 0o077 == 0 and list(state.rglob("round-*.safetensors"))
