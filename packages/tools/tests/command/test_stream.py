"""Output to a reader that may stall: `Stream`, on real pipes."""

import fcntl
import os
import re
import threading
from collections.abc import Iterator

import pytest
from devicecore_tools.command.stream import MAX_WAITING, Stream

PATIENCE = 60.0  # seconds; far more than needed


class Pipe:
    """A pipe with the smallest buffer that the kernel allows."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        self.size = fcntl.fcntl(self.write_end, fcntl.F_SETPIPE_SZ, 4096)

    def read_all(self, stream: Stream) -> str:
        """Start reading, close the stream, and return everything that was received."""
        parts: list[bytes] = []

        def read() -> None:
            while part := os.read(self.read_end, 65536):
                parts.append(part)

        reader = threading.Thread(target=read)
        reader.start()
        stream.close(PATIENCE)
        self.close()
        reader.join()
        return b"".join(parts).decode()

    def close(self) -> None:
        os.close(self.write_end)
        self.write_end = -1


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    os.close(pipe.read_end)
    if pipe.write_end >= 0:
        pipe.close()


def test_everything_is_written_in_order(pipe: Pipe) -> None:
    stream = Stream(pipe.write_end)
    for number in range(100):
        stream.write(f"{number}\n")
    stream.flush(PATIENCE)
    assert os.read(pipe.read_end, 4096).decode() == "".join(f"{number}\n" for number in range(100))
    stream.close(PATIENCE)


def test_a_reader_that_stalls_loses_lines_and_gets_their_number(pipe: Pipe) -> None:
    stream = Stream(pipe.write_end)
    line = "x" * 99 + "\n"
    written = 2 * MAX_WAITING // len(line)
    for _ in range(written):
        stream.write(line)
    text = pipe.read_all(stream)
    lost = written - text.count(line)
    said = re.findall(r"\((\d+) lines? w(?:as|ere) dropped because nobody read them\)\n", text)
    assert lost > 0
    assert sum(map(int, said)) == lost  # the pipe may accept a line now and then


def test_only_the_latest_picture_is_queued(pipe: Pipe) -> None:
    stream = Stream(pipe.write_end, latest_only=True)
    stream.write("[", keep=True)
    for number in range(100):
        stream.write(f"{number}{'x' * pipe.size}\n")
    stream.write("]", keep=True)
    lines = pipe.read_all(stream).replace("x", "")
    assert lines.startswith("[")
    assert lines.endswith("99\n]")
    assert lines.count("\n") < 100


def test_a_reader_who_has_gone_is_noticed() -> None:
    pipe = Pipe()
    os.close(pipe.read_end)
    stream = Stream(pipe.write_end)
    stream.write("x")
    stream.close(PATIENCE)
    assert stream.is_broken
    stream.write("y")
    os.close(pipe.write_end)
