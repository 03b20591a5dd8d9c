"""How many files of the server an ordinary push, rpc and join go through, counted by `benchmarks.walk`."""

from benchmarks.walk import LIMITS, walk_all


def test_ordinary_operations_go_through_few_files() -> None:
    walks = walk_all()
    too_many = {name: walks[name].server for name, most in LIMITS.items() if len(walks[name].server) > most}
    assert too_many == {}
