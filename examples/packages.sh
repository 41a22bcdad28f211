# Sourced by train.sh and tests/run.sh: what they need of Debian's packages.
# shellcheck shell=bash

# What builds examples/.
example_packages=(g++ cmake ninja-build libopenblas-dev libcli11-dev libfmt-dev nlohmann-json3-dev
  zlib1g-dev)

# missing_packages NAME...: prints those that are not installed.
missing_packages() {
  local name
  for name in "$@"; do
    dpkg-query -W -f='${db:Status-Status}\n' "$name" 2>/dev/null | grep -qx installed || echo "$name"
  done
}

# install_packages NAME...: false where one could not be installed.
install_packages() {
  echo "Installing: $*"
  apt-get -qq update &&
    DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "$@" >/dev/null
}

# ensure_packages "NEEDED..." ["OPTIONAL..."]: installs what is missing where this is Debian or
# Ubuntu and the user is root; prints what to install otherwise. Stops without a needed one.
ensure_packages() {
  local needed optional
  read -ra needed <<<"$1"
  read -ra optional <<<"${2:-}"
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    echo "Not Debian or Ubuntu, so install what these packages hold: $*"
    return
  fi
  mapfile -t needed < <(missing_packages "${needed[@]}")
  mapfile -t optional < <(missing_packages "${optional[@]}")
  if ((EUID != 0)); then
    if ((${#needed[@]})); then
      echo "Please install what is missing, then try again:"
      echo "  sudo apt-get install ${needed[*]} ${optional[*]}"
      exit 1
    fi
    ((${#optional[@]} == 0)) || echo "Optional: sudo apt-get install ${optional[*]}"
    return
  fi
  if ((${#needed[@]})); then
    install_packages "${needed[@]}" || { echo "Could not install: ${needed[*]}" >&2; exit 1; }
  fi
  if ((${#optional[@]})); then
    install_packages "${optional[@]}" || echo "Goes on without: ${optional[*]}"
  fi
}
