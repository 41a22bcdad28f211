#!/usr/bin/env bash
# The comparison of the README: data-parallel and Streaming DiLoCo at nanoGPT's small CPU setting (820k
# parameters, 2000 steps of 768 bytes) on a text, two seeds each. About 15 minutes on 2 cores.
#
#     examples/shakespeare.sh TEXT [OUT]
#
# TEXT is tinyshakespeare (1.1 MB) for the numbers of the README, OUT the folder of the results. A run
# whose summary is in OUT already is not done again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source examples/packages.sh

text=${1:?"usage: examples/shakespeare.sh TEXT [OUT]"}
out=${2:-out/shakespeare}
ensure_packages "${example_packages[*]}"
cmake --preset release >/dev/null
cmake --build --preset release --target train_gpt >/dev/null

# run NAME FLAG...: two seeds of a setting.
run() {
  local name=$1 seed
  shift
  for seed in 1 2; do
    [[ -f $out/$name.$seed/summary.json ]] ||
      build/release/examples/train_gpt --data "$text" --width 128 --steps 2000 --check-syncs \
        --seed "$seed" --out "$out/$name.$seed" "$@"
  done
}

# value NAME SEED KEY: a number of a run's summary.
value() { sed -nE "s/^ *\"$3\": ([0-9.e+-]+),?\$/\1/p" "$out/$1.$2/summary.json" | head -n 1; }

# row NAME TEXT: mean of the seeds, against data-parallel.
row() {
  awk -v text="$2" -v a="$(value "$1" 1 eval_loss)" -v b="$(value "$1" 2 eval_loss)" \
    -v c="$(value data_parallel 1 eval_loss)" -v d="$(value data_parallel 2 eval_loss)" \
    -v less="$(value "$1" 1 total_less_than_bf16)" -v peak="$(value "$1" 1 peak_bytes_per_step)" \
    'BEGIN { printf "| %-34s | %.4f, %.4f | %+5.2f %% | %6.1f | %9d |\n", text, a, b,
             100 * ((a + b) / (c + d) - 1), less, peak }'
}

run data_parallel --method data_parallel
run streaming.2 --method streaming --codec e3m0
run streaming.4 --method streaming --codec e3m0 --workers 4
run streaming.h100 --method streaming --codec e3m0 --sync-every 100

echo
echo "| method                             | held-out loss  | mean    | less than bf16 | largest step, bytes |"
echo "| ---------------------------------- | -------------- | ------- | -------------- | ------------------- |"
row data_parallel "data-parallel, M 2"
row streaming.2 "streaming, M 2, H 30"
row streaming.4 "streaming, M 4, H 30"
row streaming.h100 "streaming, M 2, H 100"
