"""Names that are nearly another."""

from tests.cases import each_case

from plait.spelling import find_misspelt, find_nearest, format_time, read_time

HOOKS = ("on_state_changed", "on_start", "on_stop", "on_connect", "on_message", "on_close", "validate_state_change")
OPTIONS = ("initial_state", "idle_timeout", "conflict", "retention", "events", "kind")


@each_case(
    ("name", "meant"),
    [
        ("on_state_change", "on_state_changed"),
        ("on_state_changes", "on_state_changed"),
        ("on_statechanged", "on_state_changed"),
        ("onStateChanged", "on_state_changed"),
        ("onStateChange", "on_state_changed"),
        ("onConnect", "on_connect"),
        ("onconnect", "on_connect"),
        ("on_conect", "on_connect"),
        ("on_connected", "on_connect"),
        ("on_mesage", "on_message"),
        ("on_messgae", "on_message"),
        ("on_closed", "on_close"),
        ("on_stopped", "on_stop"),
        ("validateStateChange", "validate_state_change"),
        ("vaildate_state_change", "validate_state_change"),
    ],
)
def test_a_name_with_a_mistake_or_another_ending_is_the_one_that_was_meant(name: str, meant: str) -> None:
    assert find_misspelt(name, HOOKS, inflected=True) == meant


@each_case(
    "name",
    [
        *HOOKS,
        "on_start_game",
        "on_message_sent",
        "on_step",
        "on_star",
        "on_shop",
        "on_lose",
        "on_chose",
        "no_start",
        "on_stage_changed",
        "on_stats_changed",
        "on_state",
        "connect",
        "start",
        "State",
        "on",
        "",
    ],
)
def test_a_name_of_its_own_is_no_mistake(name: str) -> None:
    assert find_misspelt(name, HOOKS, inflected=True) is None


@each_case(
    ("name", "meant"),
    [
        ("initialState", "initial_state"),
        ("inital_state", "initial_state"),
        ("idle_time_out", "idle_timeout"),
        ("retension", "retention"),
        ("conflicts", None),
        ("event", None),
        ("kinds", None),
        ("Events", None),
        ("state", None),
    ],
)
def test_another_ending_is_another_name_unless_it_is_asked_for(name: str, meant: str | None) -> None:
    assert find_misspelt(name, OPTIONS, inflected=False) == meant


def test_the_nearest_name_is_found_if_one_is_near() -> None:
    assert find_nearest("ap", ["app", "api_key", "Room"]) == "app"
    assert find_nearest("xyz", ["app", "Room"]) is None


def test_the_last_time_of_the_year_9999_is_not_rounded() -> None:
    assert str(read_time(253_402_300_799_999_999)) == "9999-12-31 23:59:59.999999+00:00"
    assert format_time(253_402_300_799_999_999) == "9999-12-31 23:59:59"
