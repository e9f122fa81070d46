import re

from jinja2 import Environment, meta

from prunella.server.report.page import STYLE, TEMPLATE


def test_the_style_fetches_nothing_and_closes_every_brace() -> None:
    assert "url(" not in STYLE and "@import" not in STYLE and STYLE.count("{") == STYLE.count("}")


def test_every_colour_is_defined_for_light_and_dark() -> None:
    light, dark = STYLE.split("prefers-color-scheme: dark")[:2]
    names = set(re.findall(r"(--[a-z]+):", light))
    assert names and names == set(re.findall(r"(--[a-z]+):", dark.split("* { box-sizing")[0]))
    assert set(re.findall(r"var\((--[a-z]+)", STYLE)) - names == {"--tone"}


def test_the_template_escapes_by_itself() -> None:
    assert "|safe" not in TEMPLATE.replace(" ", "")
    assert "verdict" in meta.find_undeclared_variables(Environment(autoescape=True).parse(TEMPLATE))


def test_every_image_has_a_text_for_those_who_do_not_see_it() -> None:
    assert TEMPLATE.count("<img ") == TEMPLATE.count('alt="') > 0
