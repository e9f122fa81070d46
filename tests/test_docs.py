"""What README and docs name exists: files, modules, commands with their options, settings, and the ends of links."""

import importlib
import re
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer
import yaml

from prunella.benchmarks.registry import CLAIMS
from prunella.deploy.cli.main import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {
    str(page.relative_to(ROOT)): page for page in [ROOT / "README.md", *ROOT.glob("docker/*.md"), *DOCS.glob("*.md")]
}
TEXTS = {name: page.read_text(encoding="utf-8").replace("\\\n", " ") for name, page in PAGES.items()}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
FOLDERS = {"tests", "docs", "docker", *PROJECT["setuptools"]["package-dir"].values()}
MADE = {"deploy/kubernetes/keys"}  # by a command of the page
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
CALL = re.compile(r"(?:^|`|bin/|-- |do |then |else )prunella ([a-z][a-z-]*)([^`\n#;|]*)", re.MULTILINE)
every_page = pytest.mark.parametrize("page", PAGES)


def code(text: str) -> list[str]:
    """What stands between backticks, and the lines of blocks."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"^```[^\n]*\n.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    return inline + [line for block in blocks for line in block.splitlines()]


def anchors(page: Path) -> set[str]:
    """The names of a page's headings in links."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_page
def test_files_that_are_named_are_there(page: str) -> None:
    words = {word for line in code(TEXTS[page]) for word in re.findall(r"(?<![\w./:{-])[\w.-]+/[\w./*-]*", line)}
    named = {word.rstrip("./") for word in words if word.split("/")[0] in FOLDERS} - MADE
    assert not {word for word in named if not [*ROOT.glob(word), *(ROOT / "tests").glob(word)]}


@every_page
def test_modules_that_are_named_are_there(page: str) -> None:
    for name, options in re.findall(r"python -m ((?:prunella|tests)\.[\w.]+\w)([^`\n|#;]*)", TEXTS[page]):
        text = Path(find_spec(name).origin).read_text(encoding="utf-8")  # type: ignore[union-attr, arg-type]
        assert "__main__" in text, name
        assert not [option for option in re.findall(r"--[a-z][\w-]*", options) if f'"{option}"' not in text], name
    for name in re.findall(r"`(prunella(?:\.\w+)+)[`(:]", TEXTS[page]):
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute) or find_spec(name), name


@every_page
def test_names_that_code_imports_are_there(page: str) -> None:
    for module, names in re.findall(r"^ *from (prunella[\w.]*) import (.+)$", TEXTS[page], re.MULTILINE):
        found = importlib.import_module(module)
        assert not [name for name in names.split(", ") if not hasattr(found, name)], module


@every_page
def test_commands_have_the_options_that_are_named(page: str) -> None:
    for command, rest in CALL.findall(TEXTS[page]):
        assert command in COMMANDS, command
        options = {option for each in COMMANDS[command].params for option in each.opts}
        assert not set(re.findall(r"(?<!\S)--?[a-z][\w-]*", rest)) - options, f"prunella {command}{rest}"


@every_page
def test_settings_that_are_named_are_settings(page: str) -> None:
    config = PROJECT["flwr"]["app"]["config"]
    keys = {f"{name}.{key}" for name, values in config.items() if isinstance(values, dict) for key in values}
    mistakes = {"round"} if page.endswith("mistakes.md") else set()
    assert set(re.findall(r"-c ([a-z][\w.-]*)=", TEXTS[page])) - keys - config.keys() == mistakes


@every_page
def test_links_end_somewhere(page: str) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", TEXTS[page]):
        path, _, anchor = link.partition("#")
        target = (PAGES[page].parent / path) if path else PAGES[page]
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_readme_counts_right() -> None:
    """The algorithms are counted by ``settings_page``, which rewrites the numbers of this sentence."""
    assert re.search(r"\d+ pruning strategies, \d+ defenses and \d+ attacks", TEXTS["README.md"])
    assert f"{len(CLAIMS)} claims" in TEXTS["README.md"]


def test_the_site_has_every_page() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    named = re.findall(r"'((?:results/)?[\w-]+\.md)'", str(nav))
    pages = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")]
    assert sorted(named) == sorted(pages), "nav in mkdocs.yml names every page once"
