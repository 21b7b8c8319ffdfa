# build [preset] [target...]: set up, configure and build (default: release) into build/<preset>/
source "$(dirname "$0")/lib.sh"
preset="${1:-release}"
is_preset "$preset" || die "no preset '$preset'; there are: $PRESETS"
shift || true
bash tools/dev/setup.sh
build_preset "$preset" "$@"
