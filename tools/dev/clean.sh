# clean [--all]: remove build/ and dist/; with --all also .venv
source "$(dirname "$0")/lib.sh"
rm -rf build dist
[[ "${1:-}" != --all ]] || rm -rf .venv
