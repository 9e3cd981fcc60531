"""``python -m halfbyte.cli``: the kubectl plugin where it is not installed."""

import sys

from halfbyte.cli.main import main

sys.exit(main())
