# wheel: build a wheel of the Python package into dist/
source "$(dirname "$0")/lib.sh"
bash tools/dev/setup.sh
quiet wheel "$PYTHON" -m pip wheel . --no-deps --no-build-isolation --wheel-dir dist
ls -1 dist/*.whl
