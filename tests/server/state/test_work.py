"""What messages cost."""

from plait.state.work import count_extra_messages


def test_a_large_message_is_charged_by_its_bytes_and_by_what_is_in_it() -> None:
    assert count_extra_messages(b"[]" * 4_000) == 0
    assert count_extra_messages(b"x" * 64 * 1024) == 4
    assert count_extra_messages(b"[]" * 32 * 1024) == 4 + 8 * 32 * 1024 / (16 * 1024)
