#!/usr/bin/env bash
# prefill.sh MODEL [PORT] [vLLM's options...]: a prefill instance whose KV cache decode reads
set -euo pipefail
model="$1" port="${2:-8100}"
exec python -m vllm.entrypoints.openai.api_server --model "$model" --port "$port" "${@:3}" \
  --kv-transfer-config '{
    "kv_connector": "KvmendConnector",
    "kv_connector_module_path": "kvmend.vllm",
    "kv_role": "kv_producer",
    "kv_connector_extra_config": {"lease_seconds": 60}
  }'
