#!/usr/bin/env bash
# Installs those programs that the tests run and that are missing, where that may be done.
set -euo pipefail

packages=()
command -v /usr/bin/chromium-headless-shell /usr/bin/chromium >/dev/null || packages+=(chromium-headless-shell)
command -v openssl >/dev/null || packages+=(openssl)
command -v node >/dev/null || packages+=(nodejs)
command -v npm >/dev/null || packages+=(npm)
command -v haproxy >/dev/null || packages+=(haproxy)
command -v systemd-analyze >/dev/null || packages+=(systemd)
command -v pgbouncer >/dev/null || [ -x /usr/sbin/pgbouncer ] || packages+=(pgbouncer)
compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || packages+=(postgresql)
command -v mariadbd >/dev/null || [ -x /usr/sbin/mariadbd ] || packages+=(mariadb-server)
command -v redis-server >/dev/null || packages+=(redis-server)
command -v redis-sentinel >/dev/null || packages+=(redis-sentinel)
[ ${#packages[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -eq 0 ]; then
    sudo=()
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    sudo=(sudo)
else
    echo "the tests need ${packages[*]}: install them, for example with apt-get install ${packages[*]}" >&2
    exit 1
fi
echo "installing ${packages[*]}"
"${sudo[@]}" apt-get update -qq
"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
