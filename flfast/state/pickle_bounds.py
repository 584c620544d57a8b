"""Refuses pickles of strangers that no unpickler would ever come to the end of. Torch-free.

The hash of a tuple takes 2^n steps, if n tuples hold the next one twice.
"""

import pickletools
from typing import IO, Any, cast

_CHANGES = {"APPEND", "APPENDS", "ADDITEMS", "SETITEM", "SETITEMS", "BUILD"}


class _Value:
    """Size and depth of what an opcode makes, with all that it holds; a text has its length."""

    def __init__(self, size: int) -> None:
        self.size, self.depth, self.is_copied = size, 0, False


def check_pickle(stream: IO[bytes], *, most_steps: int | None = None) -> None:
    """Read the opcodes of a pickle, up to its end.

    Raises:
        ValueError: if it is damaged, has too many, nests values over 100 deep, or has copies of
            over 100 times its bytes.
    """
    stack, marks, memo, copied = list[_Value](), list[int](), dict[int, _Value](), 0
    start, opcodes = stream.tell(), cast(Any, pickletools.genops(stream))
    for step, (code, argument, place) in enumerate(opcodes, 1):
        bad, most = step == most_steps, 100 * (place - start + 1)
        if code.name == "MARK":
            marks.append(len(stack))
        elif "PUT" in code.name or code.name == "MEMOIZE":
            number = len(memo) if argument is None else argument
            memo[number] = stack[-1]
            bad |= number >= step  # the unpickler in C makes a list as long as that
        elif "GET" in code.name:
            stack.append(memo[argument])
            stack[-1].is_copied, copied = True, copied + stack[-1].size
            bad |= copied > most
        elif before := code.stack_before:
            is_mark = pickletools.markobject in before
            first = marks.pop() - before.index(pickletools.markobject) if is_mark else -len(before)
            taken, stack[first:] = stack[first:], []
            changed = taken.pop(0) if code.name in _CHANGES else _Value(1)
            # A call may make twice the bytes, such as those of a text in hexadecimal digits.
            changed.size += (1 + (code.name == "REDUCE")) * sum(value.size for value in taken)
            changed.depth = max([changed.depth, *(value.depth + 1 for value in taken)])
            stack.append(changed)
            # Copies grow with what is changed. Nobody writes DUP, and POP only for circles.
            bad |= changed.is_copied or changed.depth > 100 or changed.size > most
            bad |= len(code.stack_after) != (code.name != "STOP")
        elif code.stack_after:
            stack.append(_Value(len(argument) if isinstance(argument, (str, bytes)) else 1))
            bad |= code.name == "GLOBAL" and argument.endswith(" bytearray")  # of 10^12 zeros
        if bad:
            raise ValueError("is no pickle of numbers and tensors, and might be read for ever")
