#!/usr/bin/env python3
"""Configure, build and run the tests of one preset; the last line is `N passed, N failed[, N skipped]`.

    tools/run_tests.py [--preset release] [CTEST ARGUMENTS, such as -R Arena]

Exit status 0 only if everything was built and every test that ran passed. A build that fails counts as one failure.
"""
import argparse
import os
import re
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def run(command):
    """Run in the repository root, output straight through."""
    sys.stdout.flush()
    return subprocess.run(command, cwd=ROOT).returncode


def count(junit_text):
    """(passed, failed, skipped) of a JUnit file that ctest wrote.

    ctest's own totals are no help: it counts a skipped test as passed, and a test whose program is missing as skipped.
    """
    passed = failed = skipped = 0
    for head, body in re.findall(r"<testcase ([^>]*)>(.*?)</testcase>", junit_text, re.S):
        status = re.search(r'status="(\w+)"', head).group(1)
        if status == "run":
            passed += 1
        elif status == "disabled" or (status == "notrun" and re.search(r'<skipped message="SKIP_', body)):
            skipped += 1
        else:
            failed += 1
    return passed, failed, skipped


def report(passed, failed, skipped=0):
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""), flush=True)
    return 1 if failed else 0


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--preset", default="release")
    args, ctest_arguments = ap.parse_known_args()
    start = time.monotonic()
    for step in (["cmake", "--preset", args.preset], ["cmake", "--build", "--preset", args.preset]):
        if run(step) != 0:
            print(" ".join(step) + " failed")
            return report(0, 1)
    print(f"built in {time.monotonic() - start:.0f} s", flush=True)

    junit = os.path.join(ROOT, "build" if args.preset == "release" else f"build-{args.preset}", "ctest.xml")
    if os.path.exists(junit):
        os.remove(junit)
    start = time.monotonic()
    jobs = str(len(os.sched_getaffinity(0)))
    status = run(["ctest", "--preset", args.preset, "-j", jobs, "--output-junit", junit] + ctest_arguments)
    print(f"tested in {time.monotonic() - start:.0f} s", flush=True)
    if not os.path.exists(junit):
        print("ctest wrote no results")
        return report(0, 1)
    with open(junit, encoding="utf-8", errors="replace") as f:
        passed, failed, skipped = count(f.read())
    if status != 0 and failed == 0:
        print(f"ctest ended with status {status} although no test failed")
        failed = 1
    return report(passed, failed, skipped)


if __name__ == "__main__":
    sys.exit(main())
