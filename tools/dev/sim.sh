# sim [...]: run the deterministic simulation of whole clusters
source "$(dirname "$0")/lib.sh"
[[ -f sim/CMakeLists.txt ]] || die "sim: the simulation (sim/) isn't there yet"
bash tools/dev/setup.sh
build_preset release
exec build/release/bin/kvmend-sim "$@"
