# demo [--synthetic] [--quick] [...]: build, then run the main job: a real model's KV cache moves
source "$(dirname "$0")/lib.sh"
bash tools/dev/setup.sh
build_preset release
[[ -d python/kvmend/demo ]] || die "demo: python/kvmend/demo isn't there yet"
exec "$PYTHON" -m kvmend.demo "$@"
