"""Log lines: one an event, whatever is in them; JSON that parses; priorities for the journal."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from daemon.base.logs import JsonFormatter, TextFormatter
from tests.runtime.terminal import Terminal
from tests.wire.descriptors import full_pipe

PROGRAM = """
import logging, os, sys, warnings
from daemon.base import logs
if os.environ.get("AS_JOURNAL"):
    found = os.fstat(2)
    os.environ["JOURNAL_STREAM"] = f"{found.st_dev}:{found.st_ino}"
logs.set_up("parent", sys.argv[1], sys.argv[2])
logging.getLogger("a.b").info("hello")
logging.getLogger("a.b").debug("quiet")
warnings.warn("odd")
logs.set_level("debug")
logging.getLogger("a.b").debug("loud now")
logging.getLogger().handlers[0].flush()
if os.fork() == 0:
    logs.set_up("child")
    raise ValueError("two\\nlines")
os.wait()
"""


SHOWING = """
import logging, os, sys, time
from daemon.base import logs
logs.set_up("parent", "info", sys.argv[1])
log = logging.getLogger("a.b")
logs.show("a bar that is " + "very " * 100 + "long")
logging.getLogger().handlers[0].flush()
log.info("while it stands")
logs.show("a shorter bar")
logging.getLogger().handlers[0].flush()
if os.fork() == 0:
    logs.set_up("child")
    log.info("from beside")
    logging.shutdown()
    os._exit(0)
os.wait()
logs.show("")
log.info("once it is gone")
"""


def lines(level: str, form: str, **env: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, level, form],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **env},
    )
    return done.stderr.splitlines()


def record(message: str, *args: object, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("a.b", logging.WARNING, "", 0, message, args, None)
    vars(made).update(fields)
    return made


def failed() -> logging.LogRecord:
    try:
        raise ValueError("bad\n2026-01-01T00:00:00.000Z ERROR daemon x: forged")
    except ValueError:
        made = record("it failed")
        made.exc_info = sys.exc_info()
        return made


def test_json_lines_of_a_daemon_and_its_child_parse_and_have_their_fields() -> None:
    events = [json.loads(line) for line in lines("info", "json")]
    assert [(e["process"], e["level"], e["logger"]) for e in events] == [
        ("parent", "info", "a.b"),
        ("parent", "warning", "py.warnings"),
        ("parent", "debug", "a.b"),
        ("child", "critical", "daemon.base.logs"),
    ], "the child has the parent's format and its newest level"
    assert events[0]["message"] == "hello"
    assert "request_id" not in events[0] and "exception" not in events[0]
    assert events[3]["exception"].endswith("ValueError: two\nlines")
    assert all(e["time"][-1] == "Z" and len(e["time"]) == 24 for e in events)


def test_text_has_the_time_and_sets_tracebacks_in() -> None:
    written = lines("info", "auto")
    assert written[0][23:] == "Z INFO parent: hello"
    assert written[-1] == "  | lines"
    assert any("CRITICAL child daemon.base.logs: this process ends" in line for line in written)


def test_in_the_journal_each_line_has_its_priority_and_no_time() -> None:
    written = lines("info", "auto", AS_JOURNAL="1")
    assert written[0] == "<6>INFO parent: hello"
    assert written[-1] == "<2>  | lines"
    assert all(line[0] == "<" and line[2] == ">" for line in written)


def test_another_programs_journal_stream_is_not_ours() -> None:
    assert not lines("info", "auto", JOURNAL_STREAM="1:2")[0].startswith("<")


@pytest.mark.parametrize("journal", [False, True])
@pytest.mark.parametrize("evil", ["a\nb", "a\r\nb", "a\x1b[2Jb", "a\u2028b", "a\x85b", "a\x00b"])
def test_what_clients_chose_cannot_begin_a_line(evil: str, journal: bool) -> None:
    for formatter in (TextFormatter("api", journal), JsonFormatter("api")):
        text = formatter.format(record("no model %s", evil))
        assert len(text.splitlines()) == 1
        assert text.isprintable()
    assert json.loads(JsonFormatter("api").format(record("no model %s", evil)))["message"] == (
        f"no model {evil}"
    )


def test_an_exceptions_text_cannot_forge_an_event() -> None:
    written = TextFormatter("api", False).format(failed()).splitlines()
    assert "forged" in written[-1]
    assert all(line.startswith("  | ") for line in written[1:])
    assert len(JsonFormatter("api").format(failed()).splitlines()) == 1


@pytest.mark.parametrize("formatter", [TextFormatter("api", False), JsonFormatter("api")])
def test_the_request_is_named_where_there_is_one(formatter: logging.Formatter) -> None:
    assert "req-7" in formatter.format(record("slow", request_id="req-7"))


def test_every_process_is_set_up_here_and_nowhere_else() -> None:
    root = Path(__file__).parents[2]
    texts = {path: path.read_text() for path in (root / "daemon").rglob("*.py")}
    assert not [path for path, text in texts.items() if "basicConfig" in text]
    callers = {p.relative_to(root).as_posix() for p, t in texts.items() if "logs.set_up(" in t}
    assert callers == {
        "daemon/api/front/process.py",
        "daemon/cluster/proxy.py",
        "daemon/engine/worker/main.py",
        "daemon/lab/autoplan/process.py",
        "daemon/predictor/process.py",
        "daemon/runtime/daemon.py",
    }


STOPPED = """
import logging, sys, time
from daemon.base import logs
logs.FLUSH_S = 0.1
logs.MOST_LINES = 5
logs.set_up("daemon")
log = logging.getLogger("a.b")
for number in range(20):
    log.info("line %d", number)
