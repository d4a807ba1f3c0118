"""The text that `parallel_apply.send_ddl` sends: settings of its session, in the words of `ddl_capture.sql`, and behind
them the statement as its sender wrote it.
"""

from __future__ import annotations

import re
from typing import Final

PATH: Final = re.compile(r"""SET LOCAL search_path = (?P<path>(?:"(?:[^"]|"")+"(?:, )?)+); """)
"""The search path that its names mean tables of."""
SETTINGS: Final = re.compile(rf"""(?:{PATH.pattern})?(?:SET LOCAL \w+ = '(?:[^']|'')*'; )*""")
"""All settings, none at all included."""
_SHOWN_LETTERS: Final = 200


def written(text: str) -> str:
    """The statement as its sender wrote it."""
    found = SETTINGS.match(text)
    return text[found.end() if found else 0 :]


def shown_ddl(text: str) -> str:
    """The beginning of what its sender wrote, on one line, for people."""
    return " ".join(written(text).split())[:_SHOWN_LETTERS]
