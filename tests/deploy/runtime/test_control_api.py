"""The bundle holds what it should, and the run's status is passed on as Flower says it."""

import io
import json
import shutil
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from prunella.core.installation import IMPORT_ROOT as ROOT
from prunella.deploy.machines import keys
from prunella.deploy.ports import free_ports
from prunella.deploy.runtime import control_api


def test_files_are_those_that_fab_include_names(tmp_path: Path) -> None:
    for name in ("room/a.py", "room/deep/b.py", "other/c.py", ".venv/d.py", "README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "room/link.py").symlink_to(tmp_path / "other/c.py")
    (tmp_path / "pyproject.toml").write_text('[tool.flwr.app]\nfab-include = ["room/**/*.py"]\n')
    assert set(control_api.app_files(tmp_path, tmp_path)) == {
        "pyproject.toml",
        "README.md",
        "room/a.py",
        "room/deep/b.py",
    }
    (tmp_path / "pyproject.toml").write_text("")
    assert {"other/c.py", ".venv/d.py"} <= set(control_api.app_files(tmp_path, tmp_path))


def test_runs_inside_the_app_stay_at_home(tmp_path: Path) -> None:
    """A failed run keeps the bundle that it unpacked; the next one's would hold it, until Flower finds it too deep."""
    (tmp_path / "pyproject.toml").write_text("")
    of_runs = [f"runs/x/{name}" for name in ("launch.json", "nodes/0/node.toml", "flower/apps/room/a.py")]
    of_runs += [f"runs/y/{name}" for name in ("run.json", "metrics.jsonl", "a.py")]
    own = ["launch.json", "room/launch.json", "room/run.json", "room/a.py", "runs/b.py"]
    for name in (*own, *of_runs):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert set(control_api.app_files(tmp_path, tmp_path)) == {"pyproject.toml", *own}


def test_code_may_lie_apart_from_the_pyproject(tmp_path: Path) -> None:
    for name in ("share/pyproject.toml", "site/room/a.py", "site/elsewhere/b.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('tool.flwr.app.fab-include = ["room/*.py"]' if "toml" in name else "")
    files = control_api.app_files(tmp_path / "share", tmp_path / "site")
    assert files == {"pyproject.toml": tmp_path / "share/pyproject.toml", "room/a.py": tmp_path / "site/room/a.py"}


def test_the_same_bundle_as_flowers_own_collection(smallest_app: Path) -> None:
    from flwr.cli.build import build_fab_from_disk, build_fab_from_files

    assert build_fab_from_files(control_api.app_files(smallest_app, smallest_app))[0] == build_fab_from_disk(
        smallest_app
    )


class FakeClient:
    """A Control API that answers from lists."""

    def __init__(self, *statuses: tuple[str, str, str], run_id: int | None = 7) -> None:
        self.statuses, self.run_id, self.started = list(statuses), run_id, []

    def StartRun(self, request):  # noqa: N802
        self.started.append(request)
        return SimpleNamespace(run_id=self.run_id, note="full", HasField=lambda name: self.run_id is not None)

    def ListRuns(self, request):  # noqa: N802
        status, sub, details = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        return SimpleNamespace(
            run_dict={7: SimpleNamespace(status=SimpleNamespace(status=status, sub_status=sub, details=details))}
        )


def test_prunellas_own_bundle_is_submitted_with_its_settings() -> None:
    client = FakeClient()
    request = {"config": {"rounds": 3, "rate": 0.5}, "simulation": {"num_supernodes": 9}}
    assert control_api.start_run(client, {"app": str(ROOT), "packages": str(ROOT), **request}) == 7
    [sent] = client.started
    names = zipfile.ZipFile(io.BytesIO(sent.fab.content)).namelist()
    assert "server/app.py" in names and "client/app.py" in names
    assert not [name for name in names if name.startswith(("deploy/", "tests/", ".venv/"))]
    assert sent.override_config["rounds"].sint64 == 3 and sent.override_config["rate"].double == 0.5
    assert sent.override_federation_config.num_supernodes == 9


@pytest.mark.parametrize("name", ["keys/supernodes/site.json", "notes.md", "app/supernodes/site.py"])
def test_an_app_that_brings_a_private_key_is_not_submitted(name: str, smallest_app: Path, tmp_path: Path) -> None:
    """A key pair may have any name, and a bundle without ``fab-include`` takes every .json and .md there is."""
    client, private = FakeClient(), keys.key_pair("a")["supernodes/a"]
    app = shutil.copytree(smallest_app, tmp_path / "own")
    (app / name).parent.mkdir(parents=True, exist_ok=True)
    (app / name).write_bytes(private)
    with pytest.raises(ValueError, match=f"{name}.* private key") as caught:
        control_api.start_run(client, {"app": str(app), "packages": str(app), "config": {}})
    assert not client.started and private.splitlines()[1].decode() not in str(caught.value)


def test_a_refused_run_is_an_error(smallest_app: Path) -> None:
    with pytest.raises(ValueError, match="refused the run: full"):
        request = {"app": str(smallest_app), "packages": str(smallest_app), "config": {}}
        control_api.start_run(FakeClient(run_id=None), request)


def test_each_change_of_status_once_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_api, "EVERY", 0.0)
    client = FakeClient(
        ("pending", "", ""), ("pending", "", ""), ("running", "", ""), ("finished", "failed", "no memory")
    )
    assert list(control_api.statuses(client, 7)) == [("pending", ""), ("running", ""), ("finished:failed", "no memory")]


def test_a_status_that_stays_is_asked_for_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, pauses = [0.0], []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(control_api, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    client = FakeClient(*[("running", "", "")] * 100, ("finished", "completed", ""))
    assert len(list(control_api.statuses(client, 7))) == 2
    assert pauses[0] == 0.2 and pauses[-1] == 1.0 and pauses == sorted(pauses)


def test_an_unreachable_superlink_is_one_line(
    tmp_path: Path, smallest_app: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_api, "START", 0.05)
    request = {
        "app": str(smallest_app),
        "packages": str(smallest_app),
        "config": {},
        "simulation": None,
        "address": f"127.0.0.1:{free_ports(1)[0]}",
        "out": str(tmp_path / "events.jsonl"),
    }
    (tmp_path / "request.json").write_text(json.dumps(request))
    monkeypatch.setattr(sys, "argv", ["control", str(tmp_path / "request.json")])
    with pytest.raises(SystemExit):
        control_api.main()
    [event] = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert event["event"] == "error" and "SuperLink" in event["message"]


def test_keys_are_registered_once(tmp_path: Path) -> None:
    import httpx
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
    from flwr.proto.control_pb2 import ListNodesResponse
    from flwr.proto.node_pb2 import NodeInfo
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    keys.make(tmp_path, ["a", "b"], [])
    sent: list[tuple[str, bytes]] = []

    class Registry:
        def RegisterNode(self, request):  # noqa: N802
            if request.name == "b":
                body = {"code": self.code, "detail": "no"}
                answer = httpx.Response(409, json=body, request=httpx.Request("POST", "https://x"))
                answer.raise_for_status()
            sent.append((request.name, request.public_key))

        def ListNodes(self, request):  # noqa: N802
            return ListNodesResponse(nodes_info=self.nodes)

    registry = Registry()
    registry.code = 23  # the public key is in use already
    b = load_ssh_public_key((tmp_path / "supernodes" / "b.pub").read_bytes())
    registry.nodes = [NodeInfo(node_id=7, name="b", public_key=public_key_to_bytes(b))]
    assert control_api.register(registry, keys.Keys(tmp_path).public()) == (["a"], [])
    registry.nodes[0].unregistered_at = "2026-11-29T00:00:00"
    assert control_api.register(registry, keys.Keys(tmp_path).public()[1:]) == ([], ["b"]), "in use, and kept out"
    private = load_ssh_private_key((tmp_path / "supernodes" / "a").read_bytes(), None)
    assert sent == [("a", public_key_to_bytes(private.public_key()))]
    registry.code = 99
    with pytest.raises(httpx.HTTPStatusError):
        control_api.register(registry, keys.Keys(tmp_path).public())


def test_who_is_removed_already_is_found_again_and_a_name_that_is_in_use_means_its_user() -> None:
    from flwr.proto.control_pb2 import ListNodesResponse
    from flwr.proto.node_pb2 import NodeInfo

    out: list[int] = []
    known = [
        NodeInfo(node_id=1, name="north", unregistered_at="2026-11-02T00:00:00"),
        NodeInfo(node_id=2, name="north", unregistered_at="2026-11-03T00:00:00"),
        NodeInfo(node_id=3, name="south"),
    ]
    client = SimpleNamespace(
        ListNodes=lambda request: ListNodesResponse(nodes_info=known),
        UnregisterNode=lambda request: out.append(request.node_id),
    )
    assert control_api.remove(client, "north") == (2, True), "the newest"
    assert control_api.remove(client, "1") == (1, True) and not out
    known.append(NodeInfo(node_id=4, name="north"))
    assert control_api.remove(client, "north") == (4, False) and out == [4]
    with pytest.raises(ValueError, match="no SuperNode 'west' is registered there; those that are: north, south"):
        control_api.remove(client, "west")


def test_a_superlink_may_be_away_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    import httpx

    monkeypatch.setattr(control_api, "EVERY", 0.0)
    client = FakeClient(("running", "", ""))
    answer, away = client.ListRuns, [1, 1, 1]

    def list_runs(request):
        if away:
            away.pop()
            raise httpx.ConnectError("refused")
        return answer(request)

    client.ListRuns = list_runs
    assert control_api.run_status(client, 7, patience=60.0).status == "running" and not away
    away.append(1)
    with pytest.raises(httpx.ConnectError):
        control_api.run_status(client, 7, patience=-1.0)


@pytest.mark.parametrize(
    "said, fix",
    [
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed", "use the keys"),
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate has expired", "set the clock"),
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number", "add --insecure"),
        ("Server disconnected without sending a response.", "leave out --insecure"),
    ],
)
def test_tls_trouble_is_named(said: str, fix: str) -> None:
    import click

    with pytest.raises(click.ClickException, match=fix):
        control_api.explain_tls(OSError(said))
    control_api.explain_tls(OSError("refused"))


@pytest.mark.parametrize("done", [True, False])
def test_a_run_is_stopped_by_its_number_and_none_is_submitted(monkeypatch: pytest.MonkeyPatch, done: bool) -> None:
    asked = []

    class Stops:
        def StopRun(self, request):  # noqa: N802
            asked.append(request.run_id)
            return SimpleNamespace(success=done)

    monkeypatch.setattr(control_api, "wait_open", lambda *_, **__: True)
    monkeypatch.setattr(control_api, "connect", lambda *_: Stops())
    events = list(control_api.follow({"address": "127.0.0.1:8000", "stop": 7}))
    assert events == [{"event": "stopped", "done": done}] and asked == [7]
