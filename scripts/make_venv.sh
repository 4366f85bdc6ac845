#!/usr/bin/env bash
# Makes or refreshes the virtual environment $1 for serving, or with `dev` as $2 for work on llmd.
# Safe to run again.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv}
purpose=${2:-serve}

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
  mkdir -p "$venv"
  "$python" scripts/stage.py "$venv/install.log" "a virtual environment in $venv" \
    "$python" -m venv "$venv"
fi

exec bash scripts/packages.sh "$venv" "$purpose"
