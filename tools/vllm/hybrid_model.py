"""SmolLM2 with sliding windows in two layers of three: a model with several KV cache groups.

Its weights are the ones that it was trained with, without windows: its answers aren't good, but
they depend on every block that is in a window.
"""

from __future__ import annotations

import json
from pathlib import Path

__all__ = ["BLOCK", "WINDOW", "make"]

WINDOW = 200  # tokens
BLOCK = 128  # vLLM's on CPU


def make(model: Path, out: Path) -> None:
    """Writes the model into the folder `out`; its weights are links to those of `model`."""
    out.mkdir(exist_ok=True)
    for file in model.iterdir():
        if file.name != "config.json" and not (out / file.name).exists():
            (out / file.name).symlink_to(file.resolve())
    config = json.loads((model / "config.json").read_text())
    layers = config["num_hidden_layers"]
    config["sliding_window"] = WINDOW
    config["layer_types"] = [
        "full_attention" if layer % 3 == 2 else "sliding_attention" for layer in range(layers)
    ]
    (out / "config.json").write_text(json.dumps(config))
