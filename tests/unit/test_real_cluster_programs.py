"""The processes of a real cluster end together with the run that started them."""

import os
import select
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUN = """
import pathlib, signal, sys
from tests.real_cluster.programs import Program
Program("program", ["cat", sys.argv[2]], pathlib.Path(sys.argv[1])).start()
signal.pause()
"""


def test_a_program_ends_when_the_run_that_started_it_is_killed(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    run = subprocess.Popen([sys.executable, "-c", RUN, str(tmp_path), str(fifo)], cwd=ROOT)
    with fifo.open("wb") as written:  # returns once the program has opened the pipe for reading
        run.kill()
        run.wait()
        ended = select.poll()
        ended.register(written, select.POLLERR)  # set once no one has the pipe open for reading any longer
        assert ended.poll(60_000)
