"""Imports point down, never up, never in a circle, and none is hidden."""

import ast
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter

from benchmarks.chains import MODULES, Import, find_imports, is_in, longest_chain, longest_chain_in

# From the bottom to the top: what is in a row may import itself and the rows below it.
LAYERS = (
    ("plait_schemas",),
    (
        "plait.author_code",
        "plait.backoff",
        "plait.clock",
        "plait.errors",
        "plait.limits",
        "plait.settings",
        "plait.spelling",
    ),
    ("plait.instruments",),
    ("plait.store",),
    ("plait.cluster",),
    ("plait.code",),
    ("plait.state",),
    ("plait.actor",),
    ("plait.parts",),
    ("plait.kv",),
    ("plait.agents",),
    ("plait.node",),
    ("plait.session",),
    ("plait.web",),
    ("plait.app",),
    ("plait.cli",),
    ("plait",),
    # Those for other projects' agents use plait as its users do.
    ("plait.adapters",),
    ("plait.testing",),
)

# Who may import what from outside, beside msgspec and the standard library, which are for all.
OUTSIDE = {
    "PIL": ("plait.parts.files.images",),
    "ag_ui": ("plait.adapters.ag_ui",),
    "aiosqlite": ("plait.store.sqlite.store",),
    "anyio": ("plait.agents.execution.mcp_transports", "plait.testing.clock"),
    "asyncmy": ("plait.store.mysql",),
    "asyncpg": ("plait.store.postgres",),
    "cronsim": ("plait.parts.schedule.rules",),
    "cryptography": ("plait.parts.env.sealer",),
    "cyclopts": ("plait.cli",),
    "deno": ("plait.code.javascript",),
    "httptools": ("plait.web",),
    "httpx2": ("plait.agents.execution.mcp_transports",),
    "langchain_core": ("plait.adapters.langgraph",),
    "langgraph": ("plait.adapters.langgraph",),
    "mcp": ("plait.agents.execution.mcp_session", "plait.agents.execution.mcp_transports", "plait.web.http.mcp"),
    "mcp_types": ("plait.agents.execution.mcp_session", "plait.agents.execution.mcp_transports", "plait.web.http.mcp"),
    "nats": ("plait.store.nats",),
    "opentelemetry": ("plait.instruments.otel",),
    # The one place where the server and the Python client meet.
    "plait_client": ("plait.testing",),
    "prometheus_client": ("plait.instruments.prometheus",),
    "pydantic": ("plait.adapters.ag_ui", "plait.agents.execution.mcp_transports"),
    "pydantic_ai": ("plait.adapters.pydantic_ai", "plait.agents.execution"),
    "pydantic_core": ("plait.adapters.pydantic_ai",),
    "pydantic_monty": ("plait.code.python",),
    "redis": ("plait.store.redis", "plait.cli.importing"),
    "regex": ("plait.parts.files.search",),
    "starlette": ("plait.web", "plait.app", "plait.cli", "plait.adapters.ag_ui", "plait.testing"),
    "uvicorn": ("plait.web", "plait.app", "plait.cli"),
    "watchfiles": ("plait.cli",),
    "websockets": ("plait.web",),
}
# Hooks are given Starlette's Request and return its Response, and these hand them on.
STARLETTE_TYPES = (
    "plait.agents",
    "plait.actor",
    "plait.session",
)

# Imports in a function: of what is not always installed.
LAZY = {
    ("plait.instruments.prometheus", "prometheus_client"),
    ("plait.agents.execution.mcp_servers", "plait.agents.execution.mcp_session"),
    ("plait.agents.execution.asking", "plait.agents.execution.model_call"),
    ("plait.cli.importing", "redis"),
    ("plait.cli.watching", "watchfiles"),
    ("plait.code.javascript", "deno"),
    ("plait.code.python", "pydantic_monty"),
    ("plait.parts.env.app_env", "plait.parts.env.sealer"),
    ("plait.parts.files.images", "PIL"),
    ("plait.parts.files.search", "regex"),
    ("plait.web.http.routes", "plait.web.http.mcp"),
}

PACKAGES = sorted({each for row in LAYERS for each in row if "." in each} | {"plait_schemas"})
FOLDERS = sorted({module.rpartition(".")[0] for module in MODULES} - {"", "plait"})
# How many files the longest chain of imports has, in a package and in the server. The numbers may only fall.
LONGEST_IN_PACKAGE = 7
LONGEST = 26

