#!/usr/bin/env python3
"""Writes images.json: what Pillow makes of synthetic images on the way to the vision tower.

Needs numpy and Pillow before 12.2: 12.2 resizes the rows of very tall images before their columns, 13 those of any
image where that is cheaper, and the other order gives other pixels than the model saw in training. For every case: the sizes, the plan of spec section 12.1 for the configuration it names,
and the FNV-1a digest of the padded canvas (8-bit RGB, row-major). `stretch` cases are plain resizes. The pixels
come from a formula that the test repeats, so no picture has to be stored.
"""
import json
import math
import random

import numpy as np
import PIL
from PIL import Image, ImageOps

CONFIGS = {
    "mini": dict(patch=10, ratio=2, max_tokens=48, min_pixels=3600),
    "release": dict(patch=14, ratio=3, max_tokens=1024, min_pixels=295936),
}


def synthetic(width, height, seed):
    """Squares of noise and of ramps, so that both hard edges and smooth parts are resampled."""
    y, x, c = np.meshgrid(np.arange(height, dtype=np.uint32), np.arange(width, dtype=np.uint32),
                          np.arange(3, dtype=np.uint32), indexing="ij")
    h = x * np.uint32(73856093) ^ y * np.uint32(19349663) ^ c * np.uint32(83492791) ^ np.uint32(seed)
    h ^= h >> np.uint32(13)
    h *= np.uint32(0x5BD1E995)
    h ^= h >> np.uint32(15)
    ramp = x * np.uint32(3) + y * np.uint32(5) + c * np.uint32(40)
    odd = ((x >> np.uint32(3)) + (y >> np.uint32(3))) & np.uint32(1)
    return np.where(odd == 1, h, ramp).astype(np.uint8)


def fnv1a(data):
    digest = 0xCBF29CE484222325
    for byte in data:
        digest = (digest ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{digest:016x}"


def plan(width, height, patch, ratio, max_tokens, min_pixels):
    cell = patch * ratio
    if width * height < min_pixels:
        up = (min_pixels / (width * height)) ** 0.5
        width, height = int(width * up), int(height * up)
    bw, bh = math.ceil(width / patch) * patch, math.ceil(height / patch) * patch
    grid = lambda: (math.ceil(bh // patch / ratio), math.ceil(bw // patch / ratio))
    gh, gw = grid()
    if gh * (gw + 1) + 2 > max_tokens:
        aspect = height / width
        fw = math.sqrt((max_tokens - 2) / aspect + 0.25) - 0.5
        fh = fw * aspect
        if fw < 1:
            bh, bw = (max_tokens - 2) // 2 * cell, cell
        elif fh < 1:
            bh, bw = cell, (max_tokens - 3) * cell
        else:
            beta = min(math.floor(fw) * cell / width, math.floor(fh) * cell / height)
            bh = math.floor(height * beta / patch) * patch
            bw = math.floor(width * beta / patch) * patch
        gh, gw = grid()
    return gh, gw, bh, bw


def main():
    rng = random.Random(41)
    sizes = {
        "mini": [(40, 30), (1, 1), (10, 10), (60, 60), (61, 59), (200, 190), (640, 480), (1000, 30), (30, 1000),
                 (3, 700), (700, 3)] + [(rng.randint(1, 400), rng.randint(1, 400)) for _ in range(30)],
        "release": [(544, 544), (546, 546), (640, 480), (100, 3000), (17, 23), (1920, 1080)],
    }
    assert tuple(map(int, PIL.__version__.split(".")[:2])) < (12, 2), "see above"
    cases = []
    for config, shapes in sizes.items():
        for number, (width, height) in enumerate(shapes):
            gh, gw, bh, bw = plan(width, height, **CONFIGS[config])
            image = Image.fromarray(synthetic(width, height, number))
            canvas = ImageOps.pad(image, (bw, bh), color=(127, 127, 127))
            cases.append(dict(config=config, seed=number, width=width, height=height, plan=[gh, gw, bh, bw],
                              fnv1a=fnv1a(np.asarray(canvas).tobytes())))
    stretch = []
    for number in range(25):
        w, h, tw, th = (rng.randint(1, 200) for _ in range(4))
        if number % 5 == 0:
            tw = w
        if number % 5 == 1:
            th = h
        out = Image.fromarray(synthetic(w, h, number)).resize((tw, th), Image.Resampling.BICUBIC)
        stretch.append(dict(seed=number, width=w, height=h, to=[tw, th], fnv1a=fnv1a(np.asarray(out).tobytes())))
    plans = []
    for config in CONFIGS:
        for _ in range(150):
            top = 10 ** rng.uniform(0.5, 4)
            width, height = (max(1, int(10 ** rng.uniform(0, math.log10(top)))) for _ in range(2))
            plans.append([config, width, height, *plan(width, height, **CONFIGS[config])])
    with open("images.json", "w") as out:
        out.write('{"pillow": "%s",\n "cases": [\n  ' % PIL.__version__)
        out.write(",\n  ".join(json.dumps(c) for c in cases))
        out.write('],\n "stretch": [\n  ' + ",\n  ".join(json.dumps(c) for c in stretch))
        out.write('],\n "plans": [\n  ' + ",\n  ".join(json.dumps(c) for c in plans) + "]}\n")


if __name__ == "__main__":
    main()
