#!/usr/bin/env python3
"""Write fresh lookup prompts for the demo model, with the answers wanted, as JSON lines.

    make_prompts.py --output prompts.jsonl [--seed 1] [--lengths 250,1000,4000,8000] [--per-cell 1] [--ratio 154]
    cedar generate --model config/demo --input prompts.jsonl --output answers.jsonl
    check_answers.py prompts.jsonl answers.jsonl

One line is one request of the chat API ("id", "messages", greedy sampling, thinking off) with, beside it, what a test
wants to know: "kind", "want", "target_tokens", "prompt_tokens" and "answer_tokens" (chat markup and end of sentence
included), counted with the demo tokenizer.

First --per-cell prompts for each of the six kinds at each length; then, because an agent's traffic has 154 tokens read
for one written and long documents alone have far more, shorter ones until the whole set is at --ratio (0 leaves them
out). The same arguments give the same file, byte for byte; needs nothing but Python.
"""
import argparse
import json
import os
import random
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import bpe  # noqa: E402
import data  # noqa: E402

TOLERANCE = 0.04  # how far a prompt may be from its target length
MAX_TOKENS = 48   # more than the longest answer; a model that rambles is cut off


def prompt_text(content):
    return data.BOS + data.USER + content + data.ASSIST + data.THINK_END


def make(tok, seed, kind, target, number):
    """One request whose prompt is within TOLERANCE of `target` tokens."""
    rng = random.Random(f"{seed}/{kind}/{target}/{number}")
    ask_tokens = 12  # chat markup and the question
    size = max(target - ask_tokens, 20)
    for _ in range(60):
        doc, qa = data.document(rng, size, kind)
        question, want = rng.choice(qa)
        content = doc + "\n\n" + question
        tokens = len(tok.encode(prompt_text(content)))
        if abs(tokens - target) <= max(TOLERANCE * target, 14):
            return {
                "id": f"{kind}-{target}-{number}", "messages": [{"role": "user", "content": content}],
                "temperature": 0, "max_tokens": MAX_TOKENS, "thinking": {"type": "disabled"},
                "kind": kind, "want": want, "target_tokens": target, "prompt_tokens": tokens,
                "answer_tokens": len(tok.encode(want + data.EOS)),
            }
        size = max(20, size * target / tokens)
    raise SystemExit(f"no {kind} document of {target} tokens found: lines are longer than that")


def make_all(tok, seed, kinds, lengths, per_cell, ratio):
    out = [make(tok, seed, kind, length, number)
           for length in lengths for kind in kinds for number in range(per_cell)]
    number = per_cell
    shorter = [length for length in sorted(lengths) if length / 8 < ratio][:2]
    while ratio and shorter and read(out) > ratio * written(out):
        for kind in kinds:
            for length in shorter:
                if read(out) > ratio * written(out):
                    out.append(make(tok, seed, kind, length, number))
        number += 1
    return out


def read(prompts):
    return sum(p["prompt_tokens"] for p in prompts)


def written(prompts):
    return sum(p["answer_tokens"] for p in prompts)


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--output", required=True, help="file to write, or - for standard output")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--lengths", default="250,1000,4000,8000", help="prompt lengths in tokens")
    ap.add_argument("--kinds", default=",".join(data.KINDS))
    ap.add_argument("--per-cell", type=int, default=1, help="prompts of each kind and length")
    ap.add_argument("--ratio", type=float, default=154, help="tokens read per token written over the whole set; 0: any")
    ap.add_argument("--tokenizer", default=os.path.join(HERE, "..", "..", "config", "demo", "tokenizer.json"))
    args = ap.parse_args()
    kinds = args.kinds.split(",")
    for kind in kinds:
        if kind not in data.KINDS:
            ap.error(f"--kinds: '{kind}' is not one of {', '.join(data.KINDS)}")
    lengths = [int(n) for n in args.lengths.split(",")]
    if min(lengths) < 60:
        ap.error("--lengths: the shortest document has 60 tokens")
    prompts = make_all(bpe.load(args.tokenizer), args.seed, kinds, lengths, args.per_cell, args.ratio)
    out = sys.stdout if args.output == "-" else open(args.output, "w", encoding="utf-8")
    with out:
        for p in prompts:
            out.write(json.dumps(p, ensure_ascii=False) + "\n")
    print(f"{len(prompts)} prompts, {read(prompts)} tokens to read, {written(prompts)} to write, "
          f"{read(prompts) / written(prompts):.0f}:1", file=sys.stderr)


if __name__ == "__main__":
    main()
