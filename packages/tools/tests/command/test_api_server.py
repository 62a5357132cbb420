"""`devicecore api-server`: it serves clients until SIGTERM, and replaces no file."""

import json
import signal
import subprocess
import sys
from pathlib import Path

from devicecore_tools.budget import Budget
from devicecore_tools.command.main import main
from devicecore_tools.doctor.reading.api_server import read_objects


def test_it_serves_the_address_in_the_kubeconfig_until_sigterm(tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    command = [sys.executable, "-m", "devicecore_tools", "api-server", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().partition(" ")[0]
            assert json.loads(file.read_text())["clusters"][0]["cluster"]["server"] == url
            assert read_objects("node-1", str(file), budget=Budget())["Pod"] == []
            assert main(["api-server", str(file)]) == 2  # a second server does not replace the file
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    assert not file.exists()
    assert main(["api-server", str(tmp_path / "none" / "kubeconfig")]) == 2
