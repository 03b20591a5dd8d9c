"""A copy of a state that can be changed in place: the changes are recorded as operations."""

from collections.abc import Callable, Iterable, Iterator, MutableMapping, MutableSequence
from typing import Any, Final, SupportsIndex

import msgspec

from plait_schemas.codec import decode_json, to_builtins
from plait_schemas.diff import diff, replace
from plait_schemas.elements import Keys
from plait_schemas.encoding import EncodeError, encode_given
from plait_schemas.members import attributes
from plait_schemas.models import dump
from plait_schemas.patch import Op, escape, splice, splice_text

__all__ = ["Draft", "DraftList", "DraftObject", "draft", "recorded"]

_CONTAINERS: Final = (dict, list, tuple)


def draft(document: Any, keys: Keys | None = None) -> "Draft":
    """Return a draft of a tree of dicts and lists, or of Structs, dataclasses and tuples that stand for such a tree.

    Sets are read as frozensets, and changed by assigning another one. `keys` says which strings are texts, which are
    changed by their differences, and which members identify the elements of lists.

    Raises TypeError when the document is a scalar, which cannot be changed in place.
    """
    if not _is_container(document):
        raise TypeError(f"only an object or an array can be edited in place, not {type(document).__name__}")
    root = _wrap(document, None, "")
    root._log.keys = keys
    return root


class _Log(list[Op]):
    """The operations of a draft, until it is closed."""

    is_closed = False
    keys: Keys | None = None

    def append(self, op: Op) -> None:
        if self.is_closed:
            raise RuntimeError("the draft belongs to a block that has ended, and can no longer be changed")
        super().append(op)


