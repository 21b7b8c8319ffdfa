"""convert_model.py GGUF_FOLDER OUT: SmolLM2's GGUF file, made a Hugging Face folder for vLLM.

The weights are de-quantised to bfloat16 once, so every instance has the same ones.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(source: Path, out: Path) -> None:
    torch.set_num_threads(1)
    (gguf,) = source.glob("*.gguf")
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=gguf.name, dtype=torch.bfloat16)
    for name in ("quantization_config", "_pre_quantization_dtype"):  # else it can't be saved
        if hasattr(model.config, name):
            delattr(model.config, name)
    model.hf_quantizer = None
    model.is_quantized = False
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
