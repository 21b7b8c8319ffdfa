# check [--deep]: format, layers, clang-tidy with clang's warnings, gcc build, unit tests (--deep: static analyzer, too)
source "$(dirname "$0")/lib.sh"
deep=OFF
for argument in "$@"; do
  [[ "$argument" == --deep ]] || die "check: no option '$argument'; there is --deep"
  deep=ON
done
bash tools/dev/setup.sh
failed=()
format_check() {
  mapfile -t files < <(git ls-files -co --exclude-standard '*.h' '*.cc')
  ((${#files[@]} == 0)) || clang-format-19 --dry-run -Werror --ferror-limit=1 "${files[@]}"
}
quiet format format_check || failed+=("format (./dev format mends it)")
quiet layers "$PYTHON" tests/layers_test.py || failed+=(layers)
if ! { quiet configure-tidy cmake --preset tidy -DKVMEND_TIDY_DEEP=$deep &&
       quiet build-tidy cmake --build --preset tidy -j "$JOBS" -- -k 0; }; then
  failed+=("tidy (clang warnings and clang-tidy)")
fi
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
