"""The command `devicecore` with the injected fault that an environment variable names (see `plants.py`).

Run it with `python -P`.
"""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.real_cluster.plants import grow_planted

    grow_planted()
    runpy.run_module("devicecore_tools", run_name="__main__", alter_sys=True)
