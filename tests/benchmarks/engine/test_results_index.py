"""The list says what was measured and how it came out, and what was not."""

import json
from pathlib import Path

import pytest

from prunella.benchmarks.engine.claim import SIZES
from prunella.benchmarks.engine.results_index import counts, index, typical, write_index
from prunella.benchmarks.registry import CLAIMS
from prunella.core.errors import ConfigError


def test_what_was_measured_is_linked_and_the_rest_is_listed(tmp_path: Path) -> None:
    (tmp_path / "P1.json").write_text(json.dumps({"verdict": "holds", "reason": "because of this", "version": 2}))
    (tmp_path / "P1-paper.json").write_text(json.dumps({"verdict": "does not hold", "reason": "on a GPU"}))
    (tmp_path / "PriPrune.md").write_text("# PriPrune")
    claims = list(CLAIMS.values())
    text = index(claims, tmp_path)
    assert "| [P1](P1.md) |" in text and "**holds**: because of this |" in text and "[P1-paper](P1-paper.md)" in text
    assert "(PriPrune.md)" in text and "(DGP.md)" not in text
    assert f"| P2 | {CLAIMS['P2'].where} | {CLAIMS['P2'].says} | not measured yet |" in text
    assert all(f"| {name} |" in text or f"[{name}]" in text for name in CLAIMS)
    assert write_index(claims, tmp_path).read_text() == text


def test_counts_look_at_a_claim_once(tmp_path: Path) -> None:
    claims = [CLAIMS["P1"], CLAIMS["P3"]]
    assert counts(claims, tmp_path) == "0 of 2 claims measured."
    for name, word in (("P1", "holds"), ("P1-paper", "holds"), ("P3", "does not hold")):
        (tmp_path / f"{name}.json").write_text(json.dumps({"verdict": word, "reason": ""}))
    assert counts(claims, tmp_path) == "2 of 2 claims measured: does not hold 1, holds 1."


def test_the_seconds_of_a_cell_are_those_of_the_same_size_and_of_the_later_folder(tmp_path: Path) -> None:
    def keep(folder: str, name: str, size: str, seconds: float) -> None:
        (tmp_path / folder).mkdir(exist_ok=True)
        row = {"size": size, "seconds": seconds, "settings": [{}, {}], "seeds": [0, 1, 2], "missing": 1}
        (tmp_path / folder / f"{name}.json").write_text(json.dumps(row))

    folders, claims = (tmp_path / "stored", tmp_path / "out"), [CLAIMS["P1"], CLAIMS["D3"]]
    assert typical(claims, "paper", folders) == {}
    keep("stored", "P1", "small", 10.0)
    keep("stored", "D3", "small", 5.0)
    assert typical(claims, "paper", folders) == {"leakage": 2.0, "traffic": 1.0}
    keep("stored", "P1-paper", "paper", 100.0)
    assert [typical(claims, size, folders)["leakage"] for size in SIZES] == [2.0, 20.0]
    keep("out", "P1-paper", "paper", 50.0)
    assert typical(claims, "paper", folders) == {"leakage": 10.0, "traffic": 1.0}


@pytest.mark.parametrize("text", ["{", "[]", ""])
def test_a_file_that_is_no_result_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "P1.json").write_text(text)
    with pytest.raises(ConfigError, match="P1.json is damaged, or no result"):
        counts([CLAIMS["P1"]], tmp_path)
