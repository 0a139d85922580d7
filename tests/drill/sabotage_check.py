#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every row of the catalogue, sabotaged, must fail, and for the reason that its sabotage is.

sabotage_check.py DRILL OPTIONS...: runs DRILL --catalogue all --sabotage each and looks at its JSON.
"""
import json
import os
import re
import subprocess
import sys
import tempfile

REASONS = {
    "takeover": r"adopted nothing|were sealed on all ranks, 0 were adopted",
    "held up, then a takeover": r"is not whole again",
    "unnoticed, then a takeover": r"is not whole again|no successor serves|streams through the next relay failed",
}


def main():
    drill, options = sys.argv[1], sys.argv[2:]
    rows = json.loads(subprocess.run([drill, "--list", "--json", "-"], check=True, capture_output=True).stdout)["faults"]
    with tempfile.TemporaryDirectory(prefix="drill.", dir="/tmp") as scratch:
        report = os.path.join(scratch, "report.json")
        command = [drill, "--catalogue", "all", "--sabotage", "each", "--json", report, *options]
        run = subprocess.run(command, env={**os.environ, "TMPDIR": scratch}, check=False)
        with open(report, encoding="utf-8") as file:
            rounds = json.load(file)["rounds"]
    wrong = [] if run.returncode == 1 else [f"exit code {run.returncode}, expected 1"]
    if [row["name"] for row in rows] != [one["fault"] for one in rounds]:
        wrong.append("not every row was carried out")
    skipped = 0
    for one in rounds:
        if one["verdict"] == "skipped":
            skipped += 1
        elif one["verdict"] != "failed":
            wrong.append(f"{one['fault']} {one['verdict']} although it was sabotaged: {one['reason']}")
        elif not any(re.search(REASONS[one["outcome"]], text) for text in one["failures"]):
            wrong.append(f"{one['fault']} failed for another reason: {one['reason']}")
    for text in wrong:
        print("sabotage_check: " + text, file=sys.stderr)
    print(f"{len(rounds) - skipped} of {len(rounds)} sabotaged rows failed as they must, {skipped} skipped")
    sys.exit(1 if wrong or skipped > 4 else 0)


main()
