"""Makes table names out of file and sheet names: plain identifiers, each used once."""

import re


class TableNames:
    """Remembers the names given out in one database."""

    def __init__(self) -> None:
        self._taken: dict[str, str] = {}

    @property
    def in_order(self) -> tuple[str, ...]:
        """The names, first given first."""
        return tuple(self._taken.values())

    def take(self, wanted: str, otherwise: str = "") -> str:
        """`wanted` as an identifier that needs no quotes; if taken, `otherwise`; if that is taken too, with a number."""
        names = [plain(wanted), *([plain(otherwise)] if otherwise else [])]
        name = next((name for name in names if name.lower() not in self._taken), None)
        number = 2
        while name is None:
            numbered = f"{names[-1]}_{number}"
            name = numbered if numbered.lower() not in self._taken else None
            number += 1
        self._taken[name.lower()] = name
        return name

    def keep(self, wanted: str, otherwise: str) -> str:
        """`wanted` as it stands, the name that a database gave its table; `otherwise` only if it is taken."""
        if wanted.lower() in self._taken:
            return self.take(otherwise)
        self._taken[wanted.lower()] = wanted
        return wanted


def plain(text: str) -> str:
    """Letters, digits and underscores, not beginning with a digit, never empty."""
    name = re.sub(r"\W+", "_", text.strip()).strip("_") or "table"
    return f"t_{name}" if name[0].isdigit() else name


def distinct(names: list[str]) -> list[str]:
    """Column names with blanks named by position and repetitions (case ignored) numbered."""
    taken: set[str] = set()
    result = []
    for position, name in enumerate(names, 1):
        base = name.strip() or f"column{position}"
        number, candidate = 2, base
        while candidate.lower() in taken:
            candidate, number = f"{base}_{number}", number + 1
        taken.add(candidate.lower())
        result.append(candidate)
    return result
