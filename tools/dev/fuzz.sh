# fuzz [--seconds N] [target...]: run the fuzz targets with their kept corpora, 10 s each by default
source "$(dirname "$0")/lib.sh"
seconds=10
targets=()
while (($#)); do
  case "$1" in
    --seconds) seconds="${2:?--seconds needs a number}"; shift 2 ;;
    --seconds=*) seconds="${1#*=}"; shift ;;
    -*) die "fuzz: unknown option '$1'" ;;
    *) targets+=("$1"); shift ;;
  esac
done
[[ "$seconds" =~ ^[0-9]+$ ]] || die "fuzz: --seconds needs a whole number, not '$seconds'"

bash tools/dev/setup.sh
build_preset fuzz
if ((${#targets[@]} == 0)); then
  for bin in build/fuzz/bin/*_fuzz; do
    [[ -x "$bin" ]] && targets+=("$(basename "$bin" _fuzz)")
  done
fi
((${#targets[@]})) || { say "no fuzz targets yet"; exit 0; }

# New inputs go to build/fuzz/corpus; the kept ones under fuzz/corpus are only read. A finding is
# left in build/fuzz/findings.
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export ASAN_SYMBOLIZER_PATH=/usr/bin/llvm-symbolizer-19
failed=()
for target in "${targets[@]}"; do
  bin="build/fuzz/bin/${target}_fuzz"
  [[ -x "$bin" ]] || die "fuzz: no target '$target'"
  mkdir -p "build/fuzz/corpus/$target" build/fuzz/findings
  corpora=("build/fuzz/corpus/$target")
  [[ -d "fuzz/corpus/$target" ]] && corpora+=("fuzz/corpus/$target")
  quiet "fuzz-$target" "$bin" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
    -print_final_stats=1 -artifact_prefix="build/fuzz/findings/$target-" "${corpora[@]}" ||
    failed+=("$target")
done
((${#failed[@]} == 0)) || die "fuzz: findings in ${failed[*]} (build/fuzz/findings)"
