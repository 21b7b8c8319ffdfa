"""The real model: what it answers, and that moved pages change nothing."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from smollm2 import PROMPTS, decode, generate, load_weights, prefill

pytestmark = pytest.mark.heavy

EXAMPLES = Path(__file__).resolve().parents[2]

# Continues from pages in a file: everything that a decode process gets to know.
DECODE_PROCESS = """
import sys
import smollm2
import numpy as np
cache, file = sys.argv[1:]
got = np.load(file)
model = smollm2.LlamaModel(smollm2.load_weights(cache_dir=cache))
pool = model.new_pool(int(got["num_pages"]))
pages = got["pages"].tolist()
for buffer, data in zip(pool.buffers, got["data"], strict=True):
    buffer[pages[:len(data)]] = data
print(*smollm2.decode(model, pool, pages, int(got["position"]), int(got["first"]), 24))
"""


@pytest.fixture(scope="module")
def story(tokenizer):
    prompt = next(p for p in PROMPTS if p.name == "review")
    return tokenizer.encode_chat(prompt.user, prompt.system)


def test_knows_the_capital(model, tokenizer):
    pool = model.new_pool(8)
    tokens = tokenizer.encode_chat("What is the capital of France?")
    answer = tokenizer.decode(generate(model, pool, tokens, 16, tokenizer.stop_ids))
    assert answer == "The capital of France is Paris."


@pytest.mark.parametrize(
    ("text", "next_word"),
    [
        ("The capital of France is", " Paris"),
        ("One, two, three,", " four"),
        ("The opposite of hot is", " cold"),
        ("def add(a, b):\n    return a +", " b"),
    ],
)
def test_continues_plain_text(model, tokenizer, text, next_word):
    pool = model.new_pool(2)
    first = prefill(model, pool, tokenizer.encode(text), pool.alloc(2)).first_token
    assert tokenizer.decode([first]) == next_word


def test_chunked_prefill_is_close_to_unchunked(model, story):
    pool = model.new_pool(64)
    whole, parts = (pool.alloc(pool.pages_for(len(story))) for _ in range(2))
    a = prefill(model, pool, story, whole)
    b = prefill(model, pool, story, parts, chunk_tokens=100)
    assert a.first_token == b.first_token
    np.testing.assert_allclose(a.logits, b.logits, atol=2e-2)
    for layer in (0, 29):
        for x, y in zip(
            pool.read(layer, whole, len(story)), pool.read(layer, parts, len(story)), strict=True
        ):
            np.testing.assert_allclose(x, y, atol=2e-2)


def test_pages_moved_to_another_pool_decode_to_the_same_tokens(model, story):
    source, target = model.new_pool(40), model.new_pool(50)
    pages = source.alloc(source.pages_for(len(story) + 24))
    moved = target.alloc(50)[::-1][: len(pages)]
    sent = []

    def send(first, last, is_last):
        sent.append(is_last)
        for there, here in zip(target.buffers, source.buffers, strict=True):
            there[moved[first:last]] = here[pages[first:last]]

    first = prefill(model, source, story, pages, 128, send).first_token
    assert sent == [False, False, True]
    here = list(decode(model, source, pages, len(story), first, 24))
    there = list(decode(model, target, moved, len(story), first, 24))
    assert here == there


def test_another_process_decodes_to_the_same_tokens(model, story, cache_dir, tmp_path):
    pool = model.new_pool(40)
    expected = generate(model, pool, story, 24, chunk_tokens=128)
    pages = pool.alloc(pool.pages_for(len(story)))
    first = prefill(model, pool, story, pages, 128).first_token
    moved = [39 - p for p in range(pool.pages_for(len(story) + 24))]
    file = tmp_path / "pages.npz"
    data = np.stack([buffer[pages] for buffer in pool.buffers])
    np.savez(file, data=data, pages=moved, num_pages=40, position=len(story), first=first)
    result = subprocess.run(
        [sys.executable, "-c", DECODE_PROCESS, cache_dir, file],
        cwd=EXAMPLES,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert [int(t) for t in result.stdout.split()] == expected


def test_cache_holds_the_same_weights(weights):
    """`weights` came through the cache; read the file itself once more."""
    direct = load_weights()
    assert direct.config == weights.config
    assert direct.vocabulary == weights.vocabulary
    np.testing.assert_array_equal(direct.embedding, weights.embedding)
    np.testing.assert_array_equal(direct.layers[29].qkv, weights.layers[29].qkv)
    np.testing.assert_array_equal(direct.layers[29].down, weights.layers[29].down)


@pytest.mark.parametrize("how", [["-m", "smollm2"], [str(EXAMPLES / "smollm2")]])
def test_command_line(how, weights, cache_dir):
    result = subprocess.run(
        [sys.executable, *how, "--cache", cache_dir, "--sample", "capital"],
        cwd=EXAMPLES,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.stdout == "The capital of France is Paris.\n", result.stderr
