#!/usr/bin/env python3
"""The JSON-Schema-Test-Suite, run through `moeflux schema`.

    tools/schema_suite.py CHECKOUT [--moeflux build/release/apps/moeflux/moeflux] [--verbose]

CHECKOUT is a copy of github.com/json-schema-org/JSON-Schema-Test-Suite. For each draft: how many schemas are refused
(those that no value satisfies, by the suite too, are counted apart), how many texts that are not valid are accepted,
which must be none, and how many valid ones are. Exit code 1 where one that is not valid is accepted, or a refusal does
not name a keyword and its place. --verbose lists the refusals."""
import argparse
import collections
import glob
import json
import os
import re
import subprocess
import sys

DRAFTS = ["draft2020-12", "draft2019-09", "draft7", "draft6", "draft4"]
PLACE = re.compile(r'JSON Schema: #\S*.*"\S+"|no text satisfies')


def groups_of(root, draft):
    for path in sorted(glob.glob(os.path.join(root, "tests", draft, "*.json"))):
        with open(path, encoding="utf-8") as f:
            for group in json.load(f):
                yield os.path.basename(path), group


def ask(moeflux, lines):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    run = subprocess.run([moeflux, "schema", "--jsonl", "-"], input=text, capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit("moeflux schema: " + run.stderr)
    return [json.loads(line) for line in run.stdout.split("\n") if line]


def judge(draft, groups, replies, verbose):
    counts = collections.Counter()
    for (name, group), reply in zip(groups, replies):
        where = "%s %s: %s" % (draft, name, group["description"])
        counts["schemas"] += 1
        if not reply["compiled"]:
            empty = "no text satisfies" in reply["error"] and not any(t["valid"] for t in group["tests"])
            counts["empty" if empty else "refused"] += 1
            if not PLACE.search(reply["error"]):
                counts["nameless"] += 1
                print("NO PLACE  ", where, "|", reply["error"])
            if verbose and not empty:
                print("refused   ", where, "|", reply["error"])
            continue
        for test, at in zip(group["tests"], reply["refused_at"]):
            kind = "valid" if test["valid"] else "invalid"
            counts[kind] += 1
            counts[kind + " accepted"] += at < 0
            if at < 0 and not test["valid"]:
                print("ACCEPTED  ", where, "|", test["description"])
            if at >= 0 and test["valid"] and verbose:
                print("not taken ", where, "|", test["description"])
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout")
    parser.add_argument("--moeflux", default="build/release/apps/moeflux/moeflux")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    wrong = False
    print("%-14s %8s %8s %8s %18s %18s" % ("", "schemas", "refused", "empty", "invalid accepted", "valid accepted"))
    for draft in DRAFTS:
        groups = list(groups_of(args.checkout, draft))
        lines = [{"schema": g["schema"], "texts": [json.dumps(t["data"], ensure_ascii=False) for t in g["tests"]]}
                 for _, g in groups]
        c = judge(draft, groups, ask(args.moeflux, lines), args.verbose)
        print("%-14s %8d %8d %8d %11d of %4d %10d of %5d" % (
            draft, c["schemas"], c["refused"], c["empty"], c["invalid accepted"], c["invalid"], c["valid accepted"],
            c["valid"]))
        wrong = wrong or c["invalid accepted"] > 0 or c["nameless"] > 0
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
