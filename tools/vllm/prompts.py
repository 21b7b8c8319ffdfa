"""Prompts that no two cases share a block of, and what one instance alone answers to them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from client import Prompt, ask, tokens_of
from instance import Instance
from tokenizers import Tokenizer

ACTORS = ["the baker", "a sailor", "the clerk", "my aunt", "the gardener", "a tailor", "the pilot"]
VERBS = ["carried", "sold", "found", "painted", "lost", "weighed", "borrowed", "hid"]
THINGS = ["two lanterns", "a copper bell", "the blue map", "nine apples", "a torn letter"]
PLACES = ["by the harbour", "under the stairs", "at the station", "behind the mill"]


def story(seed: int, sentences: int) -> str:
    """About 15 tokens a sentence."""
    pick = random.Random(seed).choice
    lines = [f"Report {seed}."]
    for hour in range(1, sentences + 1):
        lines.append(f"Hour {hour}: {pick(ACTORS)} {pick(VERBS)} {pick(THINGS)} {pick(PLACES)}.")
    return " ".join(lines) + " To sum up, the report tells that"


def tokens(home: Path, text: str, count: int) -> list[int]:
    """The first ones of a text."""
    ids: list[int] = Tokenizer.from_file(str(home / "model/tokenizer.json")).encode(text).ids
    assert len(ids) >= count, f"{len(ids)} tokens"
    return ids[:count]


def references(home: Path, model: str, prompts: dict[str, Prompt]) -> dict[str, list[int]]:
    """Prompt's name -> tokens of a single instance, temperature 0; kept in a file of `home`."""
    file = home / f"reference-{model}.json"
    known: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    if any(known.get(name, [None])[0] != prompt for name, prompt in prompts.items()):
        alone = Instance("alone", home, model)
        try:
            alone.wait()
            known = {n: [p, tokens_of(ask(alone.url, p))] for n, p in prompts.items()}
        finally:
            alone.kill()
        file.write_text(json.dumps(known))
    return {name: known[name][1] for name in prompts}
