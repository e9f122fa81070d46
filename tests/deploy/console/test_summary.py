import io
from pathlib import Path

from rich.console import Console

from prunella.deploy.console.summary import rows, summary
from prunella.deploy.runs import RunDir
from prunella.server.store.schema import row
from prunella.server.store.write import RunStore


def audit(kind: str, psnr: float, ok: bool | None = None) -> dict:
    stat = {"mean": psnr - 1, "worst": psnr, "random": 5.0, "other": 8.0}
    return {
        "round": 1,
        "kind": kind,
        "client": 0 if kind == "client" else None,
        "attack": "sgi",
        "defense": "dgp",
        "adaptive": True,
        "threat": "",
        "objective": 0.1,
        "seconds": 1.0,
        "outcome": "scored",
        "ok": ok,
        "scores": {"psnr": stat, "ssim": {**stat, "worst": 0.5}, "nmi": stat},
        "pictures": None,
    }


def metric(name: str, value: float, **labels: str) -> dict:
    return {"round": 1, "time": 0.0, "metric": name, "labels": labels, "value": value}


def test_bytes_beside_what_dense_would_take() -> None:
    lines = [
        metric("wire_bytes_total", 1e6, direction="up"),
        metric("wire_dense_bytes_total", 4e6, direction="up"),
        metric("wire_bytes_total", 1e6, direction="down"),
        metric("wire_dense_bytes_total", 4e6, direction="down"),
    ]
    assert rows({}, lines, [])[0] == ("sent", "2.0 MB instead of 8.0 MB dense (75.0% saved)")
    larger = [{**line, "value": 5 * line["value"]} if line["metric"] == "wire_bytes_total" else line for line in lines]
    assert rows({}, larger, [])[0] == ("sent", "10.0 MB instead of 8.0 MB dense (25.0% more)")


def test_failures_count_once_by_reason() -> None:
    lines = [metric("client_failures_total", n, reason="late") for n in (1, 2)]
    lines += [metric("client_failures_total", 0, reason="shape")]
    assert rows({}, lines, [])[0] == ("replies left out", "late 2; why: 'left out' in the server's log")


def test_the_worst_audit_is_told_and_not_the_last() -> None:
    audits = [audit("control", 40, True), audit("client", 20), audit("client", 13)]
    found = dict(rows({}, [], audits))
    assert found["verdict"] == "Leak found"
    assert found["worst audit"] == "Client 0: an image rebuilt, PSNR 20.0\u202fdB, SSIM 0.50, round 1 (sgi against dgp)"


def test_an_audit_without_scores_is_no_small_leakage() -> None:
    failed = {**audit("client", 1), "scores": None, "outcome": "failed", "reason": "AttackError: no step was possible"}
    found = rows({"settings": {"defenses": "none"}}, [], [failed])
    assert dict(found)["verdict"] == "Not judged" and "worst audit" not in dict(found)
    assert "no step was possible" in dict(found)["privacy"]


def test_the_table_of_a_stored_run(tmp_path: Path) -> None:
    store = RunStore.open(tmp_path / "one")
    store.write_run(id="one", status="failed", error="no [memory]")
    store.append_metrics(1, [row("round", 1), row("rounds", 2), row("accuracy_ratio", 0.5)])
    out = io.StringIO()
    Console(file=out, width=120).print(summary(RunDir(tmp_path / "one")))
    for text in ("run one", "1 of 2", "0.500", "no [memory]"):
        assert text in out.getvalue()
