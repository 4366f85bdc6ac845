"""A chat at a terminal: lines are questions, those with a slash are commands."""

from collections.abc import Callable, Iterator

from daemon.chat.endpoint import ChatError
from daemon.chat.screen import Screen
from daemon.chat.talk import Talk

HELP = '''\
  /reset         forget what was said
  /system TEXT   another system prompt; forgets what was said
  /help          this list
  /bye, Ctrl-D   end
  """            begins and ends a text of several lines; a paste needs none
  Ctrl-C         ends an answer'''
_FENCE = '"""'

Read = Callable[[str], str]
"""Reads a line, or a paste with its line ends, after showing a prompt; raises EOFError at the end
of input.
"""


def texts(read: Read) -> Iterator[str]:
    """The user's texts, whole: a line, a paste of several, or lines between fences."""
    while True:
        try:
            line = read(">>> ")
            if line.lstrip().startswith(_FENCE) and "\n" not in line:
                line = _fenced(line.lstrip().removeprefix(_FENCE), read)
        except EOFError:
            return
        if line.strip():
            yield line.strip()


def _fenced(line: str, read: Read) -> str:
    lines = []
    while not line.rstrip().endswith(_FENCE):
        lines.append(line)
        line = read("... ")
    return "\n".join([*lines, line.rstrip().removesuffix(_FENCE)])


def converse(talk: Talk, screen: Screen, read: Read) -> None:
    """Ask and carry out commands until the user ends the chat."""
    for text in texts(read):
        if text.startswith("/") and "\n" not in text:
            if not _obey(text, talk, screen):
                return
            continue
        try:
            timing = talk.say(text, screen)
        except ChatError as error:
            screen.tell(f"\n{error}")
        except KeyboardInterrupt:
            screen.tell("\n(the answer was ended)")
        else:
            screen.tell(f"{timing}\n")


def _obey(order: str, talk: Talk, screen: Screen) -> bool:
    """Carry out a command; False: end."""
    word, _, rest = order.partition(" ")
    match word:
        case "/bye" | "/exit" | "/quit":
            return False
        case "/reset":
            talk.conversation.begin_anew()
            screen.tell("what was said is forgotten")
        case "/system":
            talk.conversation.begin_anew(rest.strip())
            screen.tell("begun anew with this system prompt" if rest else "no system prompt now")
        case "/help" | "/?":
            screen.tell(HELP)
        case _:
            screen.tell(f"{word} is no command; /help lists them")
    return True
