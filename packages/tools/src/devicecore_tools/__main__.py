"""`python -m devicecore_tools` is the command `devicecore`."""

import sys

from devicecore_tools.command.main import main

if __name__ == "__main__":
    sys.exit(main())
