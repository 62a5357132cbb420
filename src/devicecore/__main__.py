"""`python -m devicecore` is the command `devicecore`."""

import sys

from devicecore.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
