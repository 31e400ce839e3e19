#!/usr/bin/env python3
"""google/minja's tests of its syntax, tests/test-syntax.cpp, run on moeflux.

    python3 tools/jinja_minja.py MINJA build/test/tests/unit/text/jinja_render [-v]
    python3 tools/jinja_minja.py MINJA --sample N    lines for tests/data/text/jinja_samples.jsonl

A case is EXPECT_EQ(text, render(template, variables, options)) or EXPECT_THAT([]() { render(...) }, Throws...). Where
the suite expects something else than jinja2 itself (python3-jinja2) gives, jinja2 is right."""
import re
import sys

from jinja_suite import Reader, Table, ours, sample, theirs

OPTIONS = {"lstrip_blocks": {"trim_blocks": False, "lstrip_blocks": True},
           "trim_blocks": {"trim_blocks": True, "lstrip_blocks": False},
           "lstrip_trim_blocks": {"trim_blocks": True, "lstrip_blocks": True}}


def call(reader, names):
    """render(template, variables, options), behind the bracket."""
    template = reader.value()
    reader.expect(",")
    variables = reader.value()
    reader.expect(",")
    syntax = reader.value()
    return template, variables or {}, syntax or {"trim_blocks": False, "lstrip_blocks": False}


def cases(source):
    group, names = "", {}
    for m in re.finditer(r"TEST\(\w+, (\w+)\)|(?:const |auto )*std::string (\w+) ?=|(?:const )?json (\w+) ?=|(EXPECT_EQ\()|(EXPECT_THAT\()", source):
        line = source.count("\n", 0, m.start()) + 1
        try:
            if m[1]:
                group = m[1]
            elif m[2] or m[3]:
                names[m[2] or m[3]] = Reader(source[m.end():m.end() + 8000], names | OPTIONS).value()
            elif m[4]:
                reader = Reader(source[m.end():m.end() + 12000], names | OPTIONS)
                expected = reader.value()
                reader.expect(",")
                if reader.peek() != ("word", "render"):
                    continue
                reader.at += 1
                reader.expect("(")
                yield group, line, *call(reader, names), {"text": expected}
            else:
                at = source.index("render(", m.end())
                yield group, line, *call(Reader(source[at + 7:at + 8000], names | OPTIONS), names), {"error": "throws"}
        except (ValueError, TypeError) as e:
            if m[4] or m[5]:
                print(f"line {line}: not understood: {e}", file=sys.stderr)


def main():
    checkout, renderer, *rest = sys.argv[1:]
    with open(f"{checkout}/tests/test-syntax.cpp", encoding="utf-8") as f:
        suite = list(cases(f.read()))
    if renderer == "--sample":
        return sample([{"template": c[2], "vars": c[3]} for c in suite], int(rest[0]))
    table, other = Table("-v" in rest), []
    runs = [{"template": c[2], "vars": c[3], "syntax": c[4]} for c in suite]
    for (group, line, template, variables, syntax, want), run, got in zip(suite, runs, ours(renderer, runs)):
        truth = theirs(run)
        same = "error" in truth if "error" in want else truth == want
        if not same:
            other.append((line, template, truth, want))
            agrees = "error" in got if "error" in want else got == want
            want = want if agrees else truth
        table.add(group, f"line {line}: {template[:100]!r}", got, want)
    good = table.show("test-syntax.cpp")
    print(f"of these, jinja2 does not give what the suite expects: {len(other)}")
    if "-v" in rest:
        for line, template, truth, want in other:
            print(f"  line {line}: {template[:100]!r}: jinja2 {str(truth)[:200]}, suite {str(want)[:200]}")
    sys.exit(not good)


main()
