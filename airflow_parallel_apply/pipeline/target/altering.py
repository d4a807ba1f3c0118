"""DDL text by which rows that are there may read otherwise, though none of them is sent.

A source takes for told what it was sent of that, so a target that does not run the text has to stop at it.
"""

from __future__ import annotations

import re
from typing import Final

_GAP: Final = r"(?:\s|--[^\n]*\n|/\*(?:[^*]|\*(?!/))*\*/)+"
_NAME: Final = r"""(?:(?:U&)?"(?:[^"]|"")+"|[^\s"',;()]+)"""
_ALTERS: Final = re.compile(
    rf"\bALTER{_GAP}(COLUMN{_GAP})?(?!(TABLE|COLUMN)\b){_NAME}{_GAP}(SET{_GAP}DATA{_GAP})?TYPE\b"
    rf"|\bSET{_GAP}EXPRESSION\b|\bALTER{_GAP}TYPE\b[^;]*\b(RENAME{_GAP}VALUE|(ADD|DROP|ALTER){_GAP}ATTRIBUTE)\b",
    re.IGNORECASE,
)
_BUILDS: Final = re.compile(rf"\bEXECUTE\b(?!{_GAP}(FUNCTION|PROCEDURE|ON)\b)", re.IGNORECASE)
_WORDS: Final = tuple(re.compile(rf"\b{word}\b", re.IGNORECASE) for word in ("ALTER", "TYPE"))


def gives_other_values(text: str) -> bool:
    """True unless it shows that it does not. Of a block that builds its statements as it runs the words tell enough."""
    builds_them = _BUILDS.search(text) is not None and all(word.search(text) for word in _WORDS)
    return builds_them or _ALTERS.search(text) is not None
