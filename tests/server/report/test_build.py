"""Reports of whole runs, made from real files and read as a browser would."""

import re
import stat
from html.parser import HTMLParser
from pathlib import Path

import pytest

from prunella.server.report.build import write_report
from prunella.server.store.schema import StoreError, row
from tests.server.report.stored import add_audit, add_worst_case, full_run, new_run

HOSTILE = '"><script>alert(1)</script>'
FETCHING = {"src", "href", "srcset", "poster", "data", "action", "xlink:href"}


class Page(HTMLParser):
    """Tags, fetched addresses and visible text; complains about tags that are not closed."""

    VOID = {"meta", "link", "img", "br"}

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(html)
        assert self.open == [], f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in FETCHING]
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"[ \n\t]+", " ", " ".join(self.words))


def page(run_dir: Path) -> Page:
    return Page(write_report(run_dir).read_text(encoding="utf-8"))


def test_a_full_run_shows_the_question_the_answer_and_the_evidence(tmp_path: Path) -> None:
    full_run(tmp_path, client_noise=0.03)
    found = page(tmp_path)
    text = found.text
    assert "could a curious server rebuild" in text and "Yes: a curious server could rebuild" in text
    assert (
        "75.0\u202f% less than dense (8\u202fkB)" in text
        and "80.0\u202f%" in text
        and "of the prunable weights 1,234 parameters" in text
    )
    assert found.tags.count("img") == 2 * 4 * 3 and text.count("Control, defended") == 2
    for words in ("Honest but curious.", "heuristic, no ε", "shape", "Seed 5", "2.15", "○ nothing", "● rebuilt"):
        assert words in text
    assert "only where the table below says “○ nothing”, and nothing where it says “proves nothing”" in " ".join(
        text.split()
    )


def test_a_run_of_masked_sums_says_that_its_sums_were_attacked(tmp_path: Path) -> None:
    store = new_run(tmp_path)
    for kind, noise in (("control", 0.02), ("control-defended", 2.0), ("client", 0.03)):
        add_audit(store, 4, kind, noise, sites=4)
    text = page(tmp_path).text
    assert "it attacks the sum of 4 sites' updates, every control is a sum of as many" in text
    assert "Client 2, in a sum of 4" in text and "A server that lies was not tried" in text
    full_run(tmp_path / "alone")
    assert "added up before" not in page(tmp_path / "alone").text


def test_what_found_nothing_is_not_called_private(tmp_path: Path) -> None:
    store = full_run(tmp_path)
    assert "Not with this attack" not in page(tmp_path).text, "the worst case is not known"
    add_worst_case(store)
    text = page(tmp_path).text
    assert "Not with this attack" in text and "stronger attack" in text and "private" not in text.lower()


def test_a_failed_control_says_that_the_audit_proves_nothing(tmp_path: Path) -> None:
    full_run(tmp_path, control_noise=3.0)
    text = page(tmp_path).text
    assert "The audit proves nothing" in text and "proves nothing" in text and "Not with this attack" not in text


def test_the_page_fetches_nothing(tmp_path: Path) -> None:
    full_run(tmp_path)
    found = page(tmp_path)
    assert found.addresses and all(address.startswith("data:") for address in found.addresses)
    assert not {"script", "iframe", "object", "embed"} & set(found.tags)
    html = (tmp_path / "report.html").read_text()
    assert "default-src 'none'" in html and not re.search(r"https?://", html)


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    store = new_run(tmp_path, id=HOSTILE, status="failed", error=HOSTILE, threat_model=HOSTILE, claims=[HOSTILE],
                    settings={HOSTILE: HOSTILE, "dataset": HOSTILE}, versions={HOSTILE: HOSTILE})  # fmt: skip
    store.append_metrics(5, [row("client_failures_total", 1, reason=HOSTILE)])
    add_audit(store, 4, "client", 2.0, attack=HOSTILE, defense=HOSTILE, threat=HOSTILE)
    found = page(tmp_path)
    assert "script" not in found.tags and found.text.count("<script>alert(1)</script>") >= 9


def test_only_the_owner_can_read_a_report(tmp_path: Path) -> None:
    full_run(tmp_path)
    assert stat.S_IMODE(write_report(tmp_path).stat().st_mode) == 0o600
    (tmp_path / "report.html").unlink()
    (tmp_path / "report.html").mkdir()
    with pytest.raises(StoreError, match="report.html is a folder: remove it"):
        write_report(tmp_path)


@pytest.mark.parametrize(
    ("status", "words"), [("running", "Not finished."), ("failed", "disk full"), ("stopped", "stopped after 4 rounds")]
)
def test_a_run_that_did_not_complete_says_so(tmp_path: Path, status: str, words: str) -> None:
    new_run(tmp_path, status=status, error="disk full" if status == "failed" else None)
    text = page(tmp_path).text
    assert words in text and "Nothing was audited" in text


def test_a_torn_last_line_of_a_running_run_is_no_obstacle(tmp_path: Path) -> None:
    new_run(tmp_path, status="running")
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"round":5,"met')
    assert "covers 4 rounds" in page(tmp_path).text


def test_a_run_that_has_just_begun_is_not_told_as_a_broken_one(tmp_path: Path) -> None:
    new_run(tmp_path, rounds=0, status="running", settings={"rounds": 6, "audit-every": 6})
    text = page(tmp_path).text
    assert "no round has ended yet" in text and "There are no pictures: no audit has ended yet." in text
    for words in ("missing or empty", "Nothing was audited", "nothing was audited", "No audit was run"):
        assert words not in text


def test_an_empty_directory_gets_an_honest_report(tmp_path: Path) -> None:
    text = page(tmp_path).text
    for words in ("run.json is missing", "metrics.jsonl is missing", "Nothing was audited", "not known"):
        assert words in text
    assert "No reply was left out" not in text


def test_without_consent_there_are_no_pictures_and_the_reason_stands(tmp_path: Path) -> None:
    store = new_run(tmp_path)
    add_audit(store, 4, "control", 0.02, pictures=False)
    add_audit(store, 4, "client", 2.0, pictures=False, outcome="no-consent", scores=None)
    found = page(tmp_path)
    assert "img" not in found.tags and "no client consented" in found.text and "no consent" in found.text


def test_missing_pictures_are_said_in_their_place(tmp_path: Path) -> None:
    full_run(tmp_path)
    (tmp_path / "pictures/4-client.safetensors").unlink()
    found = page(tmp_path)
    assert "file with the pictures is missing" in found.text and found.tags.count("img") == 2 * 4 * 2


def test_a_damaged_audit_is_counted_and_left_out(tmp_path: Path) -> None:
    full_run(tmp_path)
    with (tmp_path / "audits.jsonl").open("a") as file:
        file.write('{"round": 4, "kind": "alien"}\n')
    assert "1 line of audits.jsonl could not be read" in page(tmp_path).text
