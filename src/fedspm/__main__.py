"""`python -m fedspm`, for where no script is installed."""

import sys

if __name__ == "__main__":  # processes of nodes import this file again
    if not sys.flags.safe_path:
        del sys.path[0]  # the working directory, which may be a download: nothing in it is imported
    from fedspm.cli import main

    main()
