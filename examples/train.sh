#!/usr/bin/env bash
# Trains a transformer with data-parallel, DiLoCo and Streaming DiLoCo and prints the table.
#
#     examples/train.sh [quick|default|long] [flag of train_gpt]...
#
# On 2 cores quick takes a minute, default less than five, long about an hour. Flags come after it
# and win; examples/train.sh --help lists them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source examples/packages.sh

case "${1:-}" in
  quick) settings=(--steps 200) && shift ;;
  long) settings=(--steps 20000) && shift ;;
  default) settings=() && shift ;;
  *) settings=() ;;
esac

packages=("${example_packages[@]}")
[[ " $*" == *" --data"* ]] || packages+=(dict-gcide) # the text to train on
ensure_packages "${packages[*]}"

cmake --preset release
cmake --build --preset release --target train_gpt
exec build/release/examples/train_gpt "${settings[@]}" "$@"
