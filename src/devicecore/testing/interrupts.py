"""Runs an action at a place where Python may raise an interrupt (Ctrl-C), so that a test can try all places in turn.

Law: the places are those where Python handles signals: after a call, at the start of a function, and when a loop
iterates. So an interrupt may come between a call and the assignment of its result.
"""

import dis
import sys
from collections.abc import Callable
from functools import cache
from types import CodeType, FrameType, ModuleType
from typing import Any

_AFTER = frozenset({"CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD", "RESUME"})


def _raise() -> None:
    raise KeyboardInterrupt


class Interrupts:
    """Calls a function, and interrupts it at the `at`-th place in `modules`, counted from 1.

    Args:
        at: the number of the place at which to interrupt.
        modules: the modules in which places are counted.
        then: what is called at the place; by default, a function that raises KeyboardInterrupt.
    """

    def __init__(self, at: int, *modules: ModuleType, then: Callable[[], object] = _raise) -> None:
        self._at = at
        self.passed: int = 0
        """The number of places that were reached."""
        self._files = {module.__file__ for module in modules}
        self._then = then
        self._last: dict[int, int] = {}

    @property
    def is_reached(self) -> bool:
        """Whether the place was reached. If the place was not reached, the calls so far had fewer places."""
        return self.passed >= self._at

    def interrupt(self, action: Callable[[], object]) -> bool:
        """Call `action` and return whether it was interrupted. An interrupt is not raised again."""
        before = sys.gettrace()
        sys._getframe().f_trace_opcodes = True  # noqa: SLF001 - otherwise Python 3.12.1 reports none the first time
        sys.settrace(self._enter)
        try:
            action()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False

    def _enter(self, frame: FrameType, _event: str, _argument: Any) -> Any:  # noqa: ANN401 - as sys.settrace requires
        if frame.f_code.co_filename not in self._files:
            return None
        frame.f_trace = self._step  # otherwise Python 3.14 reports no opcodes for the first call of a function
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, _argument: Any) -> Any:  # noqa: ANN401 - as above
        if event == "opcode":
            last, self._last[id(frame)] = self._last.get(id(frame)), frame.f_lasti
            if last is not None and _is_place(frame.f_code, last, frame.f_lasti):
                self.passed += 1
                if self.passed == self._at:
                    self._then()
        elif event == "return":
            self._last.pop(id(frame), None)
        return self._step


@cache
def _is_place(code: CodeType, last: int, now: int) -> bool:
    """Return whether a signal may be handled between two instructions.

    Python raises the handler's exception from the first instruction. This class raises it from the second instruction,
    which makes no difference if both instructions are in the same `try`. Other places are left out.
    """
    return dis.opname[code.co_code[last]] in _AFTER and _handler(code, last) == _handler(code, now)


def _handler(code: CodeType, place: int) -> int | None:
    entries: Any = getattr(dis.Bytecode(code), "exception_entries", ())
    return next((entry.target for entry in entries if entry.start <= place < entry.end), None)
