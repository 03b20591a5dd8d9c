"""URLs of stores in MariaDB and MySQL."""

from pathlib import Path
from typing import Any

import pytest
from tests.cases import each_case
from tests.certificates import make_certificate
from tests.mariadb import Mariadb, new_prefix
from tests.server.store.contract import ROOM
from tests.server.store.writing import until

from plait.errors import StoreError
from plait.settings import Settings
from plait.store.mysql.store import MysqlStore
from plait.store.mysql.url import MysqlUrl
from plait.store.urls import open_share, open_store

SECRET = "pass-word"
URL = f"mysql://ada:{SECRET}@127.0.0.1:1/game"


def test_a_url_has_hosts_a_user_a_database_and_options() -> None:
    found = MysqlUrl.parse("mariadb://a%40b:p%3Aw@db1,db2:3307,[::1]:3308,[::1]/game?prefix=g_")
    assert found.hosts == [("db1", 3306), ("db2", 3307), ("::1", 3308), ("::1", 3306)]
    assert (found.user, found.password, found.database, found.prefix) == ("a@b", "p:w", "game", "g_")
    assert (found.socket, found.has_tls, found.authorities) == (None, False, None)
    assert str(found) == "mariadb://a%40b:***@db1,db2:3307,[::1]:3308,[::1]/game"
    other = MysqlUrl.parse("mysql://ada@/game?socket=/run/s&ssl_ca=/etc/ca.pem")
    assert (other.socket, other.has_tls, other.authorities) == ("/run/s", True, "/etc/ca.pem")
    assert (other.prefix, other.hosts) == ("plait_", [("127.0.0.1", 3306)])


@each_case(
    ("url", "why"),
    [
        (f"{URL}?shema=x", "unknown option 'shema'"),
        (f"{URL}?prefix=a&prefix=b", "given twice"),
        (f"{URL}?prefix=x-", "prefix must match"),
        (f"{URL}?ssl=yes", "ssl must be off or on, not 'yes'"),
        (f"{URL}?password={SECRET}", "put the password before the @"),
        (f"mysql://ada:{SECRET}@host:x/game", "'x' is not a port"),
        (f"mysql://ada:{SECRET}@host", "a user and a database are needed"),
        ("mysql://host/game", "a user and a database are needed"),
    ],
)
def test_what_is_wrong_is_named_and_the_password_is_not(url: str, why: str) -> None:
    for read in (MysqlUrl.parse, open_store):
        with pytest.raises(ValueError, match=why) as caught:
            read(url)
        assert SECRET not in str(caught.value)


async def test_no_error_nor_setting_shows_the_password(mariadb: Mariadb, caplog: pytest.LogCaptureFixture) -> None:
    for url in (URL, f"mysql://ada:{SECRET}@127.0.0.1:{mariadb.port}/plait"):
        store = open_store(url)
        assert isinstance(store, MysqlStore)
        with pytest.raises(StoreError, match=r"cannot open the store mysql://ada:\*\*\*@127.0.0.1") as caught:
            await store.__aenter__()
        shown = f"{caught.value!r}{caught.value.detail}{store.durability}{store!r}{store.url!r}{caplog.text}"
        assert SECRET not in shown
        assert SECRET not in repr(Settings(store=url))


def test_workers_do_not_share_it() -> None:
    with pytest.raises(StoreError, match="one process") as caught:
        open_share(URL, 0, 2)
    assert SECRET not in str(caught.value)


async def test_a_store_is_reached_by_a_unix_socket(mariadb: Mariadb) -> None:
    mariadb.execute("CREATE USER IF NOT EXISTS plait@localhost", "GRANT ALL ON plait.* TO plait@localhost")
    url = new_prefix("mysql://plait@/plait", f"&socket={mariadb.socket}")
    async with open_store(url) as store:
        assert await store.claim(ROOM) > 0


async def test_a_server_without_tls_is_refused_if_the_url_asks_for_it(mariadb: Mariadb, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot open the store"):
        await open_store(new_prefix(mariadb.url, "&ssl=on")).__aenter__()


async def test_a_connection_with_tls_is_made_again_when_its_certificate_can_be_read_again(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    tls = (f"--ssl-cert={certificate}", f"--ssl-key={key}", "--require-secure-transport=ON")
    with Mariadb(tmp_path / "own", *tls) as server:
        for options, why in (
            ("", "Access denied"),
            ("&ssl=on", "self-signed certificate"),
            ("&ssl_ca=/x", "ssl_ca=/x"),
        ):
            with pytest.raises(StoreError, match=why):
                await open_store(new_prefix(server.url, options)).__aenter__()
        authority = tmp_path / "authority.pem"
        certificate.rename(authority)
        async with open_store(new_prefix(server.url, f"&ssl_ca={authority}")) as store:
            assert isinstance(store, MysqlStore)
            await store.claim(ROOM)
            authority.rename(certificate)
            server.crash()
            server.start()
            with pytest.raises(StoreError, match=r"authority.pem cannot be read: .* No such file"):
                await store.claim(ROOM)
            certificate.rename(authority)
            engine: Any = store._server
            await until(lambda: engine._writer._dbs._connecting is None)
            assert await store.claim(ROOM) > 0
