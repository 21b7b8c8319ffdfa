# check: format, layers, clang-tidy with clang's warnings, gcc build, unit tests
source "$(dirname "$0")/lib.sh"
bash tools/dev/setup.sh
failed=()
format_check() {
  mapfile -t files < <(git ls-files -co --exclude-standard '*.h' '*.cc')
  ((${#files[@]} == 0)) || clang-format-19 --dry-run -Werror --ferror-limit=1 "${files[@]}"
}
quiet format format_check || failed+=("format (./dev format mends it)")
quiet layers "$PYTHON" tests/layers_test.py || failed+=(layers)
build_preset tidy || failed+=("tidy (clang warnings and clang-tidy)")
if build_preset release; then
  ctest --preset release -j "$JOBS" || failed+=("unit tests")
else
  failed+=("build release")
fi
if ((${#failed[@]})); then
  say "./dev check: failed:"
  printf '         - %s\n' "${failed[@]}"
  exit 1
fi
say "./dev check: clean"
