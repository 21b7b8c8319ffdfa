"""Prompts that no two cases share a block of, and what one instance alone answers to them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from client import ask, tokens_of
from instance import Instance

WHO = "Ada Bruno Chen Dalia Emeka Farah Goran Hana Ivo Jun".split()
DID = ["measured the river", "repaired the clock", "mapped the valley", "counted the boats",
       "wrote to the mayor", "painted the bridge", "sorted the seeds", "closed the mill"]  # fmt: skip
WHY = ["because the rain had stopped", "before the market opened", "to settle a bet",
       "while the others slept", "so that the school could stay open"]  # fmt: skip


def story(seed: int, sentences: int, start: str = "") -> str:
    """About 15 tokens a sentence."""
    pick = random.Random(seed).choice
    lines = [f"{start}Story {seed}."]
    lines += [
        f"On day {i}, {pick(WHO)} {pick(DID)} {pick(WHY)}." for i in range(1, sentences + 1)
    ]
    return " ".join(lines) + " In short, the story says that"


def references(home: Path, prompts: dict[str, str]) -> dict[str, list[int]]:
    """Prompt's name -> tokens of a single instance, temperature 0; kept in home/reference.json."""
    file = home / "reference.json"
    known: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    if any(known.get(name, [None])[0] != prompt for name, prompt in prompts.items()):
        alone = Instance("alone", home)
        try:
            alone.wait()
            known = {n: [p, tokens_of(ask(alone.url, p))] for n, p in prompts.items()}
        finally:
            alone.kill()
        file.write_text(json.dumps(known))
    return {name: known[name][1] for name in prompts}
