"""The command `python -m reports`: show a report, merge machines, gate a merge."""

import sys

from reports.commands import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
