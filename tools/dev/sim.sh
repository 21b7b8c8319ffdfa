# sim [--seeds N] [--break NAME|all] [--json FILE] [...]: deterministic simulation of whole clusters
source "$(dirname "$0")/lib.sh"
[[ -f sim/CMakeLists.txt ]] || die "sim: the simulation (sim/) isn't there yet"
bash tools/dev/setup.sh
build_preset release kvmend-sim
exec build/release/bin/kvmend-sim "$@"