# What sessions and the web may import of the threads: an actor, and what goes in and out of it.
OUTER = ("plait.session", "plait.web")
ACTOR = (
    "plait.actor.actor",
    "plait.actor.connection",
    "plait.actor.endpoints",
    "plait.actor.kind",
    "plait.actor.logs",
    "plait.actor.outcome",
    "plait.actor.per_actor",
    "plait.actor.rpc",
    "plait.actor.transport",
)
# What is inside of an actor, by the names of classes.
HIDDEN_CLASSES = {
    "ChangeLog",
    "Connections",
    "Hooks",
    "Mailbox",
    "Merger",
    "Pipeline",
    "PushLog",
    "Sockets",
    "StateHistory",
    "Thread",
    "TurnRunner",
}
# What they may use of an actor, and of each of its five parts.
SHOWN = {"begin", "instruments", "is_ending", "key", "kind", "limits", "explain"}
FACES = {
    "state": {
        "after",
        "clients",
        "compare",
        "current",
        "durable",
        "epoch",
        "find_view",
        "is_stored",
        "leave_client",
        "merge",
        "push",
        "put",
        "replace",
        "store_thread",
        "views",
        "views_vary",
        "wait_until_durable",
    },
    "log": {"json", "missed", "page", "since", "start"},
    "sockets": {
        "__len__",
        "broadcast",
        "change_frame",
        "connection_id",
        "find_refusal",
        "groups",
        "has_presence",
        "is_readonly",
        "join",
        "leave",
        "make_connection",
        "presence",
        "receive",
        "review",
        "find_by_id",
        "single",
    },
    "turns": {"call", "end_message", "find_excess", "request"},
    "usage": {"keep_awake"},
}
# The parts that they give to the state, as it is what reads older changes for a push.
HANDED_ON = {"log."}


@cache
def all_imports() -> list[Import]:
    """Return what all modules import. Parsing them takes seconds, which no other worker than the test's spends."""
    return [each for module in MODULES for each in find_imports(module)]


def find_row(module: str) -> int:
    """Return the row of a module in the table."""
    return next(row for row, packages in enumerate(LAYERS) if any(is_in(module, each) for each in packages))


def is_ours(name: str) -> bool:
    return name.partition(".")[0] in ("plait", "plait_schemas")


def test_every_module_has_a_place_in_the_table() -> None:
    assert [module for module in MODULES if not any(is_in(module, each) for row in LAYERS for each in row)] == []


def test_everything_in_the_table_is_there() -> None:
    missing = [each for row in LAYERS for each in row if not any(is_in(module, each) for module in MODULES)]
    assert missing == []


def test_imports_point_down() -> None:
    breaches = [
        f"{each.importer}, line {each.line}: {each.imported}"
        for each in all_imports()
        if is_ours(each.imported) and find_row(each.imported) > find_row(each.importer)
    ]
    assert breaches == []


def test_imports_go_round_in_no_circle() -> None:
    graph = {module: {each.imported for each in all_imports() if each.importer == module} for module in MODULES}
    TopologicalSorter(graph).prepare()


def test_the_rooms_of_a_package_go_round_in_no_circle() -> None:
    circles = [f"{package}: {circle}" for package in FOLDERS if (circle := find_circle(package))]
    assert circles == []


