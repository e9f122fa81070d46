"""The page of ``server.report.build`` and ``server.report.live``: style sheet, Jinja2 template and the live page's
script, as text.

They are in a module because a Flower app bundle carries ``*.py`` and no template files. A report fetches nothing: its
content security policy forbids it. A live page asks the server that it came from for its next state; when the server
has ended, as it does after the run, the page keeps what it last showed.
"""

STYLE = """
:root { color-scheme: light dark;
  --paper:#fbfaf8; --card:#fff; --ink:#1d2227; --soft:#5a636c; --rule:#dfdcd6; --blue:#004488; --red:#a8425a;
  --yellow:#8a6a00; --grey:#7d868e; --band:#8883; --wash:#f1efea; }
@media (prefers-color-scheme: dark) { :root {
  --paper:#14171a; --card:#1c2024; --ink:#e9e7e2; --soft:#a3abb3; --rule:#343a40; --blue:#7fb2e5; --red:#f0a0b0;
  --yellow:#e8c55e; --grey:#8d969e; --band:#8885; --wash:#24292e; } }
* { box-sizing:border-box; }
body { margin:0; background:var(--paper); color:var(--ink); line-height:1.5; font-size:16px;
  font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif; }
main { max-width:1140px; margin:0 auto; padding:28px 20px 56px; }
h1,h2,h3,p,figure { margin:0; } h2 { font-size:1.25rem; margin:48px 0 4px; letter-spacing:-.01em; }
h3 { font-size:1rem; margin:0; } .lead { color:var(--soft); max-width:58em; margin-bottom:14px; }
.eyebrow { color:var(--soft); font-size:.875rem; overflow-wrap:anywhere; } .eyebrow strong { color:var(--ink); }
.question { font-size:1.05rem; color:var(--soft); margin:26px 0 8px; max-width:42em; }
.verdict { border-left:6px solid var(--tone); padding:2px 0 2px 18px; max-width:58em; }
.verdict h1 { font-size:clamp(1.5rem,3.6vw,2.15rem); line-height:1.2; letter-spacing:-.02em; text-wrap:balance; }
.verdict ul { margin:14px 0 0; padding-left:1.1em; color:var(--soft); } .verdict li { margin:3px 0; }
.next { margin:14px 0 0; } .terms { margin:18px 0 0; font-size:.9rem; }
.badge { display:inline-block; border:1.5px solid var(--tone); color:var(--tone); border-radius:999px; font-weight:600;
  padding:1px 12px; font-size:.85rem; margin-bottom:10px; }
.leak { --tone:var(--red); } .traces { --tone:var(--yellow); } .clear { --tone:var(--blue); }
.unproven,.silent { --tone:var(--soft); }
.notice { border:1px solid var(--rule); background:var(--wash); border-radius:8px; padding:10px 14px; margin-top:16px;
  overflow-wrap:anywhere; } .notice strong { margin-right:4px; }
.gone { position:sticky; bottom:12px; max-width:58em; margin:0 auto 12px; border-color:var(--red); }
.tiles { display:grid; grid-template-columns:repeat(auto-fit,minmax(min(100%,112px),1fr)); gap:12px; margin-top:30px; }
.tile { background:var(--card); border:1px solid var(--rule); border-radius:10px; padding:13px 15px 12px; }
.tile.wide { grid-column:span 2; }
.tile dt { font-size:.85rem; color:var(--soft); } .tile dd { margin:0; }
.tile .big { font-size:1.25rem; font-weight:600; letter-spacing:-.02em; line-height:1.3; }
.tile .note { font-size:.82rem; color:var(--soft); line-height:1.4; }
.charts { display:grid; grid-template-columns:repeat(auto-fit,minmax(min(100%,310px),1fr)); gap:14px; }
.chart { background:var(--card); border:1px solid var(--rule); border-radius:10px; padding:12px 14px 8px;
  break-inside:avoid; display:flex; flex-direction:column; } .plot { width:100%; height:auto; margin-top:auto; }
.chart figcaption { font-weight:600; font-size:.95rem; }
.legend { display:flex; flex-wrap:wrap; gap:2px 14px; font-size:.8rem; color:var(--soft); margin:2px 0 8px; }
.key { display:inline-flex; align-items:center; gap:6px; }
.none { color:var(--soft); padding:28px 0 34px; text-align:center; margin:auto; }
.grid { stroke:var(--rule); stroke-width:1; } .tick { fill:var(--soft); font-size:11px; }
.line { fill:none; stroke-width:2; stroke-linejoin:round; stroke-linecap:round; }
.line.blue { stroke:var(--blue); } .line.red { stroke:var(--red); stroke-dasharray:7 4; }
.line.yellow { stroke:var(--yellow); stroke-dasharray:1.5 4.5; }
.line.grey { stroke:var(--grey); stroke-dasharray:4 4; }
.mark { stroke:var(--card); stroke-width:1; } .mark.blue { fill:var(--blue); } .mark.red { fill:var(--red); }
.mark.yellow { fill:var(--yellow); } .mark.grey { fill:var(--grey); } .faint { opacity:.45; }
.band { fill:var(--band); }
.strips { display:flex; flex-wrap:wrap; gap:12px; } .strip { flex:1 1 auto;
  background:var(--card); border:1px solid var(--rule); border-radius:10px; padding:14px 16px;
  break-inside:avoid; } .strip h3 span { font-weight:400; color:var(--soft); }
.strip p { color:var(--soft); font-size:.82rem; margin-top:8px; }
.pairs { display:flex; flex-wrap:wrap; gap:14px; margin-top:10px; }
.rows { display:grid; grid-template-rows:88px 88px; gap:4px; font-size:.78rem; color:var(--soft); width:5.6em; }
.rows span { align-self:center; text-align:right; }
.pair { width:88px; } .pair img { display:block; width:88px; height:88px; object-fit:contain; background:var(--wash);
  image-rendering:pixelated; border-radius:3px; } .pair img + img { margin-top:4px; }
.pair figcaption { font-size:.75rem; color:var(--soft); line-height:1.35; margin-top:5px; white-space:nowrap; }
.scroll { overflow-x:auto; border:1px solid var(--rule); border-radius:10px; background:var(--card); }
table { border-collapse:collapse; font-size:.82rem; font-variant-numeric:tabular-nums; width:100%; }
th,td { text-align:left; vertical-align:top; padding:7px 6px; border-top:1px solid var(--rule); }
thead th { border-top:0; color:var(--soft); font-weight:500; background:var(--wash); vertical-align:bottom; }
td.n,th.n { text-align:right; } td.n,td small { white-space:nowrap; } .broad td.n small { white-space:normal; }
.broad { width:min(100vw - 40px,1540px); margin-left:50%; transform:translateX(-50%); }
td small { display:block; color:var(--soft); font-size:.76rem; }
td small.why { white-space:normal; font-weight:400; min-width:9em; overflow-wrap:anywhere; }
.plain td { overflow-wrap:anywhere; } .plain td:first-child { white-space:nowrap; }
.result { font-weight:600; color:var(--tone,inherit); white-space:nowrap; }
.notes { padding-left:0; list-style:none; margin:10px 0 0; font-size:.88rem; color:var(--soft); }
.notes li { margin:5px 0; overflow-wrap:anywhere; } .notes b { color:var(--ink); margin-right:5px; }
details { border:1px solid var(--rule); border-radius:10px; background:var(--card); margin-top:10px; padding:0 14px; }
details.more { background:none; margin-top:12px; } details.more .strips { padding-bottom:14px; }
summary { cursor:pointer; padding:10px 0; font-weight:500; } details .scroll { border:0; margin-bottom:12px; }
pre { background:var(--wash); border-radius:8px; padding:12px 14px; overflow-x:auto; font-size:.82rem; margin:8px 0 0;
  white-space:pre-wrap; overflow-wrap:anywhere; font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace; }
dl.words { display:grid; grid-template-columns:max-content 1fr; gap:4px 16px; font-size:.9rem; margin:8px 0 0; }
dl.words dt { font-weight:600; } dl.words dd { margin:0; color:var(--soft); }
.promise { color:var(--soft); margin-left:8px; }
.sign { display:none; break-inside:avoid; font-size:8pt; } .sign p { overflow-wrap:anywhere; }
.sign .line { border-top:.7pt solid; width:60%; margin-top:34pt; }
footer { margin-top:48px; padding-top:14px; border-top:1px solid var(--rule); color:var(--soft); font-size:.82rem; }
@media (max-width:560px) { main { padding:18px 14px 40px; } .rows { display:none; } .pairs { gap:10px; }
  .tiles { grid-template-columns:1fr 1fr; } .tile .big { font-size:1.25rem; } .verdict { padding-left:13px; }
  dl.words { grid-template-columns:1fr; } dl.words dd { margin-bottom:6px; } }
@media print { :root { --paper:#fff; --card:#fff; } body { font-size:11pt; } main { max-width:none; padding:0; }
  .broad { width:auto; margin:0; transform:none; }
  .charts { grid-template-columns:repeat(3,1fr); } .tiles { grid-template-columns:repeat(3,1fr); }
  h2 { break-after:avoid; } tr { break-inside:avoid; } .scroll { overflow:visible; } table { font-size:8pt; }
  th,td { padding:3px 5px; } details::details-content { content-visibility:visible; }
  .sign { display:block; } * { print-color-adjust:exact; -webkit-print-color-adjust:exact; } }
"""

