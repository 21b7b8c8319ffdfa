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

export KVMEND_T0="${KVMEND_T0:-$EPOCHSECONDS}"  # verbs that call verbs share one clock

say() { printf '[%4ds] %s\n' "$((EPOCHSECONDS - KVMEND_T0))" "$*"; }
die() { printf './dev: %s\n' "$*" >&2; exit 1; }

# watch_log <log> <name>: shows a step's last line, live on a terminal, else every half minute.
watch_log() {
  local every=30 before='' after='\n' shown
  if [[ -t 1 ]]; then every=1 before='\r\e[K' after=''; fi
  while kill -0 $$ 2>/dev/null; do
    read -rt "$every" _ <> <(:) || true  # a sleep without a process that could outlive us
    shown="$(tail -c 300 "$1" | tail -n 1 | cut -c1-90)"
    printf "$before[%4ds] ...    %s: %s$after" "$((EPOCHSECONDS - KVMEND_T0))" "$2" "$shown"
  done
}

# quiet <name> <command...>: output goes to build/logs/<name>.log; its end is shown on failure.
quiet() {
  local name="$1" start=$EPOCHSECONDS log="$LOGS/$1.log" rc=0 watcher
  shift
  : >"$log"
  watch_log "$log" "$name" &
  watcher=$!
  "$@" >"$log" 2>&1 </dev/null || rc=$?
  kill "$watcher" 2>/dev/null || true
  wait "$watcher" 2>/dev/null || true
  [[ ! -t 1 ]] || printf '\r\e[K'
  if ((rc)); then
    say "FAILED $name (exit $rc, $((EPOCHSECONDS - start))s); the end of $log:"
    tail -n "${KVMEND_TAIL:-60}" "$log" | sed 's/^/    /'
    return "$rc"
  fi
  say "ok     $name ($((EPOCHSECONDS - start))s)"
}

# build_preset <preset> [target...]: configure (cheap when nothing changed) and build.
build_preset() {
  local preset="$1"
  shift
  quiet "configure-$preset" cmake --preset "$preset" &&
    quiet "build-$preset" cmake --build --preset "$preset" -j "$JOBS" ${1:+--target "$@"}
}

PRESETS="debug release clang tidy asan-ubsan tsan fuzz"
is_preset() { [[ " $PRESETS " == *" $1 "* ]]; }