class Draft:
    """An object or array of a draft. Its container is copied when it is first changed."""

    __slots__ = ("_children", "_container", "_is_owned", "_key", "_log", "_parent")

    _children: dict[Any, "Draft"]
    _container: Any
    _is_owned: bool
    _key: str | int
    _log: _Log
    _parent: "Draft | None"

    def __init__(self, container: Any, parent: "Draft | None", key: str | int) -> None:
        set_ = object.__setattr__
        set_(self, "_container", container)
        set_(self, "_parent", parent)
        set_(self, "_key", key)
        set_(self, "_is_owned", False)
        set_(self, "_children", {})
        set_(self, "_log", parent._log if parent is not None else _Log())

    def __len__(self) -> int:
        return len(self._container)

    def __eq__(self, other: object) -> bool:
        return bool(_plain(self) == _plain(other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<draft of {self._container!r}>"

    # Inside

    def _child(self, key: Any) -> Any:
        value = self._container[key]
        if not _is_container(value):
            return _immutable(value)
        if key not in self._children:
            self._children[key] = _wrap(value, self, key)
        return self._children[key]

    def _path(self, key: str | int) -> str:
        path = f"/{escape(str(key))}"
        node: Draft = self
        while (parent := node._parent) is not None:
            if parent._children.get(node._key) is not node:
                raise RuntimeError("this part of the draft has been removed from it")
            path = f"/{escape(str(node._key))}{path}"
            node = parent
        return path

    def _own(self) -> Any:
        """Return the container, or a copy of it, that may be changed."""
        if not self._is_owned:
            object.__setattr__(self, "_container", self._container.copy())
            object.__setattr__(self, "_is_owned", True)
            if self._parent is not None:
                self._parent._own()[self._key] = self._container
        return self._container

    def splice(self, key: Any, at: int, remove: int = 0, insert: str = "") -> None:
        """Change the string at a key or an index: at the character `at`, remove `remove` characters and insert others.

        Raises PatchError when that does not fit the string.
        """
        if isinstance(self._container, list):
            key = range(len(self._container))[key]
        elif key not in self._container:
            raise KeyError(key)
        op = splice(self._path(key), at, remove, insert)
        text = splice_text(op, self._container[key])
        if remove or insert:
            self._log.append(op)
            self._own()[key] = text

    def _put(self, key: str | int, value: Any) -> None:
        """Replace a value; of a text, only the differences."""
        for op in replace(self._container[key], value, self._path(key), self._log.keys):
            self._log.append(op)
        self._own()[key] = value
        self._children.pop(key, None)

    def _record(self, op: Any, key: str | int, value: Any = msgspec.UNSET, *, moved: bool = False) -> None:
        self._log.append(Op(op, self._path(key), value, moved or msgspec.UNSET))

    def _convert(self, key: str | int, value: Any) -> Any:
        """Return a value that is assigned to a key, converted to JSON's types. Raises EncodeError with the path."""
        try:
            return decode_json(encode_given(value, _encode))
        except EncodeError as error:
            raise type(error)(error.message, self._path(key) + error.path) from None


class DraftObject(Draft, MutableMapping[str, Any]):
    """A JSON object. Its members are items and, unless a method has the same name, attributes."""

    __slots__ = ()

    def __getitem__(self, key: str) -> Any:
        return self._child(key)

    def __setitem__(self, key: str, value: Any) -> None:
        if isinstance(value, Draft) and value is self._children.get(key):
            return  # `draft.list += …` assigns the list to itself after it has been extended.
        value = self._convert(key, value)
        exists = key in self._container
        before = self._container[key] if exists else msgspec.UNSET
        if type(value) is type(before) and value == before and not _is_container(value):
            return
        if exists:
            self._put(key, value)
        else:
            self._record("add", key, value)
            self._own()[key] = value

    def __delitem__(self, key: str) -> None:
        if key not in self._container:
            raise KeyError(key)
        self._record("remove", key)
        del self._own()[key]
        self._children.pop(key, None)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._container))

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Return a member; one that is missing is set to `default` first."""
        if key not in self._container:
            self[key] = default
        return self[key]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self._container:
            raise AttributeError(f"there is no {name!r} in this object")
        return self._child(name)

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        if name not in self._container:
            raise AttributeError(f"there is no {name!r} in this object")
        del self[name]


class _Method:
    """A method of an object that has a member of the same name; for any use but a call, that member was meant."""

    __slots__ = ("_method", "_name")

    def __init__(self, name: str, method: Callable[..., Any]) -> None:
        self._name = name
        self._method = method

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._method(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(self._explain())

    def _refuse(self, *_: Any) -> Any:
        raise TypeError(self._explain())

    __getitem__ = __setitem__ = __delitem__ = __iter__ = __len__ = __contains__ = __iadd__ = _refuse

    def _explain(self) -> str:
        return f"`{self._name}` is a method of dicts: write draft[{self._name!r}] for the member of this name"


class _MethodOfDict:
    """Finds a method of an object, as a `_Method` if there is a member of the same name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._function = getattr(DraftObject, name)

    def __get__(self, instance: DraftObject | None, owner: type) -> Any:
        method = self._function.__get__(instance, owner)
        if instance is None or self._name not in instance._container:
            return method
        return _Method(self._name, method)


for _name in ("clear", "get", "items", "keys", "pop", "popitem", "setdefault", "splice", "update", "values"):
    setattr(DraftObject, _name, _MethodOfDict(_name))


