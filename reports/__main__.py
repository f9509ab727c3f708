"""The command `python -m reports`: show a report, merge machines, gate a merge."""

import signal
import sys

from reports.commands import main

if __name__ == "__main__":
    # A reader that closes the pipe early (head) ends this as it ends any filter.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main(sys.argv[1:]))
