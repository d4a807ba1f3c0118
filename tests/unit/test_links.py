"""Every link and every page that documents and code name is there, anchors included.

`make docs` checks the links between the site's pages; this looks at those of all other files, and at the way GitHub
makes anchors of headings, which the site is told to follow.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
TRACKED = [
    ROOT / name
    for name in subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
]
PAGES = [path for path in TRACKED if path.suffix == ".md"]
CODE = [path for path in TRACKED if path.suffix in {".py", ".sql", ".toml", ".yaml", ".in"} or path.name == "Makefile"]
SITE = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
FENCE = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"(?<![\w/.-])((?:[a-z_]+/)*[A-Za-z_-]+\.md\b)(?:#([\w-]+))?")


def _anchors(page: Path) -> set[str]:
    """As GitHub makes them."""
    text = FENCE.sub("", page.read_text())
    return {
        re.sub(r"[^\w -]", "", heading.strip().lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    }


def _missing(page: Path, anchor: str) -> bool:
    return not page.is_file() or bool(anchor and page.suffix == ".md" and anchor not in _anchors(page))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?://)([^)\s]+)\)", FENCE.sub("", page.read_text()))
    split = [(link, *link.partition("#")[::2]) for link in links]
    assert [link for link, name, anchor in split if _missing(page.parent / name if name else page, anchor)] == []


def test_every_page_that_code_names_is_there() -> None:
    named = [
        (path, name, anchor)
        for path in CODE
        if path != Path(__file__).resolve()
        for name, anchor in NAMED.findall(path.read_text())
    ]
    assert any(name == "docs/development.md" for _, name, _ in named)
    places = {path.parent: (ROOT, ROOT / "docs", path.parent) for path, _, _ in named}
    assert [
        f"{path.relative_to(ROOT)}: {name}#{anchor}"
        for path, name, anchor in named
        if all(_missing(place / name, anchor) for place in places[path.parent])
    ] == []


def test_every_page_of_the_site_is_in_its_navigation() -> None:
    def files(entry: object) -> set[str]:
        if isinstance(entry, str):
            return {entry}
        inner = entry.values() if isinstance(entry, dict) else entry
        assert not isinstance(inner, str)
        return set().union(*map(files, inner))  # type: ignore[call-overload]

    assert files(SITE["nav"]) == {path.relative_to(DOCS).as_posix() for path in PAGES if path.is_relative_to(DOCS)}


def test_the_site_asks_no_other_host_for_anything() -> None:
    """The theme fetches fonts, diagrams and a shim for searching a disk from elsewhere, unless nothing needs them."""
    assert SITE["theme"]["font"] is False
    assert set(SITE["plugins"]) == {"mkdocstrings"}
    assert not [path for path in (*SITE["extra_css"], *SITE.get("extra_javascript", ())) if "//" in path]
    shown = [page for page in PAGES if page.is_relative_to(DOCS)]
    assert not [page.name for page in shown if re.search(r"```mermaid|!\[[^]]*\]\(https?:", page.read_text())]


def test_the_changelog_has_no_links_since_it_is_shown_in_two_places() -> None:
    assert "](" not in (ROOT / "CHANGELOG.md").read_text()
    assert '"CHANGELOG.md"' in (ROOT / "docs" / "changelog.md").read_text()


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: str(page.relative_to(ROOT))
)
def test_every_file_of_the_code_that_a_page_names_is_there(page: Path) -> None:
    named = re.findall(r"`((?:[\w-]+/)*[\w-]+\.(?:py|sql|proto|toml))`", page.read_text())
    files = [f"/{path.relative_to(ROOT)}" for path in TRACKED]
    assert [name for name in named if not any(file.endswith(f"/{name}") for file in files)] == []
