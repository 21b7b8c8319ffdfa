"""Real vLLM over kvmend: prefill and decode instances against a single one, token by token.

    python tools/vllm/cases.py HOME [--tp | --pp | --dp] [--staged] [--hybrid]    (./dev vllm)

Every case asks for the same tokens as one instance alone gives, within a bound, from instances that
only the case itself restarts. Prints a line per case, then JSON; exits 1 if any case failed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import client
import hybrid_model
from client import Answer, Prompt, ask, decode, later, prefill, tokens_of
from instance import Instance, connector
from prompts import references, story, tokens

LEASE = 5.0  # seconds: short, for the late peer
DEADLINE = 4.0  # seconds of a load
COMPUTE = 20.0  # seconds that a prompt may take on a busy machine, beside the deadline

PROMPTS: dict[str, Prompt] = {
    **{f"short {i}": text for i, text in enumerate([
        "The longest river of Europe is", "import numpy as np\n", "Bread is made of",
    ])},
    **{f"story {i}": story(i, n) for i, n in enumerate((8, 16, 24, 32, 90))},
    **{name: story(100 + i, 28) for i, name in enumerate((
        "late", "reuse 0", "reuse 1", "reuse 2", "blip", "stopped", "stopped again", "healed",
        "killed", "killed again", "replaced", "abandoned", "orphan", "after orphan",
    ))},
    "prefix a": story(200, 28) + " the river rose.",
    "prefix b": story(200, 28) + " nobody had asked the miller, who slept.",
}  # fmt: skip


#: Lengths at which a window's beginning is at, before or behind the beginning of a block.
EDGES = [
    hybrid_model.WINDOW + blocks * hybrid_model.BLOCK + off
    for blocks in (1, 2)
    for off in (-1, 0, 1)
]


class Failed(AssertionError):
    """A case didn't end as it should."""


def check(condition: Any, what: str) -> None:
    if not condition:
        raise Failed(what)


class Lab:
    """A prefill and a decode instance, and what one alone answers."""

    def __init__(self, home: Path, model: str, **settings: Any) -> None:
        """`model`: a folder in `home`. `settings`: of both instances' connectors."""
        self.home = home
        self.model = model
        self.settings = settings
        self.prompts = dict(PROMPTS)
        if model == "hybrid":
            for n in EDGES:
                self.prompts[f"story of {n} tokens"] = tokens(home, story(300 + n, 40), n)
        self.expected = references(home, model, self.prompts)
        self.count = 0
        self.report: dict[str, Any] = {}
        self.p, self.d = self.start_prefill(), self.start_decode()

    def start_prefill(self, *options: str) -> Instance:
        self.count += 1
        kv = connector("kv_producer", lease_seconds=LEASE, **self.settings)
        return Instance(f"prefill-{self.count}", self.home, self.model, kv, *options)

    def start_decode(self, *options: str, policy: str = "recompute") -> Instance:
        self.count += 1
        kv = connector("kv_consumer", policy, load_deadline_seconds=DEADLINE, **self.settings)
        return Instance(f"decode-{self.count}", self.home, self.model, kv, *options)

    def right(self, name: str, answer: Answer, within: float = COMPUTE) -> None:
        """The answer has the tokens of a single instance, in time."""
        check(answer.status == 200, f"{name}: HTTP {answer.status} {answer.body}")
        got, want = tokens_of(answer), self.expected[name]
        at = next((i for i, (a, b) in enumerate(zip(got, want, strict=False)) if a != b), len(got))
        check(got == want, f"{name}: WRONG TOKENS from number {at} on: {got} but {want}")
        check(answer.seconds <= within, f"{name}: took {answer.seconds:.1f} s, not {within:g}")

    def counted(self, since: dict[str, float], **want: int) -> None:
        """Decode's counters have risen by as much since then. vLLM publishes them a bit later."""
        end = time.monotonic() + 10
        while True:
            now = self.d.metrics()
            got = {k: int(now.get(k, 0) - since.get(k, 0)) for k in want}
            if got == want or time.monotonic() > end:
                break
            ask(self.d.url, "tick")  # counters travel with a step's output
            time.sleep(0.2)
        check(got == want, f"decode counted {got}, not {want}")

    def released(self, *, by_decode: bool = False) -> None:
        """Prefill holds no block for anybody any more, soon; `by_decode`: all were given back."""
        end = time.monotonic() + LEASE + COMPUTE
        while True:
            now = self.p.metrics()
            done, expired = (now.get(name, 0) for name in ("leases_done", "leases_expired"))
            if done + expired == now.get("leases", 0):
                break
            check(time.monotonic() < end, f"prefill still holds leases: {now}")
            ask(self.p.url, "tick")  # it looks for what has ended in its next step
            time.sleep(0.2)
        check(not (by_decode and expired), f"{expired} leases weren't given back")

    def run(self, name: str, case: Callable[[Lab], None]) -> None:
        start = time.monotonic()
        try:
            case(self)
            for instance in (self.p, self.d):
                check(instance.alive, f"{instance.tag} is dead")
            result = "ok"
        except (AssertionError, RuntimeError, OSError) as error:
            result = f"{type(error).__name__}: {error}"
        seconds = round(time.monotonic() - start, 1)
        self.report[name] = {"result": result, "seconds": seconds}
        print(f"{name:34} {seconds:6.1f} s  {result}", flush=True)


