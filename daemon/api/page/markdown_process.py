"""`python -m daemon.api.page.markdown_process --fd N`: renders Markdown for the page.

Clients' text may take a Markdown parser very long: nested brackets and emphasis do. So it is parsed
in forks of this process. A question is a text; the answer is a `RenderedMarkdown` as JSON.
"""

import argparse
import sys

import msgspec

from daemon.api.page.markdown import parser, render
from daemon.api.sandbox.forking import Forks, QuestionLimits, begin

LIMITS = QuestionLimits(
    cpu_s=0.25,  # 64 KiB of prose take 60 to 150 ms
    waiting_s=5.0,
    memory_bytes=128 << 20,
    answer_bytes=4 << 20,
    cpu_s_per_byte=1e-5,
    num_answers=1024,
)


def main() -> int:
    """Answer until the socket ends; return the exit status."""
    arguments = argparse.ArgumentParser(prog="daemon.api.page.markdown_process")
    arguments.add_argument("--fd", type=int, required=True, help="one end of a socketpair")
    channel = begin(arguments.parse_args().fd)
    markdown = parser()
    # Compile what the parser compiles lazily before forking.
    render("# a\n\n* *b* http://c [d](http://e) `f`\n\n| g |\n|---|\n| ~~h~~ |\n", markdown)
    encode = msgspec.json.Encoder().encode
    Forks(lambda text: encode(render(text.decode(), markdown)), LIMITS).serve(channel)
    return 0


if __name__ == "__main__":
    sys.exit(main())
