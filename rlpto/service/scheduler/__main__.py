"""`python -m rlpto.service.scheduler SETTINGS [--check]`: see `rlpto.service.scheduler.process`."""

import sys

from rlpto.service.scheduler.process import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
