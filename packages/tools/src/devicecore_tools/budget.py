"""The budget for one question, as a single object that is passed from caller to callee.

Law: every loop over external input checks the budget. When the budget is exhausted, nothing is guessed: the answer says
what is unknown as a result.
"""

import time
from collections.abc import Callable

from attrs import define, field

from devicecore.domain.allocation import QuestionGivenUpError
from devicecore.domain.documents import Value
from devicecore.domain.json_size import MAX_MEMORY, Reader, memory_of

MAX_SECONDS = 15.0
"""The maximum processor time of a question, in seconds.

The evaluation of expressions does not count, because it happens in other processes.
"""

MAX_EXPRESSION_SECONDS = 10.0
"""The maximum number of seconds for evaluating all expressions in one question.

A scheduler also gives up on a node after 10 seconds.
"""

MAX_REASONS = 500_000
"""The maximum number of reasons for rejecting devices, for all nodes and requests.

Each reason takes about 200 bytes.
"""

MAX_DOCUMENTS = MAX_MEMORY
"""The maximum memory, in bytes, for all documents of a question: as much as for a single document."""

MAX_PUBLISHED = 400_000
"""The maximum number of devices in all ResourceSlices.

Each device takes about 500 bytes in addition to the document.
"""

_ANSWER = Reader(0, value_bytes=100, copies=1)
"""How much memory an API server's answer takes when it is parsed. Each page of a list is an answer.

The text of the answer is not kept. For example, 3,000 pods of 4 KiB take 168 MB.
"""

_CALLS = 64  # `charge` reads the clock once in this many calls: a reading costs more than a step of a search


@define
class Budget:
    """The time, memory and reasons that one question has left. The time runs from the creation of this object.

    Args:
        seconds: how many seconds of processor time the question may take.
        expression_seconds: how many seconds all expressions may take together.
        reasons: how many reasons for rejecting devices may be kept.
        documents: how many bytes of memory all documents may take.
        published: how many devices all ResourceSlices may contain.
        now: a function that returns the processor time used so far, in seconds.
    """

    seconds: float = MAX_SECONDS
    expression_seconds: float = MAX_EXPRESSION_SECONDS
    reasons: int = MAX_REASONS
    documents: int = MAX_DOCUMENTS
    published: int = MAX_PUBLISHED
    now: Callable[[], float] = time.process_time
    skipped: dict[str, None] = field(factory=dict, init=False)
    """What was not examined because the budget was spent. The answer has to say what was skipped."""
    refused: dict[str, None] = field(factory=dict, init=False)
    """Why answers from an API server were not read."""

    _began: float = field(init=False)
    _calls: int = field(default=0, init=False)
    _why: str = field(default="", init=False)

    def __attrs_post_init__(self) -> None:
        self._began = self.now()

    @property
    def used(self) -> float:
        """The processor time that the question has taken so far, in seconds."""
        return self.now() - self._began

    def spent(self, more: float = 0.0) -> str:
        """Return a sentence about the limit that the question has exceeded, or would exceed after `more` seconds.

        If the question may continue, return an empty string.
        """
        if not self._why and self.used + more > self.seconds:
            self._why = f"the question took more than {self.seconds:g} s of processor time"
        return self._why

    def skips(self, what: str) -> bool:
        """Return whether `what` has to be skipped because the question has exceeded a limit.

        Record `what` as skipped in this case.
        """
        if not self.spent():
            return False
        self.skipped[what] = None
        return True

    def ask(self) -> None:
        """Raise an error unless the question may continue.

        Raises:
            QuestionGivenUpError: the question has exceeded a limit.
        """
        if why := self.spent():
            raise QuestionGivenUpError(f"{why}, and was abandoned")

    def keep(self, size: int) -> str:
        """Charge a document that takes this many bytes of memory.

        Return why the document may not be read, or an empty string.
        """
        if size > self.documents:
            return f"it takes some {size // 10**6:,} MB of memory, and {self.documents // 10**6:,} MB are left for it"
        self.documents -= size
        return ""

    def keep_answer(self, content: bytes) -> str:
        """Charge an API server's answer before it is parsed.

        Return why the answer may not be parsed, or an empty string.
        """
        why = self.spent()
        if not why and self.keep(memory_of(content, _ANSWER) - len(content)):
            limit = f"{MAX_DOCUMENTS // 10**6:,} MB"
            why = (
                "with this answer, everything read from the API server for this question takes more than "
                f"{limit} of memory"
            )
        if why:
            self.refused[why] = None
        return why

    def keep_slice(self, item: Value) -> Value:
        """Charge the devices of a ResourceSlice, and return the slice.

        Raises:
            DocumentError: the slices that were read contain too many devices, or `spec.devices` has the wrong type.
        """
        devices = item["spec"]["devices"]
        self.published -= len(devices.sequence())
        if self.published < 0:
            devices.refuse(
                f"the ResourceSlices contain more than {MAX_PUBLISHED:,} devices; give fewer slices, such as those for "
                "one node"
            )
        return item

    def charge(self, reasons: int) -> None:
        """Charge for keeping this many reasons, and check the time occasionally.

        Raises:
            QuestionGivenUpError: the question has exceeded a limit.
        """
        self.reasons -= reasons
        if self.reasons < 0 and not self._why:
            self._why = "the question has too many pairs of a request and a device"
        self._calls += 1
        if self._why or self._calls % _CALLS == 0:
            self.ask()
