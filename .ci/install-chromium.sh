#!/usr/bin/env bash
# Installs Chromium for the tests marked "browser", which open the report in a real browser. Does nothing where there
# is one already; where it can't be installed, says so, and `make test` leaves those tests out.
set -euo pipefail
for name in chromium chromium-browser google-chrome; do
  if command -v "$name" >/dev/null; then exit 0; fi
done
if ! command -v apt-get >/dev/null; then
  echo "no Chromium and no apt-get: the browser tests are left out" >&2
  exit 0
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then as_root=(sudo -n); fi
export DEBIAN_FRONTEND=noninteractive
if ! { "${as_root[@]}" apt-get update -qq &&
  "${as_root[@]}" apt-get install -y -qq --no-install-recommends chromium fonts-liberation >/dev/null; }; then
  echo "Chromium can't be installed here: the browser tests are left out" >&2
fi
