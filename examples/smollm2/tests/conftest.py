"""Fixtures of the example's tests: the real model, and a tiny one with random weights."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import smollm2  # first, as it sets the number of BLAS threads  # isort: skip
import numpy as np
import pytest
from smollm2.weights import LayerWeights, ModelConfig, Vocabulary, Weights


def pytest_configure(config):
    config.addinivalue_line("markers", "heavy: runs the real model (seconds each)")


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory):
    """A folder with the expanded weights, shared by all tests of one run."""
    return tmp_path_factory.mktemp("smollm2-cache")


@pytest.fixture(scope="session")
def weights(cache_dir):
    try:
        return smollm2.load_weights(cache_dir=cache_dir)
    except smollm2.ModelNotFound as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def tokenizer(weights):
    return smollm2.SmolTokenizer(weights.vocabulary)


@pytest.fixture(scope="session")
def model(weights):
    return smollm2.LlamaModel(weights)


@pytest.fixture(scope="session")
def tiny_weights():
    """Two layers of 4 query heads over 2 KV heads of 8."""
    c = ModelConfig(
        layers=2,
        hidden=32,
        heads=4,
        kv_heads=2,
        head_dim=8,
        ffn=48,
        vocab=50,
        context=64,
        rope_base=10000.0,
        norm_eps=1e-5,
    )
    rng = np.random.default_rng(3)

    def random(*shape):
        return (rng.standard_normal(shape) * 0.3).astype(np.float32)

    layers = [
        LayerWeights(
            attn_norm=1 + random(c.hidden),
            qkv=random(c.hidden, (c.heads + 2 * c.kv_heads) * c.head_dim),
            attn_out=random(c.heads * c.head_dim, c.hidden),
            ffn_norm=1 + random(c.hidden),
            gate_up=random(c.hidden, 2 * c.ffn),
            down=random(c.ffn, c.hidden),
        )
        for _ in range(c.layers)
    ]
    vocabulary = Vocabulary("smollm", [], [], [], 0, "")
    return Weights(c, vocabulary, random(c.vocab, c.hidden), layers, 1 + random(c.hidden))


@pytest.fixture(scope="session")
def tiny(tiny_weights):
    return smollm2.LlamaModel(tiny_weights)