print("not held up", flush=True)
if sys.stdin.readline() == "go on":
    while logging.getLogger().handlers[0]._lines.unfinished_tasks:
        time.sleep(0.01)
    log.info("the last")
    raise ValueError("no more")
"""


@pytest.mark.parametrize("answer", ["go on", ""])
def test_a_terminal_that_is_stopped_holds_up_nobody(answer: str) -> None:
    """A pipe that is full and that nobody reads, for a while or for ever."""
    reading, writing, full = full_pipe()
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=writing,
        text=True,
    ) as process:
        os.close(writing)
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "not held up\n"
        if answer:
            assert os.read(reading, full) == b"x" * full
        process.stdin.write(answer)
        process.stdin.close()
        assert process.wait(20) == (1 if answer else 0)
    said = os.read(reading, 1 << 20).decode()
    os.close(reading)
    if answer:
        assert "line 0" in said and "lines of the log are lost: stderr was not read" in said
        assert said.index("the last") < said.index("no more"), "its last words as well"


def showing(form: str) -> Terminal:
    terminal = Terminal([sys.executable, "-c", SHOWING, form], dict(os.environ))
    assert terminal.ended() == 0, terminal.said
    return terminal


def test_a_line_stands_below_the_log_and_goes_without_a_trace() -> None:
    terminal = showing("text")
    assert "a bar that is very" in terminal.said
    assert "a shorter bar" in terminal.said and "long" not in terminal.said, "cut to the width"
    seen = terminal.screen()
    assert [line.partition("parent: ")[2] or line.partition("child: ")[2] for line in seen] == [
        "while it stands",
        "from beside",
        "once it is gone",
    ]


def test_json_and_what_is_no_terminal_have_log_lines_alone() -> None:
    said = showing("json").said
    assert [json.loads(line)["message"] for line in said.splitlines()] == [
        "while it stands",
        "from beside",
        "once it is gone",
    ]
    done = subprocess.run(
        [sys.executable, "-c", SHOWING, "text"], capture_output=True, text=True, check=True
    )
    assert "bar" not in done.stderr and "\x1b" not in done.stderr
    assert len(done.stderr.splitlines()) == 3
