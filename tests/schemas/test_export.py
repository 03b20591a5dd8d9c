"""The frames as JSON Schema and as TypeScript."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from plait_schemas.export import DIALECT, find_differing, json_text, main, protocol_files, write
from plait_schemas.messages import SUBPROTOCOL, UNANSWERED, ClientMessage, ServerMessage
from plait_schemas.patch import Op

ROOT = Path(__file__).parents[2]
JSON_SCHEMA = "schemas/generated/protocol.json"
TYPESCRIPT = "client/js/src/protocol.ts"
UNIONS = {"ClientMessage": ClientMessage, "ServerMessage": ServerMessage}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "plait_schemas.export", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def referred(value: Any) -> set[str]:
    """Return everything that a schema refers to."""
    if isinstance(value, dict):
        found = set().union(*map(referred, value.values()))
        return found | {value["$ref"]} if "$ref" in value else found
    return set().union(*map(referred, value)) if isinstance(value, list) else set()


def test_what_is_on_disk_is_what_the_frames_are() -> None:
    assert find_differing(protocol_files(), ROOT) == []


def test_the_files_are_the_same_in_every_process() -> None:
    program = "from plait_schemas.export import protocol_files; print(*protocol_files().values(), sep='', end='')"
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT / "schemas")},
        )
        assert done.stdout.decode() == "".join(protocol_files().values())


def test_the_json_schema_has_every_frame_and_all_that_it_refers_to() -> None:
    schema = json.loads(protocol_files()[JSON_SCHEMA])
    assert (schema["$schema"], schema["title"]) == (DIALECT, "plait.v1")
    for name, union in UNIONS.items():
        assert [each["$ref"] for each in schema["$defs"][name]["anyOf"]] == [
            f"#/$defs/{frame.__name__}" for frame in get_args(union)
        ]
    assert referred(schema) <= {f"#/$defs/{name}" for name in schema["$defs"]}


def test_the_typescript_has_every_frame_with_its_tag() -> None:
    text = protocol_files()[TYPESCRIPT]
    for union in UNIONS.values():
        for frame in get_args(union):
            config = frame.__struct_config__
            assert f'export interface {frame.__name__} {{\n  readonly {config.tag_field}: "{config.tag}";\n' in text


def test_the_typescript_of_an_operation_has_a_form_for_each_name_and_every_member() -> None:
    declaration = protocol_files()[TYPESCRIPT].partition("export type Op =")[2].partition("\n\n")[0]
    assert re.findall(r"readonly op: (.*);", declaration) == ['"add" | "replace"', '"remove"', '"splice"']
    assert set(re.findall(r"readonly (\w+)", declaration)) == set(Op.__struct_fields__)
    assert "readonly at: number;" in declaration


def test_the_typescript_lets_nothing_of_a_frame_be_changed() -> None:
    text = protocol_files()[TYPESCRIPT]
    lines = [line.strip() for line in text.splitlines() if line.startswith("  ")]
    members = [line for line in lines if not line.startswith(("| ", "}"))]
    assert [line for line in members if not line.startswith("readonly ")] == []
    for member in ("ops: readonly Op[]", "base: Version", "state?: Json", "joined?: { readonly [key: string]: Json }"):
        assert f"  readonly {member};\n" in text
    assert "export type Version = readonly [string, number];\n" in text
    assert "unknown" not in text


def test_the_typescript_has_the_numbers_and_names_that_both_sides_must_agree_on() -> None:
    text = protocol_files()[TYPESCRIPT]
    assert f'export const SUBPROTOCOL = "{SUBPROTOCOL}";\n' in text
    assert f"export const UNANSWERED = {UNANSWERED};\n" in text


def test_a_field_is_optional_where_it_has_a_default() -> None:
    text = protocol_files()[TYPESCRIPT]
    for union in UNIONS.values():
        for frame in get_args(union):
            body = text.partition(f"export interface {frame.__name__} {{")[2].partition("}\n")[0]
            for field in msgspec.structs.fields(frame):
                mark = "" if field.required else "?"
                assert f"  readonly {field.encode_name}{mark}: " in body, (frame, field.name)


def test_texts_end_with_one_line_break_and_have_no_space_at_the_end_of_a_line() -> None:
    for text in protocol_files().values():
        assert text.endswith("\n")
        assert not text.endswith("\n\n")
        assert [line for line in text.splitlines() if line != line.rstrip()] == []
    assert json_text({"b": [1], "a": "é"}) == '{\n  "b": [\n    1\n  ],\n  "a": "é"\n}\n'


# The command


def test_check_ends_with_0_when_nothing_differs() -> None:
    done = run("--check")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_check_names_the_file_that_differs_and_writes_nothing(tmp_path: Path) -> None:
    assert run("--out", str(tmp_path)).returncode == 0
    assert run("--out", str(tmp_path), "--check").returncode == 0
    (tmp_path / TYPESCRIPT).write_text("// edited\n")
    done = run("--out", str(tmp_path), "--check")
    assert done.returncode == 1
    assert str(tmp_path / TYPESCRIPT) in done.stderr
    assert "protocol.json" not in done.stderr
    assert (tmp_path / TYPESCRIPT).read_text() == "// edited\n"


def test_check_names_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"protocol\.json.*protocol\.ts"):
        main(["--check", "--out", str(tmp_path / "none")])
    assert list(tmp_path.iterdir()) == []


def test_write_makes_folders_and_bytes_that_do_not_depend_on_the_system(tmp_path: Path) -> None:
    write({"a.ts": "é\n", "inner/b.ts": ""}, tmp_path / "deep" / "folder")
    assert (tmp_path / "deep" / "folder" / "a.ts").read_bytes() == "é\n".encode()
    assert (tmp_path / "deep" / "folder" / "inner" / "b.ts").read_bytes() == b""
