#!/usr/bin/env bash
# Installs one real client in a folder of its own and streams a chat with it from a running daemon:
#   scripts/client_check.sh openai2|openai3|openai-suite|node|litellm|langchain|instructor|llm [URL]
# It exits 0 if the streamed text is the whole answer, in several pieces (instructor: if it gets
# objects of the type that it asked for). LLMD_CLIENTS names the
# folder that the clients are kept in.
set -euo pipefail

client=${1:?usage: scripts/client_check.sh CLIENT [URL]}
export LLMD_URL=${2:-http://127.0.0.1:8000}
cd "$(dirname "$0")/../tests/clients"
here=$PWD
home=${LLMD_CLIENTS:-${XDG_CACHE_HOME:-$HOME/.cache}/llmd-clients}/$client
mkdir -p "$home"

venv() {  # PACKAGE ...: a virtual environment with them
  [ -x "$home/bin/python" ] || python3 -m venv "$home"
  "$home/bin/python" -m pip --quiet --disable-pip-version-check install "$@"
}

run() {  # PROGRAM, and the distributions whose versions are worth a line
  local program=$1
  shift
  venv "$@"
  "$home/bin/python" "$here/$program"
}

case $client in
  openai2) run openai_chat.py 'openai>=2,<3' ;;
  openai3) run openai_chat.py 'openai>=3,<4' ;;
  litellm) LITELLM_LOCAL_MODEL_COST_MAP=True run litellm_chat.py litellm ;;
  langchain) run langchain_chat.py langchain-openai ;;
  instructor) run instructor_chat.py instructor 'openai>=3,<4' ;;
  llm) run llm_cli.py llm ;;
  node)
    cp openai_chat.mjs "$home"
    cd "$home"
    npm install --silent --no-audit --no-fund openai
    node openai_chat.mjs
    ;;
  openai-suite)
    venv pytest pytest-asyncio pytest-xdist respx time-machine rich nest-asyncio 'openai[aiohttp]>=3,<4'
    "$home/bin/python" "$here/openai_suite.py" "$home"
    ;;
  *)
    echo "client_check: no client $client" >&2
    exit 2
    ;;
esac
