"""Passwords, and how often they may be guessed."""

import hmac
from collections.abc import Sequence

from starlette.exceptions import HTTPException

from ui.doors.rates import Rate

WRONG_PER_NAME, WRONG_IN_ALL = 5, 60  # a minute


class Logins:
    """Whether a name and a password belong together, asked as Gradio asks it: on the event loop, so one after another.

    After five wrong passwords for a name in a minute, or sixty for any names, no further one is looked at in that minute.
    """

    def __init__(self, users: Sequence[tuple[str, str]]) -> None:
        self._users = dict(users)
        self._wrong, self._wrong_in_all = Rate(WRONG_PER_NAME), Rate(WRONG_IN_ALL)

    def __call__(self, name: str, password: str) -> bool:
        """Raises HTTPException 429 where too many were wrong."""
        if self._wrong.is_full(name) or self._wrong_in_all.is_full(""):
            raise HTTPException(429, "too many wrong passwords; try again in a minute", {"retry-after": "60"})
        expected = self._users.get(name, "")
        right = hmac.compare_digest(password.encode(), expected.encode()) and name in self._users
        if not right:
            self._wrong.count(name)
            self._wrong_in_all.count("")
        return right
