# Sourced by every verb: settings, progress lines, quiet logs.
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
cd "$ROOT"
LOGS=build/logs
VENV=.venv
PYTHON="$VENV/bin/python"
JOBS="${KVMEND_JOBS:-$(nproc)}"
export PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 LC_ALL=C.UTF-8
mkdir -p "$LOGS"

say() { printf '[%4ds] %s\n' "$SECONDS" "$*"; }
die() { printf './dev: %s\n' "$*" >&2; exit 1; }

# quiet <name> <command...>: output goes to build/logs/<name>.log; its end is shown on failure.
quiet() {
  local name="$1" start=$SECONDS log="$LOGS/$1.log" rc=0
  shift
  "$@" >"$log" 2>&1 </dev/null || rc=$?
  if ((rc)); then
    say "FAILED $name (exit $rc, $((SECONDS - start))s); the end of $log:"
    tail -n "${KVMEND_TAIL:-60}" "$log" | sed 's/^/    /'
    return "$rc"
  fi
  say "ok     $name ($((SECONDS - start))s)"
}

# build_preset <preset> [target...]: configure (cheap when nothing changed) and build.
build_preset() {
  local preset="$1"
  shift
  quiet "configure-$preset" cmake --preset "$preset"
  quiet "build-$preset" cmake --build --preset "$preset" -j "$JOBS" ${1:+--target "$@"}
}

PRESETS="debug release clang tidy asan-ubsan tsan fuzz"
is_preset() { [[ " $PRESETS " == *" $1 "* ]]; }
