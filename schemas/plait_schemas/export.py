"""`python -m plait_schemas.export [--check]`: the frames of the native protocol as JSON Schema and as TypeScript."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from inspect import cleandoc
from pathlib import Path
from typing import Any, Final, get_args

import msgspec

from plait_schemas import messages
from plait_schemas.codec import encode_json
from plait_schemas.messages import ClientMessage, ServerMessage
from plait_schemas.patch import Op
from plait_schemas.schema import components
from plait_schemas.typescript import TypeScript, alias, comment, literal

__all__ = ["DIALECT", "definitions", "find_differing", "json_text", "main", "protocol_files", "write"]

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
ROOT: Final = Path(__file__).parents[2]
_UNIONS: Final = {"ClientMessage": ClientMessage, "ServerMessage": ServerMessage}
_CONSTANTS: Final = {"SUBPROTOCOL": messages.SUBPROTOCOL, "UNANSWERED": messages.UNANSWERED}
_OP_FORMS: Final = {
    '"add" | "replace"': ("value", "moved?"),
    '"remove"': (),
    '"splice"': ("at", "remove?", "insert?", "own?"),
}
_DOCS: Final = {
    "ClientMessage": "What a client sends.",
    "ServerMessage": "What a server sends.",
    "SUBPROTOCOL": "The subprotocol that a WebSocket is opened with.",
    "UNANSWERED": "How many pushes of one client may be unanswered.",
    "Version": "An epoch, and a version in it.",
}


def protocol_files() -> dict[str, str]:
    """Return the text of each generated file, by its path in the repository."""
    return {"schemas/generated/protocol.json": _json_schema(), "client/js/src/protocol.ts": _typescript()}


def _json_schema() -> str:
    unions, named = definitions(_UNIONS.values())
    for name, union in zip(_UNIONS, unions, strict=True):
        named[name] = {"description": _DOCS[name], **union}
    return json_text({"$schema": DIALECT, "title": messages.SUBPROTOCOL, "$defs": named})


def _typescript() -> str:
    """Return the TypeScript types of the frames; they are readonly, as the client changes no frame in place."""
    typescript = TypeScript([*_UNIONS, "Json"], json="Json", is_readonly=True)
    typescript.name("Version", messages.Version, _DOCS["Version"])
    typescript.declarations[typescript.type(Op)] = _op_forms(typescript)
    head = comment(f"The frames of {messages.SUBPROTOCOL}. Written by `python -m plait_schemas.export`.")
    parts = [head, 'import type { Json } from "./json.js";\n']
    for name, value in _CONSTANTS.items():
        parts.append(f"{comment(_DOCS[name])}export const {name} = {literal(value)};\n")
    for name, union in _UNIONS.items():
        frames = [typescript.type(frame) for frame in get_args(union)]
        parts.append(alias(name, frames, _DOCS[name]))
    return "\n".join([*parts, *typescript.declarations.values()])


def _op_forms(typescript: TypeScript) -> str:
    """Return the type of an operation: a union, as each kind of operation has its own members."""
    types = {field.name: typescript.type(field.type) for field in msgspec.structs.fields(Op)}
    forms = []
    for names, members in _OP_FORMS.items():
        texts = [f"readonly op: {names}", f"readonly path: {types['path']}"]
        texts += [f"readonly {each}: {types[each.rstrip('?')]}" for each in members]
        # These members may be read of any operation.
        texts += [f"readonly {each}?: undefined" for each in ("value", "moved") if not {each, f"{each}?"} & {*members}]
        forms.append("{\n" + "".join(f"      {text};\n" for text in texts) + "    }")
    return alias("Op", forms, Op.__doc__ or "")


def definitions(types: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the JSON Schema of each type, and the `$defs` that these refer to."""
    schemas, named = components(types)
    for schema in named.values():
        if "description" in schema:
            schema["description"] = cleandoc(schema["description"])
    return schemas, named


def json_text(value: object) -> str:
    """Return JSON as it is written to a file."""
    return msgspec.json.format(encode_json(value), indent=2).decode() + "\n"


def write(files: Mapping[str, str], folder: Path) -> None:
    """Write texts to files in a folder, and make the folders that are missing."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")


def find_differing(files: Mapping[str, str], folder: Path) -> list[Path]:
    """Return the files in a folder that are missing or have another text."""
    paths = {folder / name: text.encode() for name, text in files.items()}
    return [path for path, text in paths.items() if not path.is_file() or path.read_bytes() != text]


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the files, or, with `--check`, exit with status 1 if they are not up to date."""
    parser = argparse.ArgumentParser(prog="python -m plait_schemas.export", description=main.__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, and fail if a file differs")
    parser.add_argument("--out", type=Path, default=ROOT, help="the repository (default: %(default)s)")
    options = parser.parse_args(arguments)
    if not options.check:
        write(protocol_files(), options.out)
    elif paths := find_differing(protocol_files(), options.out):
        sys.exit(f"files are out of date; run python -m plait_schemas.export: {', '.join(map(str, paths))}")


if __name__ == "__main__":
    main()
