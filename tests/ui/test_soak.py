"""A short soak: what a question leaves behind is noticed. `make soak` asks thousands."""

from pathlib import Path

import pytest

from tests.ui.soak import ALLOWED, children, soak, soaking
from ui.session.workspace import Workspace


def test_questions_leave_nothing_behind_and_a_leak_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seeded leaks: a person's session that is not closed, and objects that a question leaves."""
    left: list[object] = []
    strangers = children()
    with soaking(tmp_path) as workspace:
        _, warm, *_, last = soak(workspace, 80, visit=20, strangers=strangers)
        assert last.beyond(warm, ALLOWED) == {}
        with monkeypatch.context() as leaky:
            leaky.setattr(Workspace, "leave", lambda workspace, name: left.append(workspace._sessions.pop(name)))
            leaky.setattr("tests.ui.soak.gc.collect", lambda: left.extend([] for _ in range(ALLOWED.objects)))
            *_, leaked = soak(workspace, 20, visit=10, strangers=strangers)
        assert {"objects", "processes"} <= leaked.beyond(last, ALLOWED).keys()
        for session in left:
            if hasattr(session, "close"):
                session.close()