class DraftList(Draft, MutableSequence[Any]):
    """A JSON array."""

    __slots__ = ("_out",)

    # The element that was removed last, and how many operations there were then.
    _out: tuple[Draft | None, int]

    def __init__(self, container: Any, parent: Draft | None, key: str | int) -> None:
        super().__init__(container, parent, key)
        self._out = None, 0

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._child(each) for each in range(*index.indices(len(self)))]
        return self._child(self._index(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, slice):
            changed = self._container.copy()
            changed[index] = [self._convert(index.indices(len(self))[0], each) for each in value]
            self._become(changed)
            return
        place = self._index(index)
        if isinstance(value, Draft) and value is self._children.get(place):
            return
        self._put(place, self._convert(place, value))

    def __delitem__(self, index: Any) -> None:
        if isinstance(index, slice):
            changed = self._container.copy()
            del changed[index]
            self._become(changed)
            return
        place = self._index(index)
        self._record("remove", place)
        del self._own()[place]
        self._out = self._children.pop(place, None), len(self._log)
        self._renumber(place, -1)

    def insert(self, index: SupportsIndex, value: Any) -> None:
        """Insert a value before an index."""
        place = slice(index, None).indices(len(self))[0]
        moved = value is self._out[0] and isinstance(value, Draft) and len(self._log) == self._out[1]
        value = self._convert(place, value)
        self._record("add", place, value, moved=moved)
        self._own().insert(place, value)
        self._renumber(place, 1)

    def reverse(self) -> None:
        """Reverse in place, as list.reverse does."""
        self._become(self._container[::-1])

    def sort(self, *, key: Any = None, reverse: bool = False) -> None:
        """Sort in place, as list.sort does."""
        order = sorted(self, key=key, reverse=reverse)
        self._become([each._container if isinstance(each, Draft) else each for each in order])

    # Inside

    def _index(self, index: SupportsIndex) -> int:
        place = index.__index__()
        if not -len(self) <= place < len(self):
            raise IndexError("there is no such element")
        return place % len(self)

    def _become(self, elements: list[Any]) -> None:
        """Change the list to other elements, by the operations for the differences."""
        prefix = self._path(0).removesuffix("/0")
        before, after = self._container, elements
        if any(attributes(each) is not None for each in before):
            # Structs that were read have become dicts, so an unchanged element may look different.
            before, after = _plain(before), _plain(after)
        for op in diff(before, after, self._log.keys, path=prefix):
            self._log.append(op if op.value is msgspec.UNSET else Op(op.op, op.path, _plain(op.value), op.moved))
        self._own()[:] = elements
        self._children.clear()

    def _renumber(self, start: int, by: int) -> None:
        moved: Iterable[Draft] = sorted(
            (child for key, child in self._children.items() if key >= start), key=lambda child: -by * int(child._key)
        )
        for child in moved:
            del self._children[child._key]
            object.__setattr__(child, "_key", int(child._key) + by)
            self._children[child._key] = child


def _wrap(container: Any, parent: Draft | None, key: str | int) -> Draft:
    if isinstance(container, msgspec.Struct):
        container = _members(container)
    elif (names := attributes(container)) is not None:
        container = {name: getattr(container, attribute) for name, attribute in names.items()}
    if isinstance(container, dict):
        return DraftObject(container, parent, key)
    return DraftList(container if isinstance(container, list) else list(container), parent, key)


def _members(struct: msgspec.Struct) -> Any:
    """Return the members of a Struct by their names in JSON."""
    config = struct.__struct_config__
    if config.array_like or config.omit_defaults:
        return to_builtins(struct)
    members = {} if config.tag is None else {config.tag_field: config.tag}
    for name, attribute in (attributes(struct) or {}).items():
        if (value := getattr(struct, attribute)) is not msgspec.UNSET:
            members[name] = value
    return members


def _plain(value: Any) -> Any:
    """Return a value converted to JSON's types, as a separate copy. Raises TypeError if it is not JSON."""
    return decode_json(_encode(value))


def _is_container(value: Any) -> bool:
    return isinstance(value, _CONTAINERS) or attributes(value) is not None


def _immutable(value: Any) -> Any:
    """Return a value in a form that cannot be changed in place, as no operation would record such a change."""
    match value:
        case set():
            return frozenset(value)
        case bytearray():
            return bytes(value)
        case _:
            return value


def _unwrap(value: Any) -> Any:
    if isinstance(value, Draft):
        return value._container
    return dump(value, is_whole=True)


_encode = msgspec.json.Encoder(enc_hook=_unwrap).encode


def recorded(draft: Draft) -> list[Op]:
    """Close a draft and return its operations; a later change raises RuntimeError."""
    draft._log.is_closed = True
    return draft._log
