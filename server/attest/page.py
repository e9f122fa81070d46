"""The attestation as a page to print: the sections of a statement, and nothing else, in one file that fetches nothing.

``pdf`` prints it with whichever of WeasyPrint and Chromium is there.
"""

import importlib
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from prunella.core.errors import ConfigError

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
SECONDS = 120

TEMPLATE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Attestation of run {{ run }}</title>
<style>
@page { size: A4; margin: 20mm 18mm 22mm; @bottom-right { content: "page " counter(page) " of " counter(pages);
  font: 8pt sans-serif; color: #555; } @bottom-left { content: "{{ run }} · {{ digest[:16] }}";
  font: 8pt monospace; color: #555; } }
body { font: 10.5pt/1.45 system-ui, "DejaVu Sans", "Liberation Sans", Arial, sans-serif; color: #1d2227; margin: 0 auto;
  max-width: 48em; }
h1 { font-size: 19pt; line-height: 1.2; margin: 4pt 0 10pt; } h2 { font-size: 13pt; margin: 18pt 0 4pt;
  break-after: avoid; } p { margin: 4pt 0; orphans: 3; widows: 3; }
.badge { border: 1.2pt solid {{ colour }}; color: {{ colour }}; border-radius: 9pt; padding: 1pt 8pt;
  font-weight: 600; }
.eyebrow, .small { color: #555; font-size: 9pt; } .mono { font: 8pt/1.4 monospace; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; margin: 6pt 0 8pt; font-size: 8.5pt; }
th, td { border-top: .5pt solid #bbb; padding: 3pt 5pt; text-align: left; vertical-align: top;
  overflow-wrap: break-word; }
th { color: #555; font-weight: 500; } thead { display: table-header-group; } tr { break-inside: avoid; }
.settings { columns: 2; font: 7pt/1.35 monospace; overflow-wrap: anywhere; }
.sign { margin-top: 26pt; break-inside: avoid; }
.line { border-top: .7pt solid #333; width: 60%; margin-top: 34pt; padding-top: 2pt; font-size: 8.5pt; color: #555; }
</style>
</head>
<body>
<p class="eyebrow">Prunella attestation · run {{ run }} · made {{ made[:16]|replace('T', ' ') }} UTC</p>
<p><span class="badge">{{ badge }}</span>{% if epsilon %} &nbsp; ε {{ "%.3g"|format(epsilon.most) }} at δ
{{ "%.3g"|format(epsilon.delta) }}{% else %} &nbsp; no ε that covers every site{% endif %}</p>
<h1>{{ headline }}</h1>
{% for section in sections %}<section>
<h2>{{ loop.index }}. {{ section.title }}</h2>
{% for text in section.paragraphs %}<p>{{ text }}</p>
{% endfor %}{% for table in section.tables %}<table>
{% if table.heads|select|list %}<thead><tr>{% for head in table.heads %}<th>{{ head }}</th>{% endfor %}</tr></thead>
{% endif %}<tbody>{% for row in table.rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table>
{% endfor %}</section>
{% endfor %}<section class="sign">
<p class="mono">signed with Ed25519 by {{ fingerprint }}</p>
<p class="line">name, role, date</p>
<p class="line">signature</p>
</section>
<section>
<h2>{{ sections|length + 1 }}. Digests and settings</h2>
<p class="small">SHA-256 of the run's files, of its settings, and of the code that wrote this. The statement's own
digest is {{ digest }}; attestation.json beside this file has the statement with its signature, and <code>prunella
verify</code> checks all of it without a network.</p>
<table><tbody>{% for name, value in digests|dictsort %}<tr><td>{{ name }}</td><td class="mono">{{ value }}</td></tr>
{% endfor %}{% for name, value in versions|dictsort %}<tr><td>{{ name }}</td><td>{{ value }}</td></tr>
{% endfor %}</tbody></table>
<p class="small">Settings of the run, of its strategy, defenses and attack; all others are in attestation.json.</p>
<div class="settings">{% for name, value in used|dictsort %}{{ name }}={{ value }}<br>
{% endfor %}</div>
</section>
</body>
</html>
"""
COLOURS = {"leak": "#a8425a", "traces": "#8a6a00", "clear": "#004488"}


def used(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without those of strategies, defenses and attacks that the run did not have.

    >>> sorted(used({"attack": "sgi", "defenses": "dgp,dp-sgd", "sgi.tv": 0, "dgp.top": 1, "ggl.tv": 0, "rounds": 2}))
    ['attack', 'defenses', 'dgp.top', 'rounds', 'sgi.tv']
    """
    named = {str(settings.get(key, "")) for key in ("strategy", "attack", "robust")} | {"privacy"}
    named |= {name.strip() for name in str(settings.get("defenses", "")).split(",")}
    return {key: value for key, value in settings.items() if "." not in key or key.partition(".")[0] in named}


def page(statement: Mapping[str, Any], digest: str, fingerprint: str) -> str:
    """The page of a statement; every text from the run is escaped."""
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    colour = COLOURS.get(statement["tone"], "#5a636c")
    shown = {**statement, "digest": digest, "fingerprint": fingerprint, "colour": colour}
    shown["used"] = used(statement["settings"])
    return environment.from_string(TEMPLATE).render(shown)


def weasyprint() -> Any:
    """The package. It tells Pillow to take damaged images for whole ones, in all of the process: that is undone."""
    from PIL import ImageFile

    before = ImageFile.LOAD_TRUNCATED_IMAGES
    try:
        return importlib.import_module("weasyprint")
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = before


def printer() -> str:
    """What can print here: "weasyprint", where the Pango that it loads is there, the path of a browser, or ""."""
    try:
        weasyprint()
        return "weasyprint"
    except (ImportError, OSError):
        pass
    return next((found for name in BROWSERS if (found := shutil.which(name))), "")


def pdf(html: str, with_printer: str) -> bytes:
    """The page as a PDF. Raises ``ConfigError`` where printing fails."""
    if with_printer == "weasyprint":
        printed: bytes = weasyprint().HTML(string=html).write_pdf()
        return printed
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "page.html"), Path(folder, "page.pdf")
        source.write_text(html, encoding="utf-8")
        asked = [with_printer, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile"]
        asked += ["--no-pdf-header-footer", f"--print-to-pdf={target}", source.as_uri()]
        try:
            subprocess.run(asked, check=True, capture_output=True, timeout=SECONDS)
            return target.read_bytes()
        except (OSError, subprocess.SubprocessError) as error:
            raise ConfigError(
                f"{Path(with_printer).name} cannot print here ({type(error).__name__}): --no-pdf"
            ) from None