# ------------------------------------------------------------------------------------------- cases


def equal(lab: Lab) -> None:
    """Through the example's router, one after the other."""
    lab.p.wait(), lab.d.wait()
    server = client.proxy.serve([lab.p.url], [lab.d.url])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    before = lab.d.metrics()
    names = [n for n in lab.prompts if n.startswith(("short", "story"))]
    for name in names:
        lab.right(name, ask(url, lab.prompts[name]))
    lab.counted(before, loads=len(names))
    lab.released(by_decode=True)
    server.shutdown()


def idle(lab: Lab) -> None:
    """Nothing is asked: the cores that an instance uses; also while it keeps blocks for decode."""
    time.sleep(2)  # let the last step's output come out
    used = [cores(lab.p, 6), cores(lab.d, 6)]
    prefill(lab.p.url, PROMPTS["orphan"])
    time.sleep(2)  # vLLM's processes wait for each other actively for a second
    used.append(cores(lab.p, LEASE - 3))
    lab.report["cores used while idle, and while a lease runs"] = used
    check(max(used) < 0.2, f"{used} cores while idle")


def cores(instance: Instance, seconds: float) -> float:
    """That it uses on average for so long."""
    before, start = instance.cpu_seconds(), time.monotonic()
    time.sleep(seconds)
    return round((instance.cpu_seconds() - before) / (time.monotonic() - start), 3)


def at_once(lab: Lab) -> None:
    """Seven requests at the same time, each loading while others compute."""
    names = [n for n in PROMPTS if n.startswith("reuse")] + ["late", "blip", "killed", "story 4"]
    client.reset_prefix_cache(lab.d.url)
    before = lab.d.metrics()
    waiting = [(name, later(both, lab, name)) for name in names]
    for name, answer in waiting:
        lab.right(name, answer.result(), 4 * COMPUTE)
    lab.counted(before, loads=len(names), loads_refused=0, loads_failed=0)


def both(lab: Lab, name: str) -> Answer:
    """Prefill, then decode."""
    return decode(lab.d.url, PROMPTS[name], prefill(lab.p.url, PROMPTS[name]))


def shared_prefix(lab: Lab) -> None:
    """Decode has the first blocks in its prefix cache and loads the others only."""
    for name in ("prefix a", "prefix b"):
        before = lab.d.metrics()
        lab.right(name, both(lab, name))
        lab.counted(before, loads=1)
        loaded = lab.d.metrics()["load_bytes"] - before.get("load_bytes", 0)
        lab.report[f"bytes loaded for {name}"] = int(loaded)
    check(lab.report["bytes loaded for prefix b"] < lab.report["bytes loaded for prefix a"] / 2,
          "the shared blocks were loaded again")  # fmt: skip


def late(lab: Lab) -> None:
    """Decode comes after the lease. As long as prefill has done nothing since, its blocks are still
    there: loaded. When other requests have them: refused, recomputed."""
    name = fresh(lab, "late")
    before, reply = lab.d.metrics(), prefill(lab.p.url, PROMPTS[name])
    time.sleep(LEASE + 0.5)
    lab.right(name, decode(lab.d.url, PROMPTS[name], reply))
    lab.counted(before, loads=1, loads_refused=0)
    fresh(lab, name)
    reply = prefill(lab.p.url, PROMPTS[name])
    time.sleep(LEASE + 0.5)
    for other in ("reuse 0", "reuse 1", "reuse 2"):
        prefill(lab.p.url, PROMPTS[other])
    before = lab.d.metrics()
    lab.right(name, decode(lab.d.url, PROMPTS[name], reply))
    lab.counted(before, loads=0, loads_refused=1)


