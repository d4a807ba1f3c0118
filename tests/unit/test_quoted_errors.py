"""Errors and findings that the pages quote are the code's own.

A table of the pages that begins with the column *what it says* quotes messages in its first column, in backticks; `…`
stands for what a message fills in, or leaves out at either end. Every quotation has to come from one text of the code.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "docker" / "README.md")
GAP: Final = "…"


def quotations(text: str) -> Iterator[str]:
    in_table = False
    for line in text.splitlines():
        if not line.startswith("|"):
            in_table = False
        elif line.startswith("| what it says |"):
            in_table = True
        elif in_table:
            yield from re.findall(r"`([^`]+)`", line.split("|")[1])


@cache
def texts_of_the_code() -> tuple[str, ...]:
    """All texts, a gap in place of each value that they are filled with."""
    found: list[str] = []
    for path in (ROOT / "airflow_parallel_apply").rglob("*.py"):
        nodes = tuple(ast.walk(ast.parse(path.read_text())))
        docstrings = {node.value for node in nodes if isinstance(node, ast.Expr)}
        found.extend(text for node in nodes if node not in docstrings and (text := _text(node)))
    return tuple(found)


def _text(node: ast.AST) -> str | None:
    match node:
        case ast.Constant(value=str(text)):
            return re.sub(r"%[a-zA-Z]", GAP, text)
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) or GAP for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return (_text(left) or GAP) + (_text(right) or GAP)
    return None


def is_said(quotation: str) -> bool:
    pieces = [re.escape(piece.strip()) for piece in quotation.split(GAP) if piece.strip()]
    said = re.compile(f".*{GAP}.*".join(pieces))
    return bool(pieces) and any(said.search(text) for text in texts_of_the_code())


@pytest.mark.parametrize(
    "page", [page for page in PAGES if list(quotations(page.read_text()))], ids=lambda page: page.stem
)
def test_what_a_page_says_that_an_error_says_is_what_it_says(page: Path) -> None:
    assert [text for text in quotations(page.read_text()) if not is_said(text)] == []
