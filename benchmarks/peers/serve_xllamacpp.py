"""Start xllamacpp's server; runs in xllamacpp's own virtual environment.

usage: serve_xllamacpp.py PORT GGUF STREAMS CONTEXT_TOKENS THREADS shared|split
"""

import signal
import sys

import xllamacpp  # type: ignore[import-not-found]


def main() -> None:
    """Serve until told to stop."""
    port, gguf, streams, context, threads, room = sys.argv[1:]
    params = xllamacpp.CommonParams()
    params.model.path = gguf
    params.model_alias = {"m"}
    params.hostnames = ["127.0.0.1"]
    params.port = int(port)
    params.n_parallel = int(streams)
    params.n_ctx = int(context)
    params.kv_unified = room == "shared"
    params.cache_prompt = False
    params.cache_ram_mib = 0
    params.offline = True
    params.verbosity = 2
    params.cpuparams.n_threads = int(threads)
    params.cpuparams_batch.n_threads = int(threads)
    server = xllamacpp.Server(params)
    print("listening at", server.listening_address, flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    main()
