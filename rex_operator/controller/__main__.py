"""``python -m rex_operator.controller``: the operator process."""

import sys

from rex_operator.controller.main import main

sys.exit(main())
