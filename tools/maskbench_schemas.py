#!/usr/bin/env python3
"""MaskBench, the real-world schemas of jsonschemabench, run through `moeflux schema`.

    tools/maskbench_schemas.py CHECKOUT [--moeflux build/release/apps/moeflux/moeflux] [--answers N] [--verbose]
                               [--steps build/x/tests/unit/text/step_speed --tokenizer qwen3.json] [--every K]

CHECKOUT is a copy of github.com/guidance-ai/jsonschemabench. Prints how many schemas compile as they are, and why the
others do not; how many of the valid instances are accepted and of the others refused; how long compiling takes
(processor time). --answers N has N random answers made to each schema and judged by the package jsonschema, formats
included, with multiples in exact decimals. --steps measures constrained steps on the instances. --every K takes every
K-th schema. Exit code 1 where an answer is wrong or came to a dead end, or an instance that is not valid is accepted."""
import argparse
import collections
import decimal
import glob
import json
import os
import re
import subprocess
import sys

URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*")


def read(root, every):
    for path in sorted(glob.glob(os.path.join(root, "maskbench", "data", "*.json")))[::every]:
        with open(path, encoding="utf-8") as f:
            yield os.path.basename(path), json.load(f)


def lines_of(items, answers):
    for _, item in items:
        texts = [json.dumps(t["data"], ensure_ascii=False) for t in item["tests"]]
        yield json.dumps({"schema": item["schema"], "texts": texts, "examples": answers}) + "\n"


def ask(moeflux, lines, seed):
    run = subprocess.run([moeflux, "schema", "--jsonl", "-", "--seed", str(seed)], input="".join(lines),
                         capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit("moeflux schema: " + run.stderr)
    return [json.loads(line) for line in run.stdout.split("\n") if line]


def multiple_of(validator, d, instance, schema):
    if validator.is_type(instance, "number") and not isinstance(instance, bool):
        if decimal.Decimal(repr(instance)) % decimal.Decimal(repr(d)) != 0:
            import jsonschema
            yield jsonschema.ValidationError("%r is not a multiple of %r" % (instance, d))


def same(a, b):
    """Equal as JSON: to Python false is 0 and true is 1."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(v, b[k]) for k, v in a.items())
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def one_of_values(validator, values, instance, schema):
    import jsonschema
    if not any(same(v, instance) for v in values):
        yield jsonschema.ValidationError("%r is not one of %r" % (instance, values))


def validator_of(schema):
    import jsonschema
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    dialect = schema.get("$schema", "") if isinstance(schema, dict) else ""
    if "draft-0" not in str(dialect):  # an extended validator forgets that old drafts ignore what is beside $ref
        kind = jsonschema.validators.extend(kind, {"multipleOf": multiple_of, "enum": one_of_values})
    return kind(schema, format_checker=format_checker())


def format_checker():
    """The package's own, which knows "uri" only where other packages are installed."""
    import jsonschema
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    if "uri" not in checker.checkers:
        checker.checks("uri")(lambda v: not isinstance(v, str) or URI.fullmatch(v) is not None)
    return checker


def counts_as(error):
    """An extended validator of an old draft is not used (see above), so its multiples are judged here, in decimals."""
    if error.validator == "multipleOf":
        return decimal.Decimal(repr(error.instance)) % decimal.Decimal(repr(error.validator_value)) != 0
    return True


def judge_answers(name, schema, answers, counts):
    validator = validator_of(schema)
    for text in answers:
        counts["answers"] += 1
        try:
            error = next(filter(counts_as, validator.iter_errors(json.loads(text))), None)
        except json.JSONDecodeError as e:
            error = e
        except Exception as e:  # a pattern or a reference that the judge cannot read
            counts["not judged"] += 1
            continue
        if error is not None:
            counts["wrong"] += 1
            print("WRONG     %s | %s | %s" % (name, str(getattr(error, "message", error))[:160], text[:200]))


def judge(items, replies, counts, reasons, answers, verbose):
    for (name, item), reply in zip(items, replies):
        counts["schemas"] += 1
        if not reply["compiled"]:
            reason = re.sub(r"#\S*", "#", reply["error"])
            reasons[re.sub(r'"[^"]*" leads', "... leads", reason)[:110]] += 1
            if verbose:
                print("refused   %s | %s" % (name, reply["error"]))
            continue
        counts["compiled"] += 1
        if "error" in reply:
            counts["stuck"] += 1
            print("STUCK     %s | %s" % (name, reply["error"]))
        for test, at in zip(item["tests"], reply.get("refused_at", [])):
            kind = "valid" if test["valid"] else "invalid"
            counts[kind] += 1
            counts[kind + " accepted"] += at < 0
            if (at < 0) != test["valid"] and (verbose or at < 0):
                print("%-9s %s | %s" % ("ACCEPTED" if at < 0 else "not taken", name, json.dumps(test["data"])[:120]))
        if answers:
            judge_answers(name, item["schema"], reply.get("examples", []), counts)


def share(part, whole):
    return "%d of %d (%.2f %%)" % (part, whole, 100.0 * part / whole if whole else 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout")
    parser.add_argument("--moeflux", default="build/release/apps/moeflux/moeflux")
    parser.add_argument("--answers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--steps")
    parser.add_argument("--tokenizer")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    items = list(read(args.checkout, args.every))
    counts, reasons, times = collections.Counter(), collections.Counter(), []
    for at in range(0, len(items), 500):
        some = items[at:at + 500]
        replies = ask(args.moeflux, lines_of(some, args.answers), args.seed)
        times += [r["ms"] for r in replies]
        judge(some, replies, counts, reasons, args.answers, args.verbose)
    times.sort()
    for reason, n in reasons.most_common(30):
        print("%5d  %s" % (n, reason))
    print("compiled as they are:      ", share(counts["compiled"], counts["schemas"]))
    print("valid instances accepted:  ", share(counts["valid accepted"], counts["valid"]))
    print("invalid instances refused: ", share(counts["invalid"] - counts["invalid accepted"], counts["invalid"]))
    print("compile time: 99 %% below %.1f ms, the slowest %.0f ms" % (times[len(times) * 99 // 100], times[-1]))
    if args.answers:
        print("random answers: %d, wrong %d, stuck %d, not judged %d" % (
            counts["answers"], counts["wrong"], counts["stuck"], counts["not judged"]))
    if args.steps:
        sys.stdout.flush()
        subprocess.run([args.steps, args.tokenizer], input="".join(lines_of(items, 0)).encode(), check=True)
    sys.exit(1 if counts["wrong"] or counts["stuck"] or counts["invalid accepted"] else 0)


if __name__ == "__main__":
    main()
