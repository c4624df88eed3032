"""tools/run_tests.py: what the last line of `make test` counts."""
import os
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import run_tests  # noqa: E402

# What ctest 3.25 writes for each outcome.
OK = '<testcase name="a" classname="a" time="0.1" status="run">\n<system-out></system-out>\n</testcase>\n'
FAILED = ('<testcase name="b" classname="b" time="0.1" status="fail">\n<failure message=""/>\n'
          '<system-out>status=&quot;run&quot;\n</system-out>\n</testcase>\n')
SKIPPED = ('<testcase name="c" classname="c" time="0.1" status="notrun">\n'
           '<skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>\n<system-out>x</system-out>\n</testcase>\n')
DISABLED = '<testcase name="d" classname="d" time="0" status="disabled">\n<system-out/>\n</testcase>\n'
NO_PROGRAM = ('<testcase name="e" classname="e" time="0" status="notrun">\n'
              '<skipped message="Unable to find executable"/>\n<system-out/>\n</testcase>\n')


class Count(unittest.TestCase):
    def test_each_outcome(self):
        self.assertEqual(run_tests.count(OK), (1, 0, 0))
        self.assertEqual(run_tests.count(FAILED), (0, 1, 0))
        self.assertEqual(run_tests.count(SKIPPED), (0, 0, 1))
        self.assertEqual(run_tests.count(DISABLED), (0, 0, 1))
        self.assertEqual(run_tests.count(NO_PROGRAM), (0, 1, 0), "a test whose program is missing has failed")

    def test_sums(self):
        self.assertEqual(run_tests.count("<testsuite>" + (OK * 5 + FAILED + SKIPPED) * 2 + "</testsuite>"), (10, 2, 2))
        self.assertEqual(run_tests.count("<testsuite></testsuite>"), (0, 0, 0))


if __name__ == "__main__":
    unittest.main()
