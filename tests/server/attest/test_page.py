"""Printing: which printer is taken, and what one that fails says."""

from pathlib import Path

import pytest
from PIL import ImageFile

from prunella.core.errors import ConfigError
from prunella.server.attest import page

HTML = "<!DOCTYPE html><title>x</title><p>one page</p>"


def test_weasyprint_before_a_browser_and_nothing_where_there_is_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_pango(name: str) -> None:
        raise OSError("cannot load library 'libpango-1.0-0'")

    monkeypatch.setattr(page.shutil, "which", lambda name: f"/bin/{name}" if name == "chromium" else None)
    monkeypatch.setattr(page.importlib, "import_module", lambda name: name)
    assert page.printer() == "weasyprint"
    monkeypatch.setattr(page.importlib, "import_module", no_pango)
    assert page.printer() == "/bin/chromium"
    monkeypatch.setattr(page.shutil, "which", lambda name: None)
    assert page.printer() == ""


def test_a_browser_that_fails_is_one_line_with_the_way_out(tmp_path: Path) -> None:
    broken = tmp_path / "chromium"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(ConfigError, match="chromium cannot print here .CalledProcessError.: --no-pdf"):
        page.pdf(HTML, str(broken))


def test_a_printer_prints() -> None:
    with_printer = page.printer()
    if not with_printer:
        pytest.skip("neither WeasyPrint nor Chromium is here")
    assert page.pdf(HTML, with_printer)[:5] == b"%PDF-"


def test_printing_leaves_pillow_as_it_was() -> None:
    """WeasyPrint has it take damaged images for whole ones; a data set read in the same process would have them."""
    page.printer()
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False
