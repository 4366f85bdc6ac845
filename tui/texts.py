"""`python -m tui.texts FOLDER`: completion and manual pages of llmd and llmd-top.

`make install` asks for them, in the structure of a folder such as /usr/share.
"""

import sys
from pathlib import Path

from daemon.cli.parser import build_parser
from daemon.cli.printed import EVERYTHING, completion, man_page
from tui.arguments import parser as viewer_parser


def write_all(share: Path) -> None:
    """Write every program's texts below a folder such as /usr/share."""
    for parser in (build_parser([EVERYTHING]), viewer_parser()):
        name = parser.prog
        texts = {
            f"man/man1/{name}.1": man_page(parser),
            f"bash-completion/completions/{name}": completion(parser, "bash"),
            f"zsh/vendor-completions/_{name}": completion(parser, "zsh"),
        }
        for place, text in texts.items():
            (share / place).parent.mkdir(parents=True, exist_ok=True)
            (share / place).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
