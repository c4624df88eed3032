"""tools/check_includes.py on small trees: every rule has an offender that it must name, with file and line."""
import os
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import check_includes  # noqa: E402


def check(files):
    """Findings for a tree given as {path: lines after `#pragma once`}."""
    with tempfile.TemporaryDirectory() as root:
        for path, text in files.items():
            full = os.path.join(root, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w", encoding="utf-8") as f:
                f.write(("#pragma once\n" if path.endswith(".h") else "") + text)
        return check_includes.check(root)


class CheckIncludes(unittest.TestCase):
    def expect(self, files, *findings):
        found = check(files)
        self.assertEqual(len(found), len(findings), found)
        for line, (place, words) in zip(found, findings):
            self.assertTrue(line.startswith(place + ": "), line)
            self.assertIn(words, line)

    def test_a_good_tree_has_no_findings(self):
        self.expect({
            "core/ids.h": "#include <cstdint>\n",
            "kernels/topk.h": '#include "core/ids.h"\n',
            "kernels/cpu/rows.h": "",
            "kernels/cpu/topk.cpp": '#include "kernels/topk.h"\n#include "kernels/cpu/rows.h"\n',
            "engine/stage.h": '#include "kernels/topk.h"\n',
            "engine/stage.cpp": '#include "engine/stage.h"\n',
            "actors/client.h": '#include "core/ids.h"\n',
            "actors/router.h": '#include <caf/all.hpp>\n#include "engine/stage.h"\n',
            "gateway/sse.h": '#include <boost/beast/http.hpp>\n#include "actors/client.h"\n',
            "apps/serve.cpp": '#include "actors/router.h"\n#include "gateway/sse.h"\n#include <CLI/CLI.hpp>\n',
            "apps/stream_client.cpp": "#include <boost/asio.hpp>\n",
            "tests/actors/x_test.cpp": '#include <caf/all.hpp>\n#include "kernels/cpu/rows.h"\n',
            "bench/b.cpp": '#include <benchmark/benchmark.h>\n#include "kernels/cpu/rows.h"\n',
        })

    def test_includes_point_down(self):
        self.expect({"core/a.h": '\n#include "engine/b.h"\n', "engine/b.h": ""},
                    ("core/a.h:3", "core may include no other room"))
        self.expect({"engine/a.h": '#include "actors/client.h"\n', "actors/client.h": ""},
                    ("engine/a.h:2", "engine may include core, kernels, model"))

    def test_rooms_of_one_level_do_not_know_each_other(self):
        self.expect({"kernels/a.h": '#include "model/b.h"\n', "model/b.h": '#include "kernels/a.h"\n'},
                    ("kernels/a.h:2", "kernels may include core"), ("model/b.h:2", "model may include core"))

    def test_nobody_includes_tests_or_bench(self):
        self.expect({"core/a.h": '#include "tests/b.h"\n', "tests/b.h": ""}, ("core/a.h:2", "nothing may include"))

    def test_back_ends_are_private(self):
        self.expect({"engine/a.h": '#include "kernels/cpu/b.h"\n', "kernels/cpu/b.h": ""},
                    ("engine/a.h:2", "private to kernels/"))

    def test_the_gateway_has_one_door_to_actors(self):
        self.expect({"gateway/a.h": '#include "actors/router.h"\n', "actors/router.h": ""},
                    ("gateway/a.h:2", "private to actors/"))

    def test_the_gateway_knows_sampling_and_no_execution(self):
        self.expect({"gateway/a.h": '#include "engine/sampling.h"\n#include "engine/forward.h"\n',
                     "engine/sampling.h": "", "engine/forward.h": ""}, ("gateway/a.h:3", "private to engine/"))

    def test_third_party_headers_have_one_home(self):
        for header in ("caf/all.hpp", "ucp/api/ucp.h", "boost/beast.hpp", "boost/asio/io_context.hpp", "rocksdb/db.h",
                       "prometheus/counter.h", "cuda_runtime.h", "cublasLt.h", "toml.hpp", "CLI/CLI.hpp",
                       "gtest/gtest.h", "benchmark/benchmark.h"):
            with self.subTest(header):
                self.expect({"model/a.cpp": f"\n\n#include <{header}>\n"}, ("model/a.cpp:3", "belongs in"))

    def test_spaces_in_the_directive_hide_nothing(self):
        self.expect({"model/a.cpp": "  #  include  <caf/all.hpp>\n"}, ("model/a.cpp:1", "belongs in"))

    def test_own_header_comes_first(self):
        self.expect({"core/a.h": "", "core/a.cpp": '#include <string>\n#include "core/a.h"\n'},
                    ("core/a.cpp:1", "first include"))

    def test_paths_start_at_the_root(self):
        self.expect({"core/a.h": "", "core/b.h": '#include "a.h"\n'}, ("core/b.h:2", "no such file"))
        self.expect({"core/a.h": "", "core/b.h": "#include <core/a.h>\n"}, ("core/b.h:2", "use quotes"))

    def test_headers_need_a_guard_unless_they_are_fragments(self):
        with tempfile.TemporaryDirectory() as root:
            os.makedirs(os.path.join(root, "core"))
            for name, text in (("a.h", "// A header.\n"), ("b.h", "// Included by c.cpp, twice.\n")):
                with open(os.path.join(root, "core", name), "w", encoding="utf-8") as f:
                    f.write(text)
            found = check_includes.check(root)
        self.assertEqual(len(found), 1, found)
        self.assertTrue(found[0].startswith("core/a.h:1: header without"), found)

    def test_unknown_rooms_are_named(self):
        self.expect({"utils/a.h": ""}, ("utils/a.h:1", "no room"))


if __name__ == "__main__":
    unittest.main()