def blip(lab: Lab) -> None:
    """Prefill stands still for a second: the load waits, nothing is recomputed."""
    name = fresh(lab, "blip")
    reply, before = prefill(lab.p.url, PROMPTS[name]), lab.d.metrics()
    lab.p.stop()
    try:
        answer = later(decode, lab.d.url, PROMPTS[name], reply)
        time.sleep(1)
    finally:
        lab.p.resume()
    lab.right(name, answer.result())
    lab.counted(before, loads=1, loads_failed=0)


def stopped(lab: Lab) -> None:
    """Prefill stands still for longer than a load may take: recomputed by then. Later it heals."""
    replies = {n: prefill(lab.p.url, PROMPTS[n]) for n in ("stopped", "stopped again")}
    before = lab.d.metrics()
    lab.p.stop()
    try:
        for name, reply in replies.items():
            answer = decode(lab.d.url, PROMPTS[name], reply)
            lab.right(name, answer, DEADLINE + COMPUTE)
            lab.report[f"seconds, {name}"] = round(answer.seconds, 2)
    finally:
        lab.p.resume()
    lab.counted(before, loads=0, loads_failed=2)
    before = lab.d.metrics()
    lab.right("healed", both(lab, "healed"))
    lab.counted(before, loads=1, loads_failed=0)


def abandoned(lab: Lab) -> None:
    """The client goes away while its blocks load: decode's go back, and prefill's."""
    reply, before = prefill(lab.p.url, PROMPTS["abandoned"]), lab.d.metrics()
    lab.p.stop()
    try:
        body = client.proxy.decode_body(client.request(PROMPTS["abandoned"]), reply)
        check(client.send(lab.d.url, body, 1.0).status == 0, "it was answered")
        lab.counted(before, loads_cancelled=1)
    finally:
        lab.p.resume()
    lab.released()
    lab.right("story 0", ask(lab.d.url, PROMPTS["story 0"]))


def killed(lab: Lab) -> None:
    """Prefill dies after its answer: recomputed. Another takes its place; decode goes on."""
    replies = {n: prefill(lab.p.url, PROMPTS[n]) for n in ("killed", "killed again")}
    lab.p.kill()
    lab.p = lab.start_prefill()  # meanwhile
    for name, reply in replies.items():
        fresh(lab, name)
        answer = decode(lab.d.url, PROMPTS[name], reply)
        lab.right(name, answer, DEADLINE + COMPUTE)
        lab.report[f"seconds, {name}"] = round(answer.seconds, 2)
    lab.p.wait()
    before = lab.d.metrics()
    lab.right("replaced", both(lab, "replaced"))
    lab.counted(before, loads=1, loads_failed=0)


def orphan(lab: Lab) -> None:
    """Decode dies before it has read: prefill's blocks go back with the lease. Another comes."""
    reply = prefill(lab.p.url, PROMPTS["orphan"])
    lab.d.kill()
    lab.d = lab.start_decode()
    lab.released()
    lab.d.wait()
    before = lab.d.metrics()
    lab.right("orphan", decode(lab.d.url, PROMPTS["orphan"], reply))  # first contact, and late
    lab.counted(before, loads_refused=1)
    lab.right("after orphan", both(lab, "after orphan"))
    lab.counted(before, loads=1)


def failing(lab: Lab) -> None:
    """A decode with vLLM's own policy: what can't be loaded is an HTTP 500, soon; others go on."""
    decoding = lab.d
    lab.d = lab.start_decode(policy="fail").wait()
    try:
        reply = prefill(lab.p.url, PROMPTS["late"])
        lab.right("late", decode(lab.d.url, PROMPTS["late"], reply))
        reply = prefill(lab.p.url, PROMPTS["reuse 0"])
        time.sleep(LEASE + 0.5)
        prefill(lab.p.url, PROMPTS["reuse 2"])
        refused = decode(lab.d.url, PROMPTS["reuse 0"], reply)
        check(refused.status == 500, f"HTTP {refused.status} for a lease that is over")
        lab.report["seconds, HTTP 500"] = round(refused.seconds, 2)
        check(refused.seconds < DEADLINE, f"the refusal took {refused.seconds:.1f} s")
        lab.right("reuse 1", both(lab, "reuse 1"))
        check(lab.d.alive, "it has died")
    finally:
        lab.d.kill()
        lab.d = decoding


