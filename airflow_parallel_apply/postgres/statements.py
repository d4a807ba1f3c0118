"""SQL, read from the `.sql` files of the room that runs it, which are in its folder `sql`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Final, LiteralString

_MARK: Final = "-- name: "


@cache
def statements(package: str, file: str) -> Mapping[str, LiteralString]:
    """Those of `sql/<file>.sql` in a package, by name. Each stands behind a line `-- name: what_it_does`; a file
    without such a line is one statement, by the file's name.
    """
    text: LiteralString = files(package).joinpath("sql", f"{file}.sql").read_text(encoding="utf-8")
    if _MARK not in text:
        return {file: text}
    found: dict[str, LiteralString] = {}
    for part in text.split(_MARK)[1:]:
        name, _, body = part.partition("\n")
        found[name.strip()] = body.strip().removesuffix(";")
    return found


@cache
def folder(package: str, name: str) -> Mapping[str, LiteralString]:
    """The texts of all `.sql` files in a folder of a package, by file name."""
    found = files(package).joinpath(name).iterdir()
    return {each.name.removesuffix(".sql"): each.read_text("utf-8") for each in found if each.name.endswith(".sql")}
