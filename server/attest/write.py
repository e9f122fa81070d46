"""All the files of an attestation, and the audits for other tools.

``attack_results.json`` has the parts that SACRO-ML's attacks write (``log_id``, ``log_time``, ``metadata``,
``attack_experiment_logger``), an entry an attack, so that a reviewer's tools can read it.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from prunella.core.errors import ConfigError
from prunella.core.files import write_atomically
from prunella.server.attest.page import page, pdf
from prunella.server.attest.signing import STATEMENT, fingerprint, signed
from prunella.server.attest.statement import canonical, digest_of, statement
from prunella.server.report.evidence import judged, valid_audits
from prunella.server.store.read import read_audits
from prunella.server.store.schema import StoreLine

RESULTS, HTML, PDF = "attack_results.json", "attestation.html", "attestation.pdf"
_KEPT = (
    "round",
    "kind",
    "client",
    "defense",
    "outcome",
    "ok",
    "reason",
    "objective",
    "seconds",
    "scores",
    "membership",
)


def _word(audit: StoreLine, audits: Sequence[StoreLine]) -> str:
    """How an audit came out: the level of its images, or what the membership question was answered."""
    return str((audit["membership"] or {}).get("word") or judged(audit, audits))


def results(audits: Sequence[StoreLine], said: Mapping[str, Any]) -> list[dict[str, Any]]:
    """An entry for every attack: its audits as instances, and how many came out how."""
    found = []
    for attack in dict.fromkeys(audit["attack"] for audit in audits):
        mine = [audit for audit in audits if audit["attack"] == attack]
        instances = {
            f"instance_{number}": {key: audit[key] for key in _KEPT} | {"level": _word(audit, audits)}
            for number, audit in enumerate(mine)
        }
        levels = [each["level"] for each in instances.values()]
        about = {"attack_name": attack, "target_model": said["run"], "threat_model": mine[0]["threat"]}
        about["global_metrics"] = {word: levels.count(word) for word in sorted(set(levels))}
        log = hashlib.sha256(canonical([said["run"], said["made"], attack])).hexdigest()
        entry: dict[str, Any] = {"log_id": log, "log_time": said["made"], "metadata": about}
        found.append({**entry, "attack_experiment_logger": {"attack_instance_logger": instances}})
    return found


def attest(run: Path, out: Path, key: Ed25519PrivateKey, with_printer: str) -> list[Path]:
    """Write the attestation of a run into ``out``; a PDF among it where there is a printer (``page.printer``).

    Raises ``ConfigError`` where the run cannot be attested or ``out`` has an attestation of another run already.
    """
    said = statement(run)
    _require_free(out, said["run"])
    out.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(canonical(said)).hexdigest()
    html = page(said, digest, fingerprint(key.public_key()))
    audits = valid_audits(read_audits(run))[0]
    texts = {HTML: html.encode(), RESULTS: json.dumps(results(audits, said), indent=1, sort_keys=True).encode()}
    texts |= {PDF: pdf(html, with_printer)} if with_printer else {}
    if not with_printer:
        (out / PDF).unlink(missing_ok=True)  # an older one would stand beside it unsigned
    for name, content in texts.items():
        write_atomically(out / name, lambda path, content=content: path.write_bytes(content))  # type: ignore[misc]
    documents = {name: digest_of(out / name) for name in sorted(texts)}
    text = json.dumps(signed(said, documents, key), indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
    write_atomically(out / STATEMENT, lambda path: path.write_text(text + "\n", encoding="utf-8"))
    return [out / name for name in (STATEMENT, *documents)]


def _require_free(out: Path, run: str) -> None:
    try:
        before = json.loads((out / STATEMENT).read_text(encoding="utf-8"))["statement"]["run"]
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError):
        before = "something else"
    if before != run:
        raise ConfigError(f"{out} has an attestation of {before}: choose another directory with --out")