def fresh(lab: Lab, name: str) -> str:
    """Decode forgets its prefix cache, so that `name` has to be loaded."""
    client.reset_prefix_cache(lab.d.url)
    return name


def tensor_parallel(lab: Lab) -> None:
    """Prefill on one rank and decode on three, then the other way round."""
    unequal(lab, "--tensor-parallel-size", ((1, 3), (3, 1)))


def pipeline_parallel(lab: Lab) -> None:
    """Prefill in one stage and decode in two, then the other way round."""
    # vLLM's CPU workers ready a later stage in the warm-up of compiled models only.
    traced = ("--no-enforce-eager", "--compilation-config", '{"mode": 2, "backend": "eager"}')
    unequal(lab, "--pipeline-parallel-size", ((1, 2), (2, 1)), *traced)


def unequal(lab: Lab, option: str, sizes: tuple[tuple[int, int], ...], *more: str) -> None:
    """Every rank of decode loads its heads and layers."""
    for p, d in sizes:
        lab.p.kill(), lab.d.kill()
        lab.p = lab.start_prefill(option, str(p), *more)
        lab.d = lab.start_decode(option, str(d), *more)
        lab.p.wait(), lab.d.wait()
        names = ["short 0", "story 0", "story 3"]
        for name in names:
            lab.right(name, both(lab, name), 3 * COMPUTE)
        lab.counted({}, loads=len(names) * d, loads_failed=0)
        lab.released(by_decode=True)


def data_parallel(lab: Lab) -> None:
    """Two engines at decode: whichever gets a request loads it."""
    lab.d.kill()
    lab.d = lab.start_decode("--data-parallel-size", "2")
    lab.p.wait(), lab.d.wait()
    names = [f"story {i}" for i in range(4)]
    for name, answer in [(name, later(both, lab, name)) for name in names]:
        lab.right(name, answer.result(), 4 * COMPUTE)
    lab.counted({}, loads=len(names), loads_failed=0)
    lab.released(by_decode=True)


CASES = (
    equal, idle, shared_prefix, late, at_once, blip, stopped, abandoned, killed, orphan, failing,
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("home", type=Path)
    parser.add_argument("--tp", action="store_true", help="unequal tensor parallelism instead")
    parser.add_argument("--pp", action="store_true", help="unequal pipeline parallelism instead")
    parser.add_argument("--dp", action="store_true", help="a decode of two engines instead")
    parser.add_argument(
        "--hybrid", action="store_true", help="a model with sliding windows in some layers"
    )
    parser.add_argument(
        "--staged", action="store_true", help="as if the caches weren't in host memory"
    )
    parser.add_argument("--only", nargs="*", metavar="CASE", help="these cases (function names)")
    args = parser.parse_args()
    os.environ["VLLM_SERVER_DEV_MODE"] = "1"  # for /reset_prefix_cache
    cases = [c for c in CASES if not args.only or c in (equal,) or c.__name__ in args.only]
    for case in (tensor_parallel, pipeline_parallel, data_parallel):
        if getattr(args, "".join(word[0] for word in case.__name__.split("_"))):
            cases = [case]
    home, model = args.home.resolve(), "model"
    if args.hybrid:
        model = "hybrid"
        hybrid_model.make(home / "model", home / model)
    lab = Lab(home, model, **({"staging": "always"} if args.staged else {}))
    try:
        for case in cases:
            lab.run(case.__name__.replace("_", " "), case)
        for instance in (lab.p, lab.d):
            if instance.alive:
                lab.report[f"counters of {instance.tag}"] = instance.metrics()
    finally:
        lab.p.kill(), lab.d.kill()
    print(json.dumps(lab.report))
    bad = [
        k for k, v in lab.report.items() if isinstance(v, dict) and v.get("result", "ok") != "ok"
    ]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
