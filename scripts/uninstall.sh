#!/usr/bin/env bash
# Removes what `make install` put below $DESTDIR. The configuration, models and what was learned
# stay: /etc/llmd, /var/lib/llmd, /var/lib/llmd-powerd, /var/cache/llmd, and the users who own them.
set -euo pipefail
destdir=${DESTDIR:-}
prefix=${PREFIX:-/opt/llmd}
if [ -z "$destdir" ] && [ -d /run/systemd/system ]; then
  systemctl disable --now llmd.service || true
  systemctl disable --now llmd-powerd.service || true
fi
rm -rf "$destdir${prefix:?}/venv"
rmdir --ignore-fail-on-non-empty "$destdir$prefix" 2>/dev/null || true
rm -f "$destdir/etc/systemd/system/llmd.service" \
  "$destdir/etc/systemd/system/llmd-powerd.service" "$destdir/usr/lib/sysusers.d/llmd.conf" \
  "$destdir/usr/lib/tmpfiles.d/llmd.conf"
for program in llmd llmd-top llmd-powerd; do
  rm -f "$destdir/usr/local/bin/$program" "$destdir/usr/share/man/man1/$program.1" \
    "$destdir/usr/share/bash-completion/completions/$program" \
    "$destdir/usr/share/zsh/vendor-completions/_$program"
done
if [ -z "$destdir" ] && [ -d /run/systemd/system ]; then
  systemctl daemon-reload
fi
state=$destdir/var/lib/llmd-powerd/limits.json
# Its last stop may have failed, and nobody is left to try again.
if [ -e "$state" ] && ! grep -qF '"limits_mw":{}' "$state"; then
  echo "some card may still have a limit of llmd's; the own limits are in $state: nvidia-smi -pl"
fi
echo "removed; /etc/llmd, /var/lib/llmd, /var/lib/llmd-powerd and /var/cache/llmd stay"
