#!/usr/bin/env python3
"""Write a checkpoint of eight layers with the release's shapes and random weights, to time what one GPU does with them.

    bench/engine/make_slice.py OUT_DIR [--experts 128] [--config tests/golden/release/config.json]

Layers: two with windows only, one that writes global KV of ratio 2 and one that reuses it (the encoder half), then one
that writes global KV of ratio 1 and makes the candidate pool, one that reuses its list, one that chooses anew inside the
pool, and one that reuses that. No Engram, drafter or vision tower. Fewer experts than the release's 384 save disk: a step
of few rows reads as many of them either way.
"""
import argparse
import json
import math
import multiprocessing
import os
import struct

import numpy

BYTES = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1}
RATIOS = [0, 0, 2, 2, 1, 1, 1, 1]


def slice_config(path, experts):
    with open(path, encoding="utf-8") as f:
        config = json.load(f)
    config.pop("vision_config", None)
    text = config["text_config"]
    text.update(num_hidden_layers=len(RATIOS), compress_ratios=RATIOS, kv_source_layer_ids=[2, 4],
                index_source_layer_ids=[2, 4, 6], candidate_source_layer_id=4, engram_layer_ids=[],
                engram_num_embeddings=[], num_nextn_predict_layers=0, dspark_target_layer_ids=[], n_routed_experts=experts)
    return config


def tensors_of_layer(c, layer):
    """(name, dtype, shape) of every tensor of a layer."""
    d, heads, dim, inner = c["hidden_size"], c["num_attention_heads"], c["head_dim"], c["moe_intermediate_size"]
    out = []

    def plain(name, dtype, *shape):
        out.append((f"layers.{layer}.{name}", dtype, list(shape)))

    def fp8(name, rows, columns):
        plain(name + ".weight", "F8_E4M3", rows, columns)
        plain(name + ".scale", "F8_E8M0", math.ceil(rows / 32), math.ceil(columns / 32))

    def fp4(name, rows, columns):
        plain(name + ".weight", "I8", rows, columns // 2)
        plain(name + ".scale", "F8_E8M0", rows, columns // 32)

    fp8("attn.wq_a", c["q_lora_rank"], d)
    plain("attn.q_norm.weight", "BF16", c["q_lora_rank"])
    fp8("attn.wq_b", heads * dim, c["q_lora_rank"])
    fp8("attn.wkv", dim, d)
    plain("attn.kv_norm.weight", "BF16", dim)
    plain("attn.attn_sink", "F32", heads)
    fp8("attn.wo_a", c["o_groups"] * c["o_lora_rank"], heads // c["o_groups"] * dim)
    fp8("attn.wo_b", d, c["o_groups"] * c["o_lora_rank"])
    for norm in ("attn_norm", "ffn_norm"):
        plain(norm + ".weight", "BF16", d)
    copies = c["hc_mult"]
    for name in ("hc_attn", "hc_ffn"):
        plain(name + "_fn", "F32", 2 * copies + copies * copies, copies * d)
        plain(name + "_base", "F32", 2 * copies + copies * copies)
        plain(name + "_scale", "F32", 3)
    plain("ffn.gate.weight", "BF16", c["n_routed_experts"], d)
    plain("ffn.gate.bias", "F32", c["n_routed_experts"])
    for weight, shape in (("w1", (inner, d)), ("w2", (d, inner)), ("w3", (inner, d))):
        fp8("ffn.shared_experts." + weight, *shape)
        for e in range(c["n_routed_experts"]):
            fp4(f"ffn.experts.{e}.{weight}", *shape)
    if layer in c["kv_source_layer_ids"]:
        for part in ("wkv", "wgate")[:1 if RATIOS[layer] == 1 else 2]:
            plain(f"attn.compressor.{part}.weight", "BF16", dim, d)
        plain("attn.compressor.norm.weight", "BF16", dim)
        plain("attn.indexer.wk.weight", "BF16", c["index_head_dim"], dim)
        plain("attn.indexer.k_norm.weight", "BF16", c["index_head_dim"])
    if layer in c["index_source_layer_ids"]:
        fp8("attn.indexer.wq_b", c["index_n_heads"] * c["index_head_dim"], c["q_lora_rank"])
        plain("attn.indexer.weights_proj.weight", "BF16", c["index_n_heads"], d)
    return out


def values(random, name, dtype, count):
    """Bytes of `count` random elements, of a size that keeps activations where a model has them."""
    if dtype == "I8":
        return random.integers(0, 256, count, dtype=numpy.uint8)
    if dtype == "F8_E8M0":
        return random.integers(117, 121, count, dtype=numpy.uint8)
    if dtype == "F8_E4M3":  # below 2 in magnitude
        return random.integers(0, 256, count, dtype=numpy.uint8) & numpy.uint8(0xBF)
    if "norm" in name:
        numbers = numpy.ones(count, dtype=numpy.float32)
    else:
        numbers = random.standard_normal(count, dtype=numpy.float32) * numpy.float32(0.02)
    return numbers.view(numpy.uint8) if dtype == "F32" else (numbers.view(numpy.uint32) >> 16).astype(numpy.uint16).view(numpy.uint8)


def write_file(job):
    path, tensors, seed = job
    random = numpy.random.default_rng(seed)
    header, at = {}, 0
    for name, dtype, shape in tensors:
        size = math.prod(shape) * BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name, dtype, shape in tensors:
            f.write(values(random, name, dtype, math.prod(shape)).tobytes())
    return at


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("out")
    ap.add_argument("--experts", type=int, default=128)
    ap.add_argument("--config", default="tests/golden/release/config.json")
    args = ap.parse_args()
    os.makedirs(args.out, exist_ok=True)
    config = slice_config(args.config, args.experts)
    text = config["text_config"]
    ends = [("embed.weight", "BF16", [text["vocab_size"], text["hidden_size"]]), ("norm.weight", "BF16", [text["hidden_size"]]),
            ("head.weight", "BF16", [text["vocab_size"], text["hidden_size"]])]
    parts = [tensors_of_layer(text, layer) for layer in range(len(RATIOS))] + [ends[:1], ends[1:]]
    jobs, weight_map = [], {}
    for i, tensors in enumerate(parts):
        name = f"model-{i + 1:05}-of-{len(parts):05}.safetensors"
        jobs.append((os.path.join(args.out, name), tensors, i))
        weight_map.update({tensor[0]: name for tensor in tensors})
    with multiprocessing.Pool(min(len(jobs), os.cpu_count())) as pool:
        total = sum(pool.map(write_file, jobs, chunksize=1))
    with open(os.path.join(args.out, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=1)
    with open(os.path.join(args.out, "model.safetensors.index.json"), "w", encoding="utf-8") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, f)
    print(f"{args.out}: {total / 1e9:.1f} GB")


if __name__ == "__main__":
    main()
