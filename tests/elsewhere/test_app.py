"""Listing and destroying threads of another node."""

from tests.server.test_app import (
    test_an_app_destroys_a_thread_by_its_class_or_the_name_of_its_kind,
    test_an_app_lists_the_threads_that_are_stored,
)

__all__ = [
    "test_an_app_destroys_a_thread_by_its_class_or_the_name_of_its_kind",
    "test_an_app_lists_the_threads_that_are_stored",
]
