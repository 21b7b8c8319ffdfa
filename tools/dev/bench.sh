# bench [...]: build, then measure against a raw stream in the same run
source "$(dirname "$0")/lib.sh"
bash tools/dev/setup.sh
build_preset release
[[ -f bench/run.py ]] || die "bench: bench/run.py isn't there yet"
exec "$PYTHON" bench/run.py "$@"
