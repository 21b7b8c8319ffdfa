# sglang [--quick]: SGLang's own connector with kvmend's backend, kvmend's engine, and Mooncake
source "$(dirname "$0")/lib.sh"
harness="${KVMEND_SGLANG_HARNESS:-../shared/sglang_real}"
if [[ ! -f "$harness/harness.py" ]]; then
  cat <<TEXT
./dev sglang: there is no harness at $harness.

It drives the real classes of the sglang wheel (KV manager, sender, receiver, bootstrap server) on
CPU buffers and isn't part of this repository. Point KVMEND_SGLANG_HARNESS at its folder. What it
showed, and how to use kvmend with SGLang, stands in docs/integrations-sglang.md.
TEXT
  exit 3
fi
bash tools/dev/setup.sh
build_preset release
ldconfig -p | grep -q libibverbs.so.1 ||
  die "the Mooncake wheel needs libibverbs1 and libnuma1: apt-get install libibverbs1 libnuma1"
command -v iptables >/dev/null ||
  die "the harness cuts processes off with iptables: apt-get install iptables"

# A copy: the harness makes its virtual environment beside itself.
work=build/sglang
mkdir -p "$work"
cp "$harness"/*.py "$harness"/requirements.txt "$harness"/run.sh "$work/"
export VENV="$ROOT/$work/.venv" PYTHON=/usr/bin/python3
if [[ ! -f "$VENV/.ready" ]]; then
  say "installing SGLang's connector, torch and Mooncake into $work/.venv (a minute or more)"
fi
quiet sglang-venv bash "$work/run.sh" bench --help
export PYTHONPATH="$ROOT/build/release/python"
"$VENV/bin/python" tools/dev/sglang_plugin.py "$work"
"$VENV/bin/python" tools/dev/sglang_lifecycle.py "$work"
"$VENV/bin/python" tools/dev/sglang_mixed.py "$work"
"$VENV/bin/python" tools/dev/sglang_aborts.py "$work"
"$VENV/bin/python" tools/dev/sglang_unequal.py "$work"
"$VENV/bin/python" tools/dev/sglang_bad_input.py "$work"
"$VENV/bin/python" tools/dev/mooncake_api.py
"$VENV/bin/python" tools/dev/foreign_mooncake.py
exec "$VENV/bin/python" tools/dev/sglang_cases.py "$work" "$@"
