"""The documentation as a site: links and anchors end somewhere, search knows every page, nothing comes from afar."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# What a browser loads by itself when it opens a page, where that lies on another host.
LOADED = re.compile(r"""<(?:script|img|link|iframe|source)\b[^>]*?\s(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)""")
LOADED_BY_STYLE = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. ``--strict`` fails for a link, an anchor or a page in the nav that is not there."""
    pytest.importorskip("material", reason='pip install -e ".[docs]"')
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


def test_search_knows_every_page(site: Path) -> None:
    found = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    known = {entry["location"].partition("#")[0] for entry in found}
    pages = {str(page.relative_to(site)) for page in site.rglob("*.html")} - {"404.html"}
    assert len(pages) == len([*(ROOT / "docs").rglob("*.md")])
    assert {page.removesuffix("index.html") for page in pages} == known
    assert any("secure aggregation" in entry["text"] for entry in found)


def test_a_browser_loads_nothing_from_elsewhere(site: Path) -> None:
    assert LOADED.findall('<link rel="stylesheet" href="https://fonts/a"><script src=//b></script>')
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not LOADED.findall(text) + LOADED_BY_STYLE.findall(text), page
    for style in site.rglob("*.css"):
        assert not LOADED_BY_STYLE.findall(style.read_text(encoding="utf-8")), style
