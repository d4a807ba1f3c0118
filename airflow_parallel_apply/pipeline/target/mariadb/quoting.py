"""Names inside statements whose values the driver puts in: it takes `%s` for a value, and `%%` for a percent sign."""

from __future__ import annotations

from collections.abc import Iterable


def quoted(*names: str) -> str:
    """`database`.`table`, or one name."""
    return ".".join("`" + name.replace("`", "``").replace("%", "%%") + "`" for name in names)


def shown(*names: str) -> str:
    """The same for a command that a person runs."""
    return quoted(*names).replace("%%", "%")


def listed(names: Iterable[str]) -> str:
    """Quoted names with commas between them."""
    return ", ".join(quoted(name) for name in names)