def find_circle(package: str) -> str | None:
    """Return the rooms of a package that import each other, if any: its folders, and its files beside them."""
    graph: dict[str, set[str]] = {}
    for each in all_imports():
        if is_in(each.importer, package) and is_in(each.imported, package):
            importer, imported = (find_room(module, package) for module in (each.importer, each.imported))
            if importer != imported:
                graph.setdefault(importer, set()).add(imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return " <- ".join(error.args[1])
    return None


def find_room(module: str, package: str) -> str:
    return module.removeprefix(f"{package}.").partition(".")[0]


def test_the_schemas_know_nothing_but_msgspec() -> None:
    allowed = {"msgspec", "plait_schemas", *sys.stdlib_module_names}
    breaches = [
        each
        for each in all_imports()
        if is_in(each.importer, "plait_schemas") and each.imported.partition(".")[0] not in allowed
    ]
    assert breaches == []


def test_no_chain_of_imports_in_a_package_is_too_long() -> None:
    chains = [longest_chain_in(package) for package in PACKAGES]
    assert [" -> ".join(chain) for chain in chains if len(chain) > LONGEST_IN_PACKAGE] == []


def test_no_chain_of_imports_in_the_server_is_too_long() -> None:
    chain = longest_chain()
    assert len(chain) <= LONGEST, " -> ".join(chain)


def test_no_import_is_hidden_in_a_function() -> None:
    breaches = [each for each in all_imports() if each.is_lazy and (each.importer, each.imported) not in LAZY]
    assert breaches == []


def test_no_import_is_for_types_only() -> None:
    assert [each for each in all_imports() if each.is_for_types] == []


def test_no_import_is_relative() -> None:
    assert [each for each in all_imports() if each.imported == "a relative import"] == []


def test_packages_from_outside_are_imported_only_where_they_may_be() -> None:
    breaches = []
    for each in all_imports():
        package = each.imported.partition(".")[0]
        if is_ours(each.imported) or package == "msgspec" or package in sys.stdlib_module_names:
            continue
        may_be = any(is_in(each.importer, allowed) for allowed in OUTSIDE.get(package, ()))
        is_type = each.imported in ("starlette.requests", "starlette.responses") and any(
            is_in(each.importer, package) for package in STARLETTE_TYPES
        )
        if not (may_be or is_type):
            breaches.append(each)
    assert breaches == []


OUTER_MODULES = [module for module in MODULES if any(is_in(module, each) for each in OUTER)]


def test_sessions_and_the_web_import_only_the_actor_and_what_goes_in_and_out_of_it() -> None:
    names = [
        f"{module}: {alias.name}"
        for module in OUTER_MODULES
        for node in ast.walk(ast.parse(MODULES[module].read_text()))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(("plait.actor", "plait.state"))
        for alias in node.names
        if alias.name in HIDDEN_CLASSES
    ]
    modules = [
        f"{each.importer}: {each.imported}"
        for each in all_imports()
        if each.importer in OUTER_MODULES and is_in(each.imported, "plait.actor") and each.imported not in ACTOR
    ]
    assert names + modules == []


def test_sessions_and_the_web_use_only_the_faces_of_an_actor_and_its_parts() -> None:
    allowed = SHOWN | HANDED_ON | FACES.keys() | {f"{part}.{name}" for part, names in FACES.items() for name in names}
    assert [f"{each}: {used}" for each in OUTER_MODULES for used in sorted(find_uses(each) - allowed)] == []


def find_uses(module: str) -> set[str]:
    """Return what a module uses of actors, as the names of attributes, and of their parts, as `part.attribute`.

    A part that is handed on, or kept under another name, is found as `part.`.
    """
    tree = ast.parse(MODULES[module].read_text())
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    used = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="actor") | ast.Attribute(attr="_actor" | "actor"), attr=name):
                used.add(name)
                if name in FACES:
                    match parents[node]:
                        case ast.Attribute(attr=inner):
                            used.add(f"{name}.{inner}")
                        case ast.Assign(targets=[ast.Name(id=other)]) if other == name:
                            used |= {f"{name}.{each}" for each in find_attributes(tree, name)}
                        case _:
                            used.add(f"{name}.")
    return used


def find_attributes(tree: ast.AST, name: str) -> set[str]:
    """Return the attributes that are used of a local variable."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name
    }


def test_everything_that_the_faces_name_is_used_and_is_there() -> None:
    used = {each for module in OUTER_MODULES for each in find_uses(module)}
    assert used >= SHOWN | HANDED_ON | {f"{part}.{name}" for part, names in FACES.items() for name in names}
    classes = {
        node.name
        for path in MODULES.values()
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    }
    assert classes >= HIDDEN_CLASSES
    assert {each.imported for each in all_imports() if each.importer in OUTER_MODULES} >= set(ACTOR)


def test_every_exception_is_needed() -> None:
    made = {(each.importer, each.imported) for each in all_imports()}
    assert made >= LAZY
    for module in STARLETTE_TYPES:
        assert any(is_in(importer, module) and name.startswith("starlette.") for importer, name in made), module
    for package, importers in OUTSIDE.items():
        assert any(
            name.partition(".")[0] == package and any(is_in(importer, each) for each in importers)
            for importer, name in made
        ), package
