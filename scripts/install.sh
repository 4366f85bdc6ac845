#!/usr/bin/env bash
# Installs llmd as a service, below $DESTDIR: `make install`. Safe to run again, as an upgrade is.
# With INSTALL_VENV=none everything but the virtual environment, which then has to be there already.
set -euo pipefail
cd "$(dirname "$0")/.."
destdir=${DESTDIR:-}
prefix=${PREFIX:-/opt/llmd}
python=${INSTALL_PYTHON:-/usr/bin/python3}
root=$destdir$prefix

die() {
  echo "make install: $*" >&2
  exit 1
}

case $prefix in
  /*[[:space:]\&\|]*) die "PREFIX takes no blanks and none of & |, got $prefix" ;;
  /home/* | /root/*) die "the service cannot see $prefix: home folders are hidden from it" ;;
  /*) ;;
  *) die "PREFIX must be an absolute path, got $prefix" ;;
esac

make_venv() {
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "$python is not Python >= 3.11"
  local base
  base=$("$python" -c 'import os, sys; print(os.path.realpath(sys._base_executable))')
  case $base in
    /home/* | /root/*) die "the service cannot see $base; give INSTALL_PYTHON=/usr/bin/python3" ;;
  esac
  "$python" -m venv "$root/venv" || die "$python cannot make a virtual environment; on Debian: apt install python3-venv"
  bash scripts/packages.sh "$root/venv" service
  # All of it: the service may not write there.
  "$root/venv/bin/python" -m compileall -qq -j 0 -s "$destdir" "$root/venv/lib" || true
  # Programs name their interpreter: the one that will be there once the files are in place.
  if [ -n "$destdir" ]; then
    grep -rlIF "$root/venv" "$root/venv/bin" "$root/venv/pyvenv.cfg" |
      xargs -r sed -i "s|$root/venv|$prefix/venv|g"
  fi
}

place() { # MODE SOURCE TARGET
  install -d "$(dirname "$destdir$3")"
  sed "s|/opt/llmd|$prefix|g" "$2" >"$destdir$3"
  chmod "$1" "$destdir$3"
}

install -d "$root"
if [ "${INSTALL_VENV:-}" = none ]; then
  python=${BUILD_PYTHON:-.venv/bin/python}
else
  make_venv
  python=$root/venv/bin/python
fi
"$python" -m tui.texts "$destdir/usr/share"
place 644 systemd/llmd.service /etc/systemd/system/llmd.service
place 644 systemd/llmd-powerd.service /etc/systemd/system/llmd-powerd.service
place 644 systemd/llmd.sysusers.conf /usr/lib/sysusers.d/llmd.conf
place 644 systemd/llmd.tmpfiles.conf /usr/lib/tmpfiles.d/llmd.conf
for program in llmd llmd-top llmd-powerd; do
  install -d "$destdir/usr/local/bin"
  ln -sfn "$prefix/venv/bin/$program" "$destdir/usr/local/bin/$program"
done
if [ ! -e "$destdir/etc/llmd/llmd.toml" ]; then
  place 640 docs/llmd.toml /etc/llmd/llmd.toml
else
  place 640 docs/llmd.toml /etc/llmd/llmd.toml.new
  cmp -s "$destdir/etc/llmd/llmd.toml" "$destdir/etc/llmd/llmd.toml.new" &&
    rm "$destdir/etc/llmd/llmd.toml.new"
fi
if [ -z "$destdir" ] && [ -d /run/systemd/system ]; then
  systemd-sysusers llmd.conf
  systemd-tmpfiles --create llmd.conf
  systemctl daemon-reload
fi
echo "installed below ${destdir:-/}; next: systemctl enable --now llmd"
echo "where llmd shall set GPU power limits, too: systemctl enable --now llmd-powerd"
