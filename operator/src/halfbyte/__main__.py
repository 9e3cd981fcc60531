"""``python -m halfbyte``: the operator."""

import sys

from halfbyte.runtime.main import main

sys.exit(main())
