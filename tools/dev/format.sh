# format: clang-format every C++ file in place
source "$(dirname "$0")/lib.sh"
bash tools/dev/setup.sh
git ls-files -co --exclude-standard '*.h' '*.cc' | xargs -r clang-format-19 -i
