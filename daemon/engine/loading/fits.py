"""Whether a folder's weights fit its configuration: `python -m daemon.engine.loading.fits FOLDER`.

It exits with 0, or with 1 and a sentence why they do not. No weight is read.
"""

import logging
import sys
from pathlib import Path

from daemon.engine.process import stay_offline
from daemon.models.shape import ModelError
from daemon.wire.parent import die_with_parent


def main() -> int:
    """Check the folder that the command line names."""
    if len(sys.argv) != 2:
        print("usage: python -m daemon.engine.loading.fits FOLDER", file=sys.stderr)
        return 2
    die_with_parent()
    stay_offline()
    logging.disable(logging.CRITICAL)  # stderr says one thing
    from daemon.engine.loading.loader import check_weights

    try:
        check_weights(Path(sys.argv[1]).absolute())
    except ModelError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
