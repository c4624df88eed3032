#!/usr/bin/env python3
"""Check the direction of includes: rooms include only what is below them, third-party headers have one home.

    tools/check_includes.py [ROOT]

Prints `file:line: what is wrong` for every finding; exit status 1 if there are any. The rules are the tables below;
docs/decisions/0001-room-boundaries.md says why they are so.
"""
import os
import re
import sys

# Room -> rooms it may include besides itself.
BELOW = {
    "core": [],
    "kernels": ["core"],
    "model": ["core"],
    "transport": ["core"],
    "storage": ["core"],
    "monitoring": ["core"],
    "config": ["core"],
    "engine": ["core", "kernels", "model"],
    "actors": ["core", "model", "transport", "storage", "monitoring", "config", "engine"],
    "gateway": ["core", "model", "monitoring", "config", "engine", "actors"],
    "apps": ["core", "kernels", "model", "transport", "storage", "monitoring", "config", "engine", "actors", "gateway"],
}
# These see every room, and no room sees them.
OUTSIDE = ("tests", "bench")

# (our headers, who may include them besides their own room), as patterns. tests/ may include all of them.
PRIVATE = [
    # The operations' headers are the interface; what is behind them is the room's own business.
    (r"kernels/(cpu|cuda)/", r"bench/"),
    # The gateway sees actors through one door, which shows no CAF type.
    (r"actors/(?!client)", r"apps/|bench/"),
    # Of engine/ it knows the types that pass this door: what a request asks for, what an event tells.
    (r"engine/(?!(sampling|decode_engine|structured/output_rules)\.h)", r"actors/|apps/|bench/"),
]

# Third-party header pattern -> path patterns of the files that may include it. tests/ may include all of them.
HOMES = [
    (r"caf/", [r"actors/"]),
    (r"(ucp|uct|ucs|ucm)/", [r"transport/"]),
    (r"boost/(beast|asio)", [r"gateway/", r"apps/(chat|stream_client|stream_socket\w*)\."]),
    (r"openssl/ssl", [r"gateway/", r"actors/network\.cpp$", r"apps/stream_socket_tls\."]),
    (r"rocksdb/", [r"storage/"]),
    (r"prometheus/", [r"monitoring/"]),
    (r"(cuda|cublas|curand|cusparse|cudnn|nccl|nvrtc|nvtx|cub/|thrust/|cooperative_groups|mma\.h)",
     [r"kernels/cuda/", r"core/device_cuda\.cpp$", r"bench/"]),
    (r"hwy/", [r"kernels/"]),
    (r"toml", [r"config/"]),
    (r"CLI/", [r"apps/", r"bench/"]),
    (r"(gtest|gmock)/", []),
    (r"benchmark/", [r"bench/"]),
]

SOURCES = (".h", ".hpp", ".cpp", ".cc", ".cu", ".cuh", ".inc")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def source_files(root):
    """Paths relative to root of every source file in a room, in tests/ or in bench/, and of strays in unknown folders."""
    for top in sorted(os.listdir(root)):
        if top.startswith((".", "build")) or not os.path.isdir(os.path.join(root, top)):
            continue
        for folder, folders, names in os.walk(os.path.join(root, top)):
            folders.sort()
            for name in sorted(names):
                if name.endswith(SOURCES):
                    yield os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")


def own_header(path):
    """The header of the same name beside a .cpp, which must be its first include so that it is known to stand alone."""
    stem, ending = os.path.splitext(path)
    return stem + ".h" if ending in (".cpp", ".cu") else None


def is_fragment(lines):
    """True for a header that only makes sense at a certain place of another file, which its first comment must say."""
    comment = []
    for line in lines:
        if not line.startswith("//"):
            break
        comment.append(line)
    return re.search(r"Included (by|once)|including file", " ".join(comment)) is not None


def check_project_include(path, room, target):
    target_room = target.split("/")[0]
    if room not in OUTSIDE:
        if target_room in OUTSIDE + ("tools", "docs"):
            return f"{room}/ includes {target}: nothing may include {target_room}/"
        if target_room != room and target_room not in BELOW[room]:
            return f"{room}/ includes {target}: {room} may include {', '.join(BELOW[room]) or 'no other room'}"
    if room not in (target_room, "tests"):
        for private, allowed in PRIVATE:
            if re.match(private, target) and not re.match(allowed, path):
                return f"{target} is private to {target_room}/"
    return None


def check_third_party(path, target):
    if path.startswith("tests/"):
        return None
    for pattern, allowed in HOMES:
        if re.match(pattern, target) and not any(re.match(p, path) for p in allowed):
            home = ", ".join(p.replace("\\.", ".").rstrip("$") for p in allowed) or "tests/"
            return f"<{target}> belongs in {home}"
    return None


def check_file(root, path):
    """[(line number, message)] of one file."""
    room = path.split("/")[0]
    if room not in BELOW and room not in OUTSIDE:
        return [(1, f"{room}/ is no room: add it to tools/check_includes.py with what it may include, or move the file")]
    found, first = [], None
    with open(os.path.join(root, path), encoding="utf-8") as f:
        lines = f.readlines()
        for number, line in enumerate(lines, 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            quote, target = match.groups()
            first = first or target
            top = target.split("/")[0]
            ours = (top in BELOW or top in OUTSIDE) and "/" in target
            exists = ours and os.path.exists(os.path.join(root, target))
            if quote == '"' and not exists:
                found.append((number, f'"{target}": no such file from the root of the repository'))
            elif quote == "<" and exists:
                found.append((number, f"<{target}> is our own: use quotes"))
            message = (check_project_include(path, room, target) if exists
                       else check_third_party(path, target) if quote == "<" else None)
            if message:
                found.append((number, message))
    if path.endswith((".h", ".hpp", ".cuh")) and "#pragma once\n" not in lines and not is_fragment(lines):
        found.append((1, "header without #pragma once (a fragment's first comment says `Included by ...`)"))
    own = own_header(path)
    if own and os.path.exists(os.path.join(root, own)) and first != own:
        found.append((1, f'the first include must be the own header "{own}"'))
    return found


def check(root):
    """Every finding as text."""
    return [f"{path}:{number}: {message}" for path in source_files(root) for number, message in check_file(root, path)]


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    found = check(root)
    for line in found:
        print(line)
    if not found:
        print(f"check_includes: {sum(1 for _ in source_files(root))} files, no finding")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
