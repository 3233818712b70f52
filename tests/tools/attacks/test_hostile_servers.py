"""The hostile suite on running PostgreSQL and MariaDB, past the guard: what is left are the server's own locks."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.tools.attacks.assault import DEADLINE_S, cases, filled, fingerprint
from tests.tools.attacks.attacked import Attacked, attacked
from tests.tools.databases.server.servers import Server
from tools.databases.sqlalchemy_database import open_url
from tools.result import Limits


@pytest.fixture(scope="module")
def target(request: pytest.FixtureRequest) -> Iterator[Attacked]:
    with attacked(request.getfixturevalue(request.param)) as found:
        yield found


@pytest.mark.parametrize(
    ("target", "user"),
    [("postgresql", "reader"), ("postgresql", "superuser"), ("mariadb", "reader")],
    indirect=["target"],
)
def test_the_server_alone_does_no_harm(target: Attacked, user: str) -> None:
    """Guards against a second lock that works because the guard stands before it. MariaDB's superusers have the guard alone."""
    before, files = target.state(), fingerprint(target.folder)
    with closing(open_url(target.url(user))) as database:
        for case in cases(target.dialect):
            outcome = database._run(filled(case.sql, target.folder), Limits(deadline_s=DEADLINE_S))
            assert "TOP-SECRET" not in str(outcome), case.sql
        assert fingerprint(target.folder) == files
    assert target.state() == before


def test_a_view_is_open_to_who_may_only_select(mariadb: Server) -> None:
    """MariaDB tells such a role nothing of how a view is made, and reflection asks for that: no table could be opened."""
    with attacked(mariadb) as found, closing(open_url(found.url("reader"))) as database:
        adults = database.schema().table("adults")
        assert adults is not None
        assert [(column.name, column.type, column.samples) for column in adults.columns] == [
            ("id", "INT(11)", ("1",)), ("name", "VARCHAR(30)", ("ann",)), ("age", "INT(11)", ("40",)),
        ]  # fmt: skip
