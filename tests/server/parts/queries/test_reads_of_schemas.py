"""What a query notes of tables is enough in random schemas: after each write, its result is that of a fresh run."""

import random
from collections.abc import Callable
from typing import Any

from tests.schedules import play_seeds
from tests.server.parts.queries.readers import Following
from tests.server.rooms import open_house
from tests.server.session.guests import joined, until

from plait import Sql, Thread, query

FAILED = "failed"
# Names of tables, as they are declared.
NAMES = ["Kase", '"two words"', "[order]", "straße", "plain", "`Group`"]
ACTIONS = ["CASCADE", "SET NULL", "SET DEFAULT", "RESTRICT", "NO ACTION"]


class Schema:
    """Random tables, each with the columns `k`, `a`, `p` and `g`, and what depends on them."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.tables = chance.sample(NAMES, 4)
        self.views = ["seen", "Joined"]
        self.statements = [self._make_table(number, name) for number, name in enumerate(self.tables)]
        self.statements += [f"INSERT INTO {name} (k, a) VALUES (1, 1), (2, 2), (3, 1)" for name in self.tables]
        first, second = chance.sample(self.tables, 2)
        self.statements += [
            f"CREATE VIEW seen AS SELECT k, a FROM {first} WHERE a > 0",
            f"CREATE VIEW joined AS SELECT one.k, two.a, two.g FROM {first} AS one JOIN {second} AS two USING (k)",
            f"CREATE TRIGGER instead INSTEAD OF INSERT ON seen BEGIN {self._make_step('new.a')}; END",
            f"CREATE VIRTUAL TABLE search USING fts5(a, content='{unquote(first)}', content_rowid='k')",
            "CREATE VIRTUAL TABLE own USING fts5(body)",
            "CREATE INDEX of_a ON " + f"{second} (a)",
        ]
        for number in range(3):
            when, what = (
                chance.choice(["BEFORE", "AFTER"]),
                chance.choice(["INSERT", "UPDATE", "DELETE", "UPDATE OF a"]),
            )
            value = "old.a" if what == "DELETE" else "new.a"
            on, step = chance.choice(self.tables), self._make_step(value)
            self.statements.append(f"CREATE TRIGGER t{number} {when} {what} ON {on} BEGIN {step}; END")

    def reads(self) -> list[str]:
        """Return statements that read each table and view, by their names in any case."""
        found = []
        for name in (*self.tables, *self.views):
            found += [
                f"SELECT * FROM {name} ORDER BY k, a",
                f"SELECT count(*) AS n FROM main.{name.upper() if name.isascii() else name}",
                f"SELECT 1 AS one WHERE EXISTS (SELECT 1 FROM {name.lower()} WHERE a > 2)",
                f"SELECT sum(g) AS s FROM (SELECT * FROM {name})",
            ]
        first, second = self.chance.sample(self.tables, 2)
        found += [
            f"SELECT max(a) AS m FROM (SELECT a FROM {first} UNION ALL SELECT k FROM {second})",
            f"WITH both AS (SELECT k FROM {first} INTERSECT SELECT k FROM {second}) SELECT count(*) AS n FROM both",
            "SELECT rowid AS r, a FROM search WHERE search MATCH '1' ORDER BY 1",
            "SELECT body FROM own WHERE own MATCH 'tea' ORDER BY rowid",
            "SELECT count(*) AS n FROM own",
            "SELECT name FROM sqlite_schema ORDER BY name",
        ]
        return found

    def write(self) -> str:
        """Return a statement that may write, and may fail."""
        chance, name, k, a = self.chance, self.chance.choice(self.tables), *self.chance.choices(range(1, 6), k=2)
        makers: list[Callable[[], str]] = [
            lambda: f"INSERT INTO {name} (k, a) VALUES ({k}, {a})",
            lambda: f"INSERT OR REPLACE INTO {name} (k, a) VALUES ({k}, {a})",
            lambda: f"INSERT INTO {name} (k, a) VALUES ({k}, {a}) ON CONFLICT DO UPDATE SET a = a + {a}",
            lambda: f"UPDATE {name} SET a = {a} WHERE k <= {k}",
            lambda: f"UPDATE OR REPLACE {name} SET k = {k} WHERE k = {a}",
            lambda: f"UPDATE {name} SET rowid = rowid + 10 WHERE k = {k}",
            lambda: f"UPDATE {name} SET p = {k}",
            lambda: f"UPDATE {name} SET a = f.a FROM (SELECT a FROM {chance.choice(self.tables)} LIMIT 1) AS f",
            lambda: f"DELETE FROM {name} WHERE k = {k}",
            lambda: f"DELETE FROM {name}",
            lambda: f"INSERT INTO seen (k, a) VALUES ({k}, {a})",
            lambda: "INSERT INTO search(search) VALUES ('rebuild')",
            lambda: "INSERT INTO own VALUES ('tea')",
            lambda: "DELETE FROM own WHERE rowid = (SELECT max(rowid) FROM own)",
            lambda: f"WITH new(k) AS (SELECT k + {k} FROM {name}) INSERT OR IGNORE INTO {name} (k) SELECT k FROM new",
            lambda: f"ALTER TABLE {name} ADD COLUMN more{chance.randrange(100)} DEFAULT {a}",
            lambda: f"ALTER TABLE {name} RENAME TO moved",
            lambda: f"ALTER TABLE moved RENAME TO {name}",
            lambda: f"DROP TRIGGER t{chance.randrange(3)}",
            lambda: "DROP VIEW joined",
            lambda: f"CREATE VIEW joined AS SELECT k, a, g FROM {name}",
            lambda: f"DROP TABLE {name}",
            lambda: self._make_table(0, name),
        ]
        weights = [5] * 15 + [1] * (len(makers) - 15)
        return chance.choices(makers, weights)[0]()

    def _make_table(self, number: int, name: str) -> str:
        chance = self.chance
        parent = f" REFERENCES {chance.choice(self.tables[:number])}" if number else ""
        if parent:
            parent += f" ON DELETE {chance.choice(ACTIONS)} ON UPDATE {chance.choice(ACTIONS)}"
        conflict = chance.choice(["", " ON CONFLICT REPLACE", " ON CONFLICT IGNORE"])
        kind = chance.choice(["", " STORED", " VIRTUAL"])
        unique = chance.choice(["", f", UNIQUE (a){conflict}"])
        return (
            f"CREATE TABLE {name} (k INTEGER PRIMARY KEY{conflict}, a, p{parent}, g AS (k + a){kind}{unique})"
            + chance.choice(["", " WITHOUT ROWID"])
        )

    def _make_step(self, value: str) -> str:
        target = self.chance.choice(self.tables)
        return self.chance.choice(
            [
                f"UPDATE {target} SET a = a + 1 WHERE k = {value}",
                f"INSERT OR IGNORE INTO {target} (k, a) VALUES ({value} + 7, 0)",
                f"DELETE FROM {target} WHERE k = {value} + 1",
            ]
        )


def unquote(name: str) -> str:
    return name.strip('"[]`')


def run(thread: Any, statement: str) -> Any:
    """Return the rows of a statement, or FAILED."""
    try:
        return thread.sql(statement).value
    except Exception:
        return FAILED


@play_seeds(8)
async def test_each_result_is_that_of_a_fresh_run(seed: int) -> None:
    schema = Schema(random.Random(seed))

    class Tables(Thread[Any]):
        sql = Sql(migrations=[])

        @query
        def read(self, statement: str) -> Any:
            return self.sql(statement).value

    async with open_house(Tables) as house:
        actor = await house.actor(Tables)
        thread: Any = actor.thread
        # Some do not fit: a table without rowids cannot be the content of a search.
        made = [run(thread, each) != FAILED for each in schema.statements]
        assert sum(made) > len(made) / 2
        guest = await joined(actor, "a")
        following = {each: Following(guest, "read", each) for each in schema.reads()}
        passes: Any = next(each for each in actor.host.services.values() if hasattr(each, "_waiting"))
        changed = 0
        for number in range(60):
            write = schema.write() if number else "SELECT 1 AS one"
            changed += run(thread, write) != FAILED
            await until(lambda: actor.is_idle and not passes._waiting)
            frames = guest.frames
            for statement, each in following.items():
                for frame in frames:
                    each.take(frame)
                fresh = run(thread, statement)
                assert (each.rows if each.error is None else FAILED) == fresh, (write, statement)
        assert changed > 20
