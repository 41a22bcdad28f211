#!/usr/bin/env bash
# The codecs of the README compared: Streaming DiLoCo at the setting of shakespeare.sh (820k parameters,
# 2 workers, H 30), 1000 steps each. About 12 minutes on 2 cores.
#
#     examples/codecs.sh TEXT [OUT]
#
# TEXT is tinyshakespeare (1.1 MB) for the numbers of the README, OUT the folder of the results. A run
# whose summary is in OUT already is not done again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source examples/packages.sh

text=${1:?"usage: examples/codecs.sh TEXT [OUT]"}
out=${2:-out/codecs}
ensure_packages "${example_packages[*]}"
cmake --preset release >/dev/null
cmake --build --preset release --target train_gpt >/dev/null

value() { sed -nE "s/^ *\"$2\": ([0-9.e+-]+),?\$/\1/p" "$out/$1/summary.json" | head -n 1; }

rows=()
# run NAME FLAG...: one codec.
run() {
  local name=$1
  shift
  [[ -f $out/$name/summary.json ]] ||
    build/release/examples/train_gpt --method streaming --data "$text" --width 128 --steps 1000 \
      --check-syncs --out "$out/$name" "$@"
  rows+=("$(awk -v name="$name" -v loss="$(value "$name" eval_loss)" -v first="$(value float32 eval_loss)" \
    -v bytes="$(value "$name" bytes_sent_per_worker)" -v less="$(value "$name" total_less_than_bf16)" \
    'BEGIN { printf "| %-31s | %.4f | %+5.2f %% | %9d | %6.1f |", name, loss,
             100 * (loss / first - 1), bytes, less }')")
}

for codec in float32 bf16 int8 lloyd_max4 mxfp4 e3m0; do run $codec --codec $codec; done
for codec in int2 sign top_k; do run "$codec, error feedback" --codec $codec --error-feedback; done
run "int2" --codec int2

echo
echo "| codec                           | loss   | float32 | bytes     | less than bf16 |"
echo "| ------------------------------- | ------ | ------- | --------- | -------------- |"
printf '%s\n' "${rows[@]}"
