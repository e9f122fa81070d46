import pytest

from prunella.core import hosts
from prunella.core.hosts import is_known, is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_what_is_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "localhost.evil.example", "", "127.evil"])
def test_what_is_not_loopback(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize("host", ["10.0.0.1", "::1", "localhost", "executor", "Centre.hospital.example"])
def test_no_web_site_can_have_this_name(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "_own_name", lambda: "centre.hospital.example")
    assert is_known(host)


@pytest.mark.parametrize(
    "host", ["", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "other.example"]
)
def test_a_web_site_can_have_this_name(host: str) -> None:
    assert not is_known(host)
