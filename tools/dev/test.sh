# test [--only a,b]: set up, build and run every test (layers unit pytest asan tsan fuzz demo)
source "$(dirname "$0")/lib.sh"

STEPS="layers unit pytest asan tsan fuzz demo"
only="$STEPS"
while (($#)); do
  case "$1" in
    --only) only="${2:?--only needs steps: $STEPS}"; only="${only//,/ }"; shift 2 ;;
    --only=*) only="${1#*=}"; only="${only//,/ }"; shift ;;
    *) die "test: unknown option '$1' (--only with some of: ${STEPS// /,})" ;;
  esac
done
for step in $only; do
  [[ " $STEPS " == *" $step "* ]] || die "test: no step '$step'; there are: $STEPS"
done
wanted() { [[ " $only " == *" $1 "* ]]; }

failed=()
# attempt <name> <command...>: runs it in the open and remembers a failure instead of stopping.
attempt() {
  local name="$1" start=$EPOCHSECONDS
  shift
  if "$@" </dev/null; then
    say "passed $name ($((EPOCHSECONDS - start))s)"
  else
    say "FAILED $name ($((EPOCHSECONDS - start))s)"
    failed+=("$name")
    return 1
  fi
}
# unit_tests <preset>: builds and runs; ctest's own summary is shown.
unit_tests() { build_preset "$1" && ctest --preset "$1" -j "$JOBS"; }

bash tools/dev/setup.sh || die "setup failed; no test was run"

# GCC compiles everything (release), Clang everything under test (sanitizers): warnings are errors.
if wanted layers; then attempt layers "$PYTHON" tests/layers_test.py || true; fi
release=ok
if wanted unit || wanted pytest || wanted demo; then
  attempt "build release" build_preset release || release=broken
  [[ "$release" == ok ]] || say "not run without it: unit tests (gcc), pytest, demo"
fi
if [[ "$release" == ok ]]; then
  if wanted unit; then attempt "unit tests (gcc, release)" ctest --preset release -j "$JOBS" || true; fi
  if wanted pytest; then attempt pytest "$PYTHON" -m pytest || true; fi
fi
if wanted asan; then attempt "unit tests (address, undefined)" unit_tests asan-ubsan || true; fi
if wanted tsan; then attempt "unit tests (thread)" unit_tests tsan || true; fi
if wanted fuzz; then attempt fuzz bash tools/dev/fuzz.sh --seconds 3 || true; fi
if [[ "$release" == ok ]] && wanted demo; then
  if [[ -d python/kvmend/demo ]]; then
    attempt "synthetic demo" timeout 300 "$PYTHON" -m kvmend.demo --synthetic --quick \
      --json build/demo.json || true
  else
    say "no demo to run yet (python/kvmend/demo)"
  fi
fi

if ((${#failed[@]})); then
  say "./dev test: ${#failed[@]} failed:"
  printf '         - %s\n' "${failed[@]}"
  exit 1
fi
say "./dev test: everything passed (${only// /, })"
