"""Enforces the layer order of docs/architecture.md over src/ and include/.

Runs under pytest, or alone: `python3 tests/layers_test.py`. Rules, each with a synthetic violation
below that must be found:

- a folder includes only what stands above it in LAYERS, or itself
- an implementation (env/posix, transport/tcp...) is included only by itself, by runtime and cli,
  which pick implementations, and by unit tests; so siblings never include each other
- health is pure: it doesn't even include env
- public headers include only the standard library and each other
- clocks, sleeps, entropy and the environment are touched only in env/posix, runtime and cli
"""

import pathlib
import re
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Top first. "kvmend" are the public headers, include/kvmend/.
LAYERS = ["kvmend", "base", "env", "wire", "memory", "health", "transport", "session", "engine",
          "kv", "http", "bootstrap", "metrics", "admin", "runtime", "cli"]
IMPLEMENTATIONS = {"env/posix", "transport/tcp", "transport/local", "transport/ucx",
                   "transport/fault"}
PICK_IMPLEMENTATIONS = {"runtime", "cli"}
FORBIDDEN_PAIRS = {("health", "env")}
MAY_TOUCH_THE_WORLD = {"env/posix", "runtime", "cli"}

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">]', re.MULTILINE)
COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/', re.DOTALL)
WORLD = re.compile(
    r"\b(?:steady_clock|system_clock|high_resolution_clock)\s*::\s*now\b"
    r"|\b(?:sleep_for|sleep_until|random_device|getenv|secure_getenv)\b"
    r"|(?<![\w.>])(?:usleep|nanosleep|sleep|clock_gettime|gettimeofday|getrandom|rand|srand)\s*\("
    r"|(?<![\w.>])time\s*\(\s*(?:nullptr|NULL|0)\s*\)")


def unit_of(path: str) -> str:
    """The implementation folder a path lies in ("transport/tcp"), or its layer ("transport")."""
    parts = path.split("/")
    two = "/".join(parts[:2])
    return two if two in IMPLEMENTATIONS else parts[0]


def check_include(path: str, quote: str, target: str) -> str | None:
    """What is wrong with `path` (relative to src/ or include/) including `target`, or None."""
    source, unit = path.split("/")[0], unit_of(path)
    layer, target_unit = target.split("/")[0], unit_of(target)
    if quote == "<" and ("/" not in target or layer not in LAYERS):
        if source == "kvmend" and not re.fullmatch(r"[a-z_0-9]+", target):
            return "a public header uses std types only"
        return None
    if "/" not in target or layer not in LAYERS:
        return "write includes of our own from src/ or include/, beginning with a layer"
    if LAYERS.index(layer) > LAYERS.index(source):
        return f"{source} stands above {layer}"
    if (source, layer) in FORBIDDEN_PAIRS:
        return f"{source} must not know {layer}"
    if target_unit in IMPLEMENTATIONS and unit not in {target_unit} | PICK_IMPLEMENTATIONS \
            and not path.endswith("_test.cc"):
        return f"only runtime, cli and tests may pick {target_unit}"
    return None


def violations(root: pathlib.Path) -> list[str]:
    found = []
    for base in (root / "src", root / "include"):
        for file in sorted(base.rglob("*")):
            if file.suffix not in {".h", ".cc", ".inc", ".ipp"}:
                continue
            path, shown = file.relative_to(base).as_posix(), file.relative_to(root).as_posix()
            if path.split("/")[0] not in LAYERS or "/" not in path:
                found.append(f"{shown}: stands in no layer; the layers are {', '.join(LAYERS)}")
                continue
            text = COMMENT.sub(lambda m: "\n" * m.group().count("\n"), file.read_text())
            for m in INCLUDE.finditer(text):
                if wrong := check_include(path, m[1], m[2]):
                    line = text.count("\n", 0, m.start(2)) + 1
                    found.append(f'{shown}:{line}: includes "{m[2]}": {wrong}')
            if unit_of(path) not in MAY_TOUCH_THE_WORLD:
                for m in WORLD.finditer(text):
                    line = text.count("\n", 0, m.start()) + 1
                    found.append(f"{shown}:{line}: `{m.group().strip()}` belongs in "
                                 f"{', '.join(sorted(MAY_TOUCH_THE_WORLD))}; inject it")
    return found


def test_layers_hold() -> None:
    assert not (found := violations(ROOT)), "\n" + "\n".join(found)


def test_the_checker_finds_violations() -> None:
    """Every rule, broken once and kept once."""
    bad = {
        "src/base/a.h": '#include "env/clock.h"',
        "src/health/b.cc": '#include "env/clock.h"',
        "src/session/c.cc": '#include "transport/tcp/lane.h"',
        "src/transport/tcp/d.cc": '#include "transport/local/pull.h"',
        "src/transport/lane.cc": '#include "transport/tcp/lane.h"',
        "src/kv/e.h": '  #  include "env/posix/clock.h"',
        "src/engine/e_test.cc": '#include "kv/room.h"',
        "src/wire/f.cc": '#include "frame.h"',
        "src/wire/f2.cc": '#include "../base/status.h"',
        "src/oddments/g.h": "",
        "src/h.h": "",
        "include/kvmend/i.h": '#include <fmt/format.h>',
        "include/kvmend/j.h": '#include "base/status.h"',
        "include/kvmend/j2.h": "#include <sys/socket.h>",
        "src/session/k.cc": "auto t = std::chrono::steady_clock::now();",
        "src/session/k_test.cc": "std::this_thread::sleep_for(1s);",
        "src/base/l.cc": 'const char* v = std::getenv("X");',
        "src/env/m.h": "std::random_device seed;",
        "src/base/n.cc": "/* fine */ ::usleep(3);",
    }
    good = {
        "src/base/ok.cc": '#include "base/a.h"\n#include "kvmend/status.h"\n#include <memory>',
        "src/env/posix/ok.cc": '#include "env/posix/x.h"\nauto t = std::chrono::steady_clock::now();',
        "src/transport/tcp/ok.h": '#include "transport/lane.h"\n#include "transport/tcp/d.h"',
        "src/transport/tcp/ok_test.cc": '#include "env/posix/event_loop.h"',
        "src/runtime/ok.cc": '#include "transport/tcp/lane.h"\nauto* v = getenv("KVMEND_X");',
        "src/health/ok.cc": '#include <chrono>\n// never steady_clock::now()\n#include "base/time.h"',
        "src/kv/ok.cc": "auto left = deadline.time(0); state.sleep(now); loop->sleep(3);",
        "include/kvmend/ok.h": '#include <chrono>\n#include "kvmend/status.h"',
    }
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in (bad | good).items():
            file = root / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text + "\n")
        found = violations(root)
    at = [f.split(":")[0] for f in found]
    assert sorted(at) == sorted(bad), f"missed {set(bad) - set(at)}, wrong {set(at) - set(bad)}"


if __name__ == "__main__":
    test_the_checker_finds_violations()
    problems = violations(ROOT)
    print("\n".join(problems) or "layers: clean")
    sys.exit(bool(problems))
