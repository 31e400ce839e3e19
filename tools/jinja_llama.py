#!/usr/bin/env python3
"""llama.cpp's tests of its template engine, tests/test-jinja.cpp, run on moeflux.

    python3 tools/jinja_llama.py LLAMA_CPP build/test/tests/unit/text/jinja_render [-v]
    python3 tools/jinja_llama.py LLAMA_CPP --sample N    lines for tests/data/text/jinja_samples.jsonl

Prints how many cases give what the suite expects, by group. Where the suite expects something else than jinja2 itself
(python3-jinja2, which must be installed) gives, jinja2 is right, and the table says how often that was."""
import re
import sys

from jinja_suite import Reader, Table, ours, sample, theirs


def cases(source):
    group = None
    for m in re.finditer(r"^static void test_(\w+)\(testing & t\) \{|^\s+test_template\(t,|fuzz_test_template\(\s*(?=\")", source, re.M):
        if m[1]:
            group = m[1]
        elif "fuzz_test_template(" in m[0]:
            reader = Reader(source[m.end():m.end() + 4000])
            try:
                template = reader.value()
                reader.expect(",")
                yield group, template, template, reader.value(), None
            except (ValueError, KeyError, TypeError):
                continue
        elif group:
            reader = Reader(source[m.end():m.end() + 20000])
            try:
                parts = []
                for _ in range(4):
                    parts.append(reader.value())
                    reader.accept(",")
                yield group, *parts
            except (ValueError, TypeError) as e:
                line = source.count("\n", 0, m.start()) + 1
                print(f"line {line}: not understood: {e}", file=sys.stderr)
    for name in ("empty_tests", "arith_tests", "special_tests", "malformed"):
        m = re.search(name + r" = \{", source)
        for template in Reader(source[m.end() - 1:m.end() + 4000]).primary() if m else []:
            yield "fuzzing", template, template, {}, None


def main():
    checkout, renderer, *rest = sys.argv[1:]
    with open(f"{checkout}/tests/test-jinja.cpp", encoding="utf-8") as f:
        suite = list(cases(f.read()))
    if renderer == "--sample":
        return sample([{"template": c[2], "vars": c[3] or {}} for c in suite if c[4] is not None], int(rest[0]))
    table, other = Table("-v" in rest), []
    results = ours(renderer, [{"template": c[2], "vars": c[3] or {}} for c in suite])
    for (group, name, template, variables, expected), got in zip(suite, results):
        want = {"text": expected}
        if expected is None:  # a case that must only not crash
            want = {"any": True}
        else:
            truth = theirs({"template": template, "vars": variables or {}})
            if truth != want:
                other.append((name, truth, want))
                want = truth if got != want else want
        table.add(group, name, got, want)
    good = table.show("test-jinja.cpp")
    print(f"of these, jinja2 does not give what the suite expects: {len(other)}")
    if "-v" in rest:
        for name, truth, want in other:
            print(f"  {name}: jinja2 {str(truth)[:200]}, suite {str(want)[:200]}")
    sys.exit(not good)


main()
