"""Decodes a pickle into inert values: it imports and calls nothing, and sets no attribute, for any pickle.

A pickle is a program for a stack machine. `pickle.Unpickler` executes it with real classes, even if `find_class` is
restricted: a pickle can then change attributes of those classes, and with them the behaviour of the process. This
decoder has no classes. A name stays a `Global`, and a call becomes a `Record` with its name, arguments and state.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


class PickleError(ValueError):
    """The bytes are no pickle, or one with instructions that plain data does not need."""


@dataclass(frozen=True, slots=True)
class Global:
    """The name of a class or function, such as `torch.Size`. It is never resolved."""

    name: str


@dataclass(slots=True, eq=False)
class Record:
    """A call in a pickle that is never executed: `name(*arguments)`, and the state of the object."""

    name: str
    arguments: tuple[Any, ...]
    state: Any = None


#: The name of the record of an object outside of the pickle, such as a storage of torch; its argument identifies it.
PERSISTENT = "persistent id"
_MARK = object()


def decode(data: bytes) -> Any:
    """Return the value of a pickle: built-in values, `Global` and `Record`. Raises PickleError."""
    try:
        return _run(data)
    except PickleError:
        raise
    except (ValueError, TypeError, IndexError, KeyError, StopIteration) as error:
        raise PickleError(f"it is not a whole pickle ({error})") from error


def _run(data: bytes) -> Any:
    machine = _Machine()
    for instruction, argument, _position in pickletools.genops(data):
        if instruction.name == "STOP":
            return machine.stack.pop()
        execute = _INSTRUCTIONS.get(instruction.name)
        if execute is None:
            raise PickleError(f"it has the instruction {instruction.name}, which plain data does without")
        execute(machine, argument)
    raise PickleError("it is not a whole pickle")


class _Machine:
    """The stack of a pickle, and the values that it refers to again."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def remember(self, place: Any) -> None:
        self._memo[len(self._memo) if place is None else place] = self.stack[-1]

    def recall(self, place: Any) -> None:
        self.stack.append(self._memo[place])

    def marked(self) -> list[Any]:
        """Take the values above the last mark from the stack, and the mark."""
        place = next(place for place in range(len(self.stack) - 1, -1, -1) if self.stack[place] is _MARK)
        items = self.stack[place + 1 :]
        del self.stack[place:]
        return items

    def last(self, count: int) -> list[Any]:
        """Take that many values from the stack."""
        items = self.stack[-count:]
        if len(items) != count:
            raise PickleError("it is not a whole pickle")
        del self.stack[-count:]
        return items

    def extend(self, items: list[Any]) -> None:
        _expect(self.stack[-1], list).extend(items)

    def set_items(self, items: list[Any]) -> None:
        mapping = _expect(self.stack[-1], dict)
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, (str, int, Record)):  # hashing a nested tuple is recursive
                raise PickleError(f"it has a key that is a {type(key).__name__}")
            mapping[key] = value

    def name(self, module: Any, name: Any) -> None:
        self.stack.append(Global(f"{_expect(module, str)}.{_expect(name, str)}"))

    def call(self, called: Any, arguments: Any) -> None:
        name = _expect(called, Global).name
        empty = name == "collections.OrderedDict" and arguments == ()
        self.stack.append({} if empty else Record(name, _expect(arguments, tuple)))

    def refer(self, identity: Any) -> None:
        self.stack.append(Record(PERSISTENT, (identity,)))

    def set_state(self, state: Any) -> None:
        if type(self.stack[-1]) is dict:  # attributes of an OrderedDict, which is a plain one here
            return
        record = _expect(self.stack[-1], Record)
        if record.state is not None:
            raise PickleError(f"it sets the state of a {record.name} twice")
        record.state = state


def _expect(value: Any, kind: type[T]) -> T:
    if type(value) is not kind:
        raise PickleError(f"it has a {type(value).__name__} where a {kind.__name__} belongs")
    return value


_LITERALS = (
    *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"),
    *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8"),
)
#: The instructions that plain data needs, of protocols 2 to 5. An argument is None, a value, or a place in the memo.
_INSTRUCTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    **dict.fromkeys(_LITERALS, lambda machine, value: machine.stack.append(value)),
    "PROTO": lambda _machine, _argument: None,
    "FRAME": lambda _machine, _argument: None,
    "MARK": lambda machine, _: machine.stack.append(_MARK),
    "NONE": lambda machine, _: machine.stack.append(None),
    "NEWTRUE": lambda machine, _: machine.stack.append(True),
    "NEWFALSE": lambda machine, _: machine.stack.append(False),
    "EMPTY_TUPLE": lambda machine, _: machine.stack.append(()),
    "EMPTY_LIST": lambda machine, _: machine.stack.append([]),
    "EMPTY_DICT": lambda machine, _: machine.stack.append({}),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.marked())),
    "TUPLE1": lambda machine, _: machine.stack.append(tuple(machine.last(1))),
    "TUPLE2": lambda machine, _: machine.stack.append(tuple(machine.last(2))),
    "TUPLE3": lambda machine, _: machine.stack.append(tuple(machine.last(3))),
    "APPEND": lambda machine, _: machine.extend(machine.last(1)),
    "APPENDS": lambda machine, _: machine.extend(machine.marked()),
    "SETITEM": lambda machine, _: machine.set_items(machine.last(2)),
    "SETITEMS": lambda machine, _: machine.set_items(machine.marked()),
    "MEMOIZE": lambda machine, _: machine.remember(None),
    "BINPUT": lambda machine, place: machine.remember(place),
    "LONG_BINPUT": lambda machine, place: machine.remember(place),
    "BINGET": lambda machine, place: machine.recall(place),
    "LONG_BINGET": lambda machine, place: machine.recall(place),
    "GLOBAL": lambda machine, names: machine.name(*names.split(" ")),
    "STACK_GLOBAL": lambda machine, _: machine.name(*machine.last(2)),
    "REDUCE": lambda machine, _: machine.call(*machine.last(2)),
    "NEWOBJ": lambda machine, _: machine.call(*machine.last(2)),
    "BINPERSID": lambda machine, _: machine.refer(*machine.last(1)),
    "BUILD": lambda machine, _: machine.set_state(*machine.last(1)),
}
