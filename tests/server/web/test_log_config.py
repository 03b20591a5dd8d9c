"""Log lines as JSON."""

import json
import logging
import sys
from typing import Any

from plait.web.log_config import JsonFormatter


def write(message: str, *args: object, worker: int | None = None, **fields: Any) -> dict[str, Any]:
    """Return the line of a record as what it says, after checking that it is one line."""
    record = logging.getLogger("shop").makeRecord("shop", logging.INFO, __file__, 1, message, args, None)
    vars(record).update(fields)
    line = JsonFormatter(worker=worker).format(record)
    assert line.splitlines() == [line]
    found: dict[str, Any] = json.loads(line)
    assert found.pop("time").endswith("+00:00")
    return found


def test_a_line_has_the_level_the_logger_and_the_message() -> None:
    assert write("paid\n%s", 7) == {"level": "info", "logger": "shop", "message": "paid\n7"}


def test_the_fields_of_extra_are_members() -> None:
    found = write("paid", order=7, plait_thread="room/one", plait_connection=None, lines=[{"a": 1}])
    assert (found["order"], found["plait_thread"], found["lines"]) == (7, "room/one", [{"a": 1}])
    assert "plait_connection" not in found


def test_what_plait_and_uvicorn_add_for_lines_of_text_is_no_member() -> None:
    assert write("paid", context=" [room/one]", color_message="\x1b[1mpaid\x1b[0m").keys() == {
        "level",
        "logger",
        "message",
    }


def test_a_field_cannot_replace_what_each_line_has() -> None:
    assert write("paid", level="fake", worker=2)["level"] == "info"
    assert write("paid", worker=2) == {"level": "info", "logger": "shop", "message": "paid", "worker": 2}


def test_what_is_no_json_is_written_as_its_text() -> None:
    circle: dict[str, Any] = {}
    circle["self"] = circle
    found = write("half %s", "\ud800", kind=int, circle=circle, text="\ud800", nan=float("nan"))
    assert found["message"] == "half \\ud800"
    assert found["kind"] == "<class 'int'>"
    assert found["circle"] == "{'self': {...}}"
    assert found["text"] == "\\ud800"
    assert found["nan"] is None


def test_an_exception_is_a_member_with_its_traceback() -> None:
    try:
        raise ValueError("half \ud800")
    except ValueError:
        found = write("failed", exc_info=sys.exc_info(), stack_info="Stack:\n here")
    assert found["exception"].startswith("Traceback")
    assert found["exception"].endswith("ValueError: half \\ud800")
    assert found["stack"] == "Stack:\n here"


class Silent:
    """Has no text."""

    def __str__(self) -> str:
        raise LookupError("none")


def test_a_line_is_written_even_if_a_name_or_a_text_in_it_cannot_be() -> None:
    fields = {"half \ud800": 1, "silent": Silent(), "order": 7}
    found = write("paid", **fields)
    assert found["half \\ud800"] == 1
    assert found["silent"] == "<Silent: its text raises LookupError>"
    assert (found["message"], found["order"]) == ("paid", 7)


def test_a_line_is_written_even_if_its_arguments_do_not_fit() -> None:
    assert write("paid %d", "seven")["message"] == "paid %d (its arguments raise TypeError)"
    assert write("paid %s", Silent())["message"] == "paid %s (its arguments raise LookupError)"
