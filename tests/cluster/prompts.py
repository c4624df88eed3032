"""Prompts as token ids, and what one process answers to them."""
import json
import os
import random

import harness

SEED = 20


def model_config(model):
    with open(os.path.join(model, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    return config.get("text_config", config)


def golden():
    """Of both models: name -> ids."""
    with open(os.path.join(harness.ROOT, "tests", "golden", "demo", "prompts.json"), encoding="utf-8") as f:
        demo = {prompt["name"]: prompt["ids"] for prompt in json.load(f)}
    with open(os.path.join(harness.ROOT, "tests", "golden", "manifest.json"), encoding="utf-8") as f:
        mini = json.load(f)["prompts"]
    return {harness.DEMO: demo, harness.MINI: mini}


def around_blocks(model, blocks):
    """Random prompts of exactly k KV blocks, one token less, one more, and odd lengths."""
    block = model_config(model)["sliding_window"]
    rng = random.Random(SEED)
    lengths = sorted({1, 2, 3, block // 2 | 1} | {k * block + d for k in blocks for d in (-1, 0, 1)})
    vocabulary = model_config(model)["vocab_size"]
    return {f"random_{n}": [rng.randrange(10, min(vocabulary, 1000)) for _ in range(n)] for n in lengths}
