"""What the programs that draw a benchmark's result share: their command line, reading the file, writing the picture."""
import argparse
import json
import os
import sys


def main(doc, made_by, fits, draw):
    """`fits(report)` says whether it is a result of `made_by`; `draw(pyplot, report)` returns a figure. Returns the exit status."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", help="file written by --json")
    parser.add_argument("-o", "--output", required=True, help="picture to write")
    options = parser.parse_args()
    try:
        with open(options.result, encoding="utf-8") as f:
            report = json.load(f)
        if not isinstance(report, dict) or not fits(report):
            raise ValueError(f"{options.result}: not a result of {made_by}")
    except (OSError, ValueError) as error:
        print(f"{os.path.basename(sys.argv[0]).removesuffix('.py')}: {error}", file=sys.stderr)
        return 1

    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    draw(pyplot, report).savefig(options.output, dpi=130)
    return 0
