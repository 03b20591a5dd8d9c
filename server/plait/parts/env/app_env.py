"""Reads the variables of an app from memory, and opens those of its threads and users."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from plait.errors import NotFound
from plait.parts.env.secret import Secret, Variable, check_variable, make_secret

__all__ = ["AppEnv"]

_SHOWN: Final = "***"
# Characters that are searched in a thread, so that they do not hold the loop; one of a value costs as much as ten.
_LARGE: Final = 64 * 1024
_NOTHING: Final[Mapping[str, str]] = {}
_NO_SECRET: Final = (
    "variables are encrypted with PLAIT_SECRET, which is not set: set it to the output of "
    '`python -c "import secrets; print(secrets.token_hex(32))"`, and keep it when the server restarts'
)


async def _find_nothing(_: str) -> Mapping[str, Variable]:
    return {}


class AppEnv:
    """The variables that a thread finds after its own and those of its user."""

    def __init__(self, variables: Mapping[str, str | Secret] | None = None, secrets: Sequence[str] = ()) -> None:
        found = {} if variables is None else variables
        if not isinstance(found, Mapping):
            raise TypeError(f"env must be a dict of names and values, not {type(found).__name__}")
        for name in found:
            check_variable(name)
        self._variables = {name: make_secret(value) for name, value in found.items()}
        self._secrets = secrets
        # Returns the variables of a user.
        self.read_user: Callable[[str], Awaitable[Mapping[str, Variable]]] = _find_nothing

    def seal(self, name: str, value: str | Secret) -> bytes:
        """Encrypt a value. Raises TypeError, ValueError, and RuntimeError without a secret or `cryptography`."""
        data: bytes = self._sealer.seal(name, make_secret(value))
        return data

    def open(self, name: str, found: Variable | None, others: Mapping[str, str] = _NOTHING) -> Secret:
        """Return the value of a variable: as found, or else from the app, or else from `others`. Raises NotFound."""
        if found is not None:
            secret: Secret = self._sealer.open(name, found.data)
            return secret
        if (own := self._variables.get(name)) is not None:
            return own
        if name not in others:
            raise NotFound(f"the variable {name} is not set: not in the thread, nor for its user, nor in the app")
        return Secret(others[name])

    def has(self, name: str) -> bool:
        """Whether the app has a variable."""
        return name in self._variables

    def seal_others(self, others: Mapping[str, str]) -> dict[str, Variable]:
        """Encrypt the given variables that the app does not have."""
        return {
            name: Variable("secret", self.seal(name, value))
            for name, value in others.items()
            if name not in self._variables
        }

    async def redact(
        self,
        text: str,
        found: Mapping[str, Variable],
        others: Mapping[str, str] = _NOTHING,
        *,
        most: int | None = None,
    ) -> str:
        """Replace the values in a text that may not be shown: those of the app, of found variables, and of others.

        A value is also found in its form within JSON; a value of white space alone is not. With `most`, the result
        covers only that many characters of the text; a value that begins in them becomes asterisks.
        """
        if not isinstance(text, str):
            raise TypeError(f"redact takes a str, not {type(text).__name__}")
        secrets = [self.open(name, each) for name, each in found.items() if each.type == "secret"]
        own = {**{name: Secret(value) for name, value in others.items()}, **self._variables}
        secrets += [secret for name, secret in own.items() if name not in found]
        values = {value for secret in secrets if (value := secret.reveal()).strip()}
        values |= {json.dumps(value, ensure_ascii=is_ascii)[1:-1] for value in values for is_ascii in (True, False)}
        size, longest = sum(map(len, values)), max(map(len, values), default=0)
        text, end = (text, len(text)) if most is None else (text[: most + longest], min(most, len(text)))
        if len(text) + 10 * size < _LARGE:
            return _replace_all(text, values, end)
        return await asyncio.to_thread(_replace_all, text, values, end)

    def close(self) -> None:
        """Do nothing: the variables are those of the app, which may be started again."""

    # Inside

    @cached_property
    def _sealer(self) -> Any:
        if not self._secrets:
            raise RuntimeError(_NO_SECRET)
        try:
            from plait.parts.env.sealer import Sealer  # noqa: PLC0415
        except ModuleNotFoundError:
            raise RuntimeError("variables are encrypted with cryptography: pip install 'plait[env]'") from None
        return Sealer(self._secrets)


def _replace_all(text: str, values: Collection[str], most: int) -> str:
    """Replace values in the first `most` characters; one may contain another one, or overlap it."""
    pieces, end = list[str](), 0
    for start, after in sorted(_find_all(text, values)):
        if start >= most:
            break
        if not pieces or start >= end:
            pieces += [text[end:start], _SHOWN]
        end = max(end, after)
    return "".join([*pieces, text[end:most]])


def _find_all(text: str, values: Collection[str]) -> Iterator[tuple[int, int]]:
    """Yield where values begin and end, in one pass over the text; of those with the same end, only the longest.

    The algorithm is that of Aho and Corasick: a node stands for the text matched so far, the beginning of a value.
    """
    # For each node: the next nodes, by letters; the longest other node that its end matches; the length of the longest
    # value at its end.
    after: list[dict[str, int]] = [{}]
    others, lengths = [0], [0]
    for value in values:
        node = 0
        for letter in value:
            if (node := after[node].setdefault(letter, len(after))) == len(after):
                after.append({})
                others.append(0)
                lengths.append(0)
        lengths[node] = len(value)
    nodes = [*after[0].values()]
    for node in nodes:
        for letter, follower in after[node].items():
            nodes.append(follower)
            other = others[node]
            while other and letter not in after[other]:
                other = others[other]
            others[follower] = other = after[other].get(letter, 0)
            lengths[follower] = lengths[follower] or lengths[other]
    node = 0
    for end, letter in enumerate(text, 1):
        while node and letter not in after[node]:
            node = others[node]
        node = after[node].get(letter, 0)
        if lengths[node]:
            yield end - lengths[node], end
