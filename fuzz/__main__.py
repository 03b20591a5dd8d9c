"""Runs the fuzzers one after the other, each for some seconds: `python -m fuzz [--seconds N] [--seed N] [NAME …]`."""

import argparse
import time

from fuzz.frames import FRAMES
from fuzz.json_text import JSON
from fuzz.running import Failed, run

FUZZERS = {"frames": FRAMES, "json": JSON}


def main() -> None:
    """Run the fuzzers that are named, or all. Exits with the first input that fails."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *FUZZERS], metavar="NAME", help=", ".join(FUZZERS))
    parser.add_argument("--seconds", type=float, default=60.0, help="for each fuzzer")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**9, help="that of the first input")
    options = parser.parse_args()
    for name in options.names or FUZZERS:
        try:
            count = run(FUZZERS[name], seconds=options.seconds, seed=options.seed)
        except Failed as error:
            raise SystemExit(f"{name}: {error}\n{error.__cause__!r}") from error
        print(f"{name}: {count} inputs from seed {options.seed}, no fault")


main()
