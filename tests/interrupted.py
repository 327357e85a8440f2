# SPDX-License-Identifier: BSD-3-Clause
"""Raises exceptions where a signal handler could raise them, at chosen steps that Python takes in given files."""

import dis
import sys

#: After these the interpreter runs the handlers of signals that have arrived.
_LOOKS = {
    number for name, number in dis.opmap.items() if name.startswith(("CALL", "PRECALL", "RESUME", "JUMP_BACKWARD"))
}
#: The first step behind a call that raised, after which handlers do not run. An exception raised here would leave the
#: other one as the one that is being handled, for good, because Python has not stored yet what it restores.
_RAISED = dis.opmap["PUSH_EXC_INFO"]


#: A step that is never reached.
NEVER = 10**9


class Interrupt(BaseException):
    """Like a KeyboardInterrupt."""


class Interrupted:
    """A context in which step `first` raises `error`, and others after that, more and more steps apart.

    Attributes
    ----------
    steps : int
        How many steps were taken.
    raised : list of str
        The places where `error` was raised.
    """

    def __init__(self, first, files, *, error=Interrupt, apart=50):
        self._next, self._apart = first, apart
        self._files, self.error = tuple(files), error
        self.steps = 0
        self.raised = []

    def __enter__(self):
        self._before = sys.gettrace()
        sys._getframe().f_trace_opcodes = True  # CPython 3.12 traces them from the next settrace on
        sys.settrace(self._call)
        return self

    def __exit__(self, kind, error, _):
        sys.settrace(self._before)
        assert kind or sys.exc_info() == (None, None, None)

    def again(self, function, *arguments):
        """Call a function again as long as it is interrupted, and return its result."""
        for _ in range(1000):
            try:
                return function(*arguments)
            except self.error as e:
                if type(e) is not self.error:
                    raise
                self.go_on()
        raise AssertionError("it comes to no end")

    def go_on(self):
        """Count on: Python drops a trace function that raises."""
        sys.settrace(self._call)

    def _call(self, frame, event, _):
        code = frame.f_code
        if not code.co_filename.endswith(self._files) or code.co_name == "__del__":
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        opcodes = code.co_code
        last = opcodes[max(frame.f_lasti, 0)]

        def step(frame, event, _):
            nonlocal last
            if event != "opcode":
                return step
            before, last = last, opcodes[frame.f_lasti]
            if before in _LOOKS and last != _RAISED:
                self.steps += 1
                if self.steps == self._next:
                    self._apart += 25  # or what is done again from its beginning never comes to its end
                    self._next += self._apart
                    self.raised.append(f"{code.co_filename}:{frame.f_lineno}")
                    raise self.error
            return step

        return step
