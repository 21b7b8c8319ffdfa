#!/usr/bin/env bash
# decode.sh MODEL [PORT] [vLLM's options...]: a decode instance; it recomputes what it can't load
set -euo pipefail
model="$1" port="${2:-8200}"
exec python -m vllm.entrypoints.openai.api_server --model "$model" --port "$port" "${@:3}" \
  --kv-transfer-config '{
    "kv_connector": "KvmendConnector",
    "kv_connector_module_path": "kvmend.vllm",
    "kv_role": "kv_consumer",
    "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {"load_deadline_seconds": 10}
  }'
