#!/usr/bin/env bash
# Builds and runs all tests: with g++, clang++, the sanitizers, libFuzzer and nvcc, as far as they
# are there. Each fuzzer runs for RIVULET_FUZZ_SECONDS, by default 10, or 60 where CI is set.
# Closes with the number of tests over all of them. What a step printed is kept in build/logs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source examples/packages.sh
ensure_packages "${example_packages[*]} doctest-dev libbenchmark-dev" \
  "clang clang-format libclang-rt-dev libomp-dev libopenmpi-dev openmpi-bin libgloo-dev libhiredis-dev" \
  "redis-server"

logs=build/logs
mkdir -p "$logs"
passed=0 failed=0 skipped=0

announce() { printf '%4d s  %-8s %s\n' "$SECONDS" "$1" "$2"; }

skip() { # STEP REASON
  announce "$1" "skipped: $2"
  skipped=$((skipped + 1))
}

show_failure() { # STEP: the end of its log, without the lines of what went well
  announce "$1" "FAILED; $logs/$1.log ends with"
  grep -vE '^ +Start +[0-9]+: | Passed +[0-9.]+ sec$|^\[[0-9]+/[0-9]+\] (Build|Link)' "$logs/$1.log" |
    tail -n 60
}

# workflow PRESET WHAT: configures, builds and tests a preset, and counts its tests.
workflow() {
  local junit=build/$1/junit.xml status=0 total bad not_run
  announce "$1" "$2"
  rm -f "$junit"
  cmake --workflow --preset "$1" >"$logs/$1.log" 2>&1 || status=$?
  if [[ -f $junit ]]; then
    read -r total bad not_run < <(
      sed -nE 's/^\s(tests|failures|skipped)="([0-9]+)"$/\2/p' "$junit" | head -n 3 | xargs)
    announce "$1" "$((total - bad - not_run)) passed, $bad failed, $not_run skipped"
    grep -oE 'skipped: .*' "$junit" || true
  elif ((status)); then
    total=1 bad=1 not_run=0 # it did not come to the tests
  fi
  passed=$((passed + total - bad - not_run)) failed=$((failed + bad)) skipped=$((skipped + not_run))
  ((status == 0)) || show_failure "$1"
}

# can_link FLAG: whether the compiler has that sanitizer and its programs run here.
can_link() {
  echo 'int main() {}' >"$logs/probe.cpp"
  "${CXX:-c++}" "$1" "$logs/probe.cpp" -o "$logs/probe" &>/dev/null && "$logs/probe" &>/dev/null
}

# can_fuzz: whether clang++ has libFuzzer.
can_fuzz() {
  echo 'extern "C" int LLVMFuzzerTestOneInput(unsigned char const*, unsigned long) { return 0; }' \
    >"$logs/probe.cpp"
  clang++ -fsanitize=fuzzer,address "$logs/probe.cpp" -o "$logs/probe" &>/dev/null &&
    "$logs/probe" -runs=1 &>/dev/null
}

workflow release "g++: library, examples, benchmarks and all tests"

if command -v clang++ >/dev/null; then
  workflow clang "clang++: all tests"
else
  skip clang "no clang++"
fi

if can_link -fsanitize=address,undefined; then
  workflow asan "address and undefined behaviour sanitizers: unit, multi_rank and train_gpt tests"
else
  skip asan "the compiler's address sanitizer does not run here"
fi

if can_link -fsanitize=thread; then
  workflow tsan "thread sanitizer: multi_rank tests"
else
  skip tsan "the compiler's thread sanitizer does not run here"
fi

if can_fuzz; then
  default_seconds=10
  [[ -z ${CI:-} ]] || default_seconds=60
  export RIVULET_FUZZ_SECONDS=${RIVULET_FUZZ_SECONDS:-$default_seconds}
  workflow fuzz "clang++: fuzzers of codecs, messages and saved states, $RIVULET_FUZZ_SECONDS s each"
else
  skip fuzz "no clang++ with libFuzzer"
fi

if command -v nvcc >/dev/null; then
  workflow cuda "nvcc: compiles the CUDA tests, which run where there is a GPU"
else
  skip cuda "no nvcc"
fi

if [[ $(clang-format --version 2>/dev/null) == *" version 14."* ]]; then
  announce format "clang-format"
  if find include tests bench examples \( -name '*.?pp' -o -name '*.cu' -o -name '*.cuh' \) \
    -exec clang-format --dry-run -Werror {} + &>"$logs/format.log"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    show_failure format
  fi
else
  skip format "no clang-format 14"
fi

announce total "done"
echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0))
