"""The table of engines."""

import sys
import tomllib
from pathlib import Path

import pytest

from plait.cluster.cell_directory import find_directory
from plait.errors import StoreError
from plait.store.engines import ENGINES, Engine, find_engine
from plait.store.urls import open_share, open_store

ROOT = Path(__file__).parents[3]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
each_engine = pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.schemes[0])


@each_engine
def test_a_row_opens_its_store_and_its_directory(engine: Engine) -> None:
    store = open_store(engine.example)
    assert isinstance(getattr(store, "url", None), engine.url) or not engine.is_shared
    assert store.is_shared is engine.is_shared
    assert (find_directory(store) is not None) is engine.is_shared


@each_engine
def test_every_scheme_of_a_row_names_its_engine_alone(engine: Engine) -> None:
    for scheme in engine.schemes:
        assert find_engine(f"{scheme.upper()}://x") is engine
        assert [each for each in ENGINES if scheme in each.schemes] == [engine]
    assert find_engine(engine.schemes[0]) is None


@each_engine
def test_the_extra_of_a_row_installs_its_driver(engine: Engine) -> None:
    assert bool(engine.driver) is bool(engine.extra)
    assert not engine.extra or any(each.startswith(engine.driver) for each in EXTRAS[engine.extra])


@pytest.mark.parametrize("engine", [each for each in ENGINES if each.driver], ids=lambda engine: engine.schemes[0])
def test_without_its_driver_an_engine_says_what_to_install(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, engine.store.partition(":")[0], None)
    with pytest.raises(ValueError, match=rf"needs {engine.driver}: pip install 'plait\[{engine.extra}\]'"):
        open_store(engine.example)


@each_engine
def test_an_unknown_url_is_told_the_url_of_each_engine(engine: Engine) -> None:
    with pytest.raises(ValueError, match="unknown store URL") as caught:
        open_store("other://host/x")
    assert engine.example in str(caught.value)


@each_engine
def test_the_docs_have_every_scheme(engine: Engine) -> None:
    operations, serving = ((ROOT / "docs" / f"{page}.md").read_text() for page in ("operations", "serving"))
    assert f"{engine.schemes[0]}://" in serving
    assert [scheme for scheme in engine.schemes if f"{scheme}://" not in operations] == []


@each_engine
def test_workers_do_not_share_the_store_of_an_engine(engine: Engine) -> None:
    with pytest.raises(StoreError, match="is served by one process"):
        open_share(engine.example, 0, 2)