TEMPLATE = """{% macro show(strip) %}<article class="strip">
<h3>{{ strip.title }} <span>· {{ strip.detail }}</span></h3>
{% if strip.problem %}<p>{{ strip.problem }}</p>{% else %}
<div class="pairs"><div class="rows" aria-hidden="true"><span>original</span><span>rebuilt</span></div>
{% for pair in strip.pairs %}<figure class="pair">
<img src="{{ pair.original }}" alt="{{ strip.title }}, image {{ loop.index }}: original">
<img src="{{ pair.reconstruction }}" alt="{{ strip.title }}, image {{ loop.index }}: reconstruction, {{ pair.words }}">
<figcaption>PSNR {{ pair.psnr }}<br>SSIM {{ pair.ssim }}</figcaption></figure>
{% endfor %}</div>
{% if strip.left %}<p>{{ strip.pairs|length }} of {{ strip.pairs|length + strip.left }} images: the best
reconstructions among those that were stored.</p>{% endif %}{% endif %}
</article>
{% endmacro -%}
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{% if not live %}<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
{% endif %}<link rel="icon" href="data:,">
<title>{{ verdict.badge }} · Prunella run {{ run_id }}</title>
<style>{{ style }}</style>
</head>
<body>
<main>
<header>
<p class="eyebrow"><strong>Prunella {{ "live" if live else "report" }}</strong> · run {{ run_id }}
{%- for fact in facts %} · {{ fact }}{% endfor %}</p>
{% for kind, text in notices %}<p class="notice" role="note"><strong>{{ kind }}</strong> {{ text }}</p>
{% endfor %}
<p class="question">How much of a client's data could a curious server rebuild from what it received?</p>
<div class="verdict {{ verdict.tone }}">
<span class="badge">{{ verdict.badge }}</span>
<span class="promise">{{ verdict.promise }}</span>
<h1>{{ verdict.headline }}</h1>
{% if verdict.sentences %}<ul>{% for sentence in verdict.sentences %}<li>{{ sentence }}</li>{% endfor %}</ul>{% endif %}
{% if not live %}<p class="next"><strong>What to do next.</strong> {{ verdict.next_step }}</p>{% endif %}
</div>
{% if audits %}<p class="lead terms">In an audit the server attacks an update exactly as it received it, and the client
scores the result against its own images. The scores PSNR and SSIM measure how similar a rebuilt image is to the
original: a higher score means that more has leaked. A control is the same attack on images that the server itself
owns, sent exactly as a client sends its own, so that its success is known. The worst case is one such image in one
step: not what the clients did, but what the server may ask for. {% if summed %}The updates
of this run were added up before the server saw them. So it attacks {{ summed }}, every control is a sum of as many,
and the worst case is a sum of one image of each site in one step. {% endif %}<em>How to read the scores</em>, at the
end, explains every term.</p>
{% endif %}
</header>

<dl class="tiles">
{% for tile in tiles %}<div class="tile{{ " wide" if tile.wide }}">
<dt>{{ tile.name }}</dt><dd class="big">{{ tile.value }}</dd>
{% for note in tile.notes %}<dd class="note">{{ note }}</dd>{% endfor %}</div>
{% endfor %}
</dl>

<section>
<h2>What the server rebuilt</h2>
{% if strips %}<p class="lead">Each column is one image: the original above, what the server rebuilt below.
{% if strips_left %}This shows the controls and the audits {{ "that are latest" if live else "that leak most" }}:
{{ strips|length }} of
{{ strips|length + strips_left }} audits with pictures.{% endif %}</p>
<div class="strips">
{% for strip in strips[:open_strips] %}{{ show(strip) }}{% endfor %}</div>
{% if strips|length > open_strips %}<details class="more"><summary>More audits with pictures
({{ strips|length - open_strips }})</summary><div class="strips">
{% for strip in strips[open_strips:] %}{{ show(strip) }}{% endfor %}</div></details>{% endif %}
{% else %}<p class="lead">{% if withheld %}Pictures are shown only on the server's own machine (loopback), and this
page is served to others too. The run's report contains the pictures.{% else %}There are no pictures:
{{ no_pictures }}{% endif %}</p>{% endif %}
</section>

<section>
<h2>Leakage by audited round</h2>
<p class="lead">The most leaking image of each audit; higher is worse for the client. The grey band
spans what needs no attack at all: the scores of a random image and of another image of the same data. A low score
shows something only where the table below says &ldquo;○ nothing&rdquo;, and nothing where it says &ldquo;proves
nothing&rdquo; or &ldquo;not explained&rdquo;. An audit whose client told no numbers is not drawn: its result is in the
table below.</p>
<div class="charts">{% for chart in leakage_charts %}{{ chart }}{% endfor %}</div>
</section>

<section>
<h2>Learning and cost</h2>
<p class="lead">What the federation learned, how much of the model is kept, and how many bytes each round sent.</p>
<div class="charts">{% for chart in run_charts %}{{ chart }}{% endfor %}</div>
</section>

{% if exported %}<section>
<h2>Exported model</h2>
<p class="lead">{{ exported }}</p>
</section>

{% endif %}<section>
<h2>Every audit</h2>
{% if audits %}<p class="lead">Each score is that of the most leaking image. Below it are the mean over images and, in
brackets, the scores of a random image, of other people's images and, where known, of the best guess without the
update.{% if audits_left %} The last of
{{ audits|length + audits_left }} audits, and the worst; all are in audits.jsonl.{% endif %}</p>
<div class="scroll broad" tabindex="0" role="region" aria-label="Table of audits"><table>
<thead><tr><th class="n">Round</th><th>Who</th><th>Result</th><th>Attack</th><th>Defense</th>
<th class="n">PSNR, dB</th><th class="n">SSIM</th><th class="n">NMI</th><th class="n">AMI</th>
<th class="n">MSE</th><th class="n">NCC</th><th class="n">Own image nearest</th><th class="n">Told apart</th>
<th class="n">Labels named</th>
<th class="n">Objective, time</th></tr></thead>
<tbody>{% for a in audits %}<tr>
<td class="n">{{ a.round }}</td><td>{{ a.who }}{% if a.images %}<small>{{ a.images }}</small>{% endif %}</td>
<td class="result {{ a.tone }}">{{ a.result }}
{%- if a.reason %}<small class="why">{{ a.reason }}</small>{% endif %}</td>
<td>{{ a.attack }}{% if a.found_by %}<small>by {{ a.found_by }}</small>{% endif %}
<small>{{ a.knows }}</small><small>view {{ a.threat }}</small></td><td>{{ a.defense }}</td>
{% for cell in a.cells %}<td class="n">{{ cell.worst }}
{%- for note in cell.rest %}<small>{{ note }}</small>{% endfor %}</td>
{% endfor %}</tr>{% endfor %}</tbody></table></div>
{% else %}<p class="lead">{{ no_audits }}</p>{% endif %}
</section>

<section>
<h2>Threat model</h2>
<p class="lead">{{ threat_model }}</p>
{% if threats %}<ul class="notes">
{% for letter, threat in threats %}<li><b>View {{ letter }}</b>{{ threat }}</li>{% endfor %}</ul>
{% endif %}
</section>

<section>
<h2>What the defenses promise</h2>
{% if claims or bounds %}<p class="lead">ε (epsilon) limits how much any single example can change what the server sees:
the smaller ε, the stronger the guarantee. A heuristic gives no such limit.</p>{% endif %}
{% if claims %}<ul class="notes">{% for claim in claims %}<li>{{ claim }}</li>{% endfor %}</ul>
{% else %}<p class="lead">This run claims no privacy guarantee: it states neither an ε nor a bound.</p>{% endif %}
{% if bounds %}<ul class="notes">
{% for name, text in bounds %}<li><b>{{ name }}</b>{{ text }}</li>{% endfor %}</ul>{% endif %}
</section>

<section>
<h2>Failures</h2>
{% if failures %}<div class="scroll"><table class="plain">
<thead><tr><th>Reason a reply was left out</th><th class="n">Replies</th></tr></thead><tbody>
{% for reason, number in failures %}<tr><td>{{ reason }}</td><td class="n">{{ number }}</td></tr>{% endfor %}
</tbody></table></div>{% else %}<p class="lead">{{ no_failures }}</p>{% endif %}
</section>

<section>
<h2>How to repeat this run</h2>
{% if command %}<pre>{{ command }}</pre>
<p class="lead" style="margin-top:8px">Seed {{ seed }}. The command names the settings that differ from their
defaults; all of them are below.</p>{% else %}<p class="lead">The settings of this run are not known.</p>{% endif %}
<details><summary>All settings ({{ settings|length }})</summary><div class="scroll"><table class="plain"><tbody>
{% for key, text in settings %}<tr><td>{{ key }}</td><td>{{ text }}</td></tr>
{% endfor %}</tbody></table></div></details>
<details><summary>Versions ({{ versions|length }})</summary><div class="scroll"><table class="plain"><tbody>
{% for key, text in versions %}<tr><td>{{ key }}</td><td>{{ text }}</td></tr>
{% endfor %}</tbody></table></div></details>
</section>

<section>
<h2>How to read the scores</h2>
<dl class="words">
<dt>PSNR</dt><dd>Peak signal-to-noise ratio in decibels. Higher leaks more.</dd>
<dt>SSIM</dt><dd>Structural similarity, 1 is identical. Higher leaks more. Of small images even unrelated ones can
score high: read it beside its baselines.</dd>
<dt>NMI, AMI</dt><dd>Normalised and chance-corrected mutual information of the two images' grey levels, 1 is
identical. NMI depends on the image size: read it beside its baselines.</dd>
<dt>MSE</dt><dd>Mean squared error, pixels in [0,&nbsp;1]. Lower leaks more.</dd>
<dt>NCC</dt><dd>Correlation of the pixels, which brightness and contrast do not change: a pale copy or a negative has 1.
Higher leaks more.</dd>
<dt>Own image nearest</dt><dd>Share of images whose reconstruction is nearer to them than to the others. In
brackets, the share by chance: of the same reconstruction and other people's images or, where none were at hand, of
noise. It is large, since each reconstruction counts for the image that it fits best.</dd>
<dt>Told apart</dt><dd>Originals that are nearer to what was rebuilt than up to 99 look-alikes of their class, other
people's images. In brackets, the share that chance would tell apart.</dd>
<dt>Other people's images</dt><dd>What the same reconstruction scores against as many images that it cannot know, in the
best of 32 draws. Where no such images were at hand: what a different image of the same batch scores or, for a single
image, a flat one of its mean brightness.</dd>
<dt>Rebuilt</dt><dd>{{ rebuilt }}</dd>
<dt>Control</dt><dd>The same attack on public images that were trained on exactly as the audited client trains, without
a defense. If even this fails, the attack cannot judge this setting, and finding nothing means nothing.</dd>
<dt>Explained</dt><dd>What was rebuilt would itself have sent the update, or nearly: its objective is at most 0.01,
where 0 is the whole update and about 1 none of it. Where it would not, finding nothing means nothing.</dd>
<dt>Worst case</dt><dd>One public image in one step, the easiest update to attack. The server may ask clients for
it.</dd>
<dt>Adaptive</dt><dd>The attack knows which defense is used and works around it.</dd>
</dl>
</section>
{% if not live %}<section class="sign">
{% for name, digest in digests %}<p>SHA-256 of {{ name }}: {{ digest }}</p>
{% endfor %}<p>`prunella attest` writes a document that is signed.</p>
<p class="line">name, role, date</p><p class="line">signature</p>
</section>
{% endif %}<footer>
{% if live %}Prunella {{ version }}. This page asks the run's server for its newest state and contacts nobody
else.{% else %}Made by Prunella {{ version }} from run.json, metrics.jsonl and audits.jsonl beside this file. It loads
nothing from the network.{% endif %}{% if strips %} It contains images of controls or of clients that agreed to show
them: share it as you would share those images.{% endif %}</footer>
</main>
{% if live %}<p class="notice gone" id="gone" role="status" hidden><strong>The server has ended.</strong> This
page keeps its last state. When a run ends, its directory holds the report with every round.</p>
<script>{{ script }}</script>
{% endif %}</body>
</html>
"""

# Every few seconds the page is asked for again and its <main> exchanged; what the reader opened stays open.
SCRIPT = """
const gone = document.getElementById('gone');
const opened = () => [...document.querySelectorAll('details')].map(each => each.open);
async function look() {
  try {
    const reply = await fetch(location.pathname, {cache: 'no-store'});
    if (!reply.ok) throw new Error(reply.statusText);
    const fresh = new DOMParser().parseFromString(await reply.text(), 'text/html');
    const main = document.querySelector('main'), next = fresh.querySelector('main');
    if (next.innerHTML !== main.innerHTML) {
      const before = opened();
      main.replaceWith(document.adoptNode(next));
      document.querySelectorAll('details').forEach((each, i) => { each.open = before[i] || false; });
      document.title = fresh.title;
    }
    gone.hidden = true;
  } catch { gone.hidden = false; }
  setTimeout(look, EVERY);
}
setTimeout(look, EVERY);
"""
