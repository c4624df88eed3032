"""tools/demo_model: the prompt generator is deterministic, keeps its lengths and ratio, and its checker counts right."""
import contextlib
import io
import json
import os
import sys
import tempfile
import unittest
from unittest import mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools", "demo_model"))
import bpe  # noqa: E402
import check_answers  # noqa: E402
import data  # noqa: E402
import make_prompts  # noqa: E402

TOKENIZER = os.path.join(ROOT, "config", "demo", "tokenizer.json")
LENGTHS = [250, 1000, 4000, 8000]


class MakePrompts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tok = bpe.load(TOKENIZER)
        cls.prompts = make_prompts.make_all(cls.tok, 1, list(data.KINDS), LENGTHS, 1, 154)

    def test_every_kind_at_every_length(self):
        cells = {(p["kind"], p["target_tokens"]) for p in self.prompts}
        self.assertEqual(cells, {(k, n) for k in data.KINDS for n in LENGTHS})
        self.assertEqual(len({p["id"] for p in self.prompts}), len(self.prompts))

    def test_lengths_are_near_their_targets(self):
        for p in self.prompts:
            self.assertLessEqual(abs(p["prompt_tokens"] - p["target_tokens"]), max(0.04 * p["target_tokens"], 14), p["id"])

    def test_the_set_reads_154_tokens_for_one_written(self):
        self.assertAlmostEqual(make_prompts.read(self.prompts) / make_prompts.written(self.prompts), 154, delta=4)

    def test_the_answer_is_in_the_document_once(self):
        for p in self.prompts:
            self.assertEqual(p["messages"][0]["content"].count(p["want"]), 1, p["id"])
            self.assertLess(p["answer_tokens"], p["max_tokens"])

    def test_same_seed_same_prompts_other_seed_others(self):
        again = make_prompts.make_all(self.tok, 1, ["logs"], [250], 2, 0)
        self.assertEqual(again, make_prompts.make_all(self.tok, 1, ["logs"], [250], 2, 0))
        self.assertNotEqual(again, make_prompts.make_all(self.tok, 2, ["logs"], [250], 2, 0))
        self.assertNotEqual(again[0]["messages"], again[1]["messages"])

    def test_tokens_are_those_of_the_golden_prompts(self):
        with open(os.path.join(ROOT, "tests", "golden", "demo", "prompts.json"), encoding="utf-8") as f:
            for record in json.load(f):
                self.assertEqual(self.tok.encode(record["prompt"]), record["ids"], record["name"])


class CheckAnswers(unittest.TestCase):
    def run_on(self, answers):
        prompts = [{"id": n, "kind": "logs", "target_tokens": 250, "want": "E1 disk failed"} for n in ("a", "b", "c")]
        with tempfile.TemporaryDirectory() as folder:
            paths = [os.path.join(folder, name) for name in ("prompts.jsonl", "answers.jsonl")]
            for path, rows in zip(paths, (prompts, answers)):
                with open(path, "w", encoding="utf-8") as f:
                    f.writelines(json.dumps(row) + "\n" for row in rows)
            out = io.StringIO()
            with mock.patch.object(sys, "argv", ["check_answers"] + paths), contextlib.redirect_stdout(out):
                status = check_answers.main()
        return status, out.getvalue().splitlines()[-1]

    def test_exact_text_passes_and_anything_else_fails(self):
        right = [{"id": n, "text": "E1 disk failed"} for n in ("a", "b", "c")]
        self.assertEqual(self.run_on(right), (False, "3 passed, 0 failed"))
        self.assertEqual(self.run_on(right[:2]), (True, "2 passed, 1 failed"))
        self.assertEqual(self.run_on(right[:2] + [{"id": "c", "text": "E1 disk failed "}]), (True, "2 passed, 1 failed"))


if __name__ == "__main__":
    unittest.main()
