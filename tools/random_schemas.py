#!/usr/bin/env python3
"""Random JSON Schemas, answers to them from random logits, and an independent judge of the answers.

    tools/random_schemas.py --driver build/x/tests/unit/text/random_answers --tokenizer qwen3.json
    tools/random_schemas.py --list 60 --seed 7 > tests/data/text/schemas.jsonl

The first form makes --schemas schemas (1000), has the driver give --answers answers to each (20), and validates every
one with the package jsonschema (4.x), which knows nothing of this project. It ends with a line of counts, and with exit
code 1 when an answer does not parse or is not valid, or a schema is refused. The second form prints schemas, one per
line: the ordinary tests use such a list and need no Python.

The schemas use every keyword that text/grammar/grammar.h names and can all be satisfied: a reference that must be
followed leads to a later definition only, one that may be left out leads anywhere."""
import argparse
import collections
import json
import random
import re
import subprocess
import sys

NAMES = ["id", "name", "a", "ab", "abc", "über", "x y", 'q"t', "价格", "list", "value", "é", "", "\\", "a/b", "😀", "\t"]
TEXTS = NAMES + ["line\nbreak", "/", "\u0001", "\u2028", "a" * 40, "𝔘𝔫𝔦", "null", "{", "<|im_end|>"]


class Schemas:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def chance(self, p):
        return self.r.random() < p

    def literal(self, depth=0):
        kind = self.r.randrange(8 if depth < 2 else 6)
        if kind == 0:
            return None
        if kind == 1:
            return self.chance(0.5)
        if kind == 2:
            return self.r.choice([0, -1, 7, self.r.randrange(-10**6, 10**6), 10**15])
        if kind == 3:
            return self.r.choice([0.5, -2.25, 1e10, 3.0, 1e-7, 0.1])
        if kind < 6:
            return self.r.choice(TEXTS)
        if kind == 6:
            return [self.literal(depth + 1) for _ in range(self.r.randrange(3))]
        return {self.r.choice(NAMES): self.literal(depth + 1) for _ in range(self.r.randrange(3))}

    # Patterns mean the same here and in ECMA-262, but for $ and the dot: see python_pattern. They are such that Python's
    # re, which backtracks, stays quick: without a limit are only a few single characters and groups with one way to match.
    def piece(self, depth):
        kind = self.r.randrange(10 if depth < 2 else 8)
        if kind < 3:
            return self.r.choice(["a", "b", "Z", "0", "-", "_", " ", "é", "价", "😀", r"\.", r"\/", '"', r"\\", r"\+", r"\n"])
        if kind < 5:
            return self.r.choice(["[a-z]", "[A-Z0-9_]", r"[^\"\\]", "[^a-c]", "[é-ü]", "[0-9a-f]", r"[\d-]", r"[\w.]", "[一-龥]"])
        if kind < 7:
            return self.r.choice([r"\d", r"\w", r"\D", "[0-9]"])
        if kind == 7:
            return "."
        inside = "|".join(self.sequence(depth + 1) for _ in range(self.r.randrange(1, 4)))
        return self.r.choice(["(", "(?:"]) + inside + ")"

    def sequence(self, depth):
        out = ""
        for _ in range(self.r.randrange(1, 5)):
            low, piece = self.r.randrange(3), self.piece(depth)
            counts = ["?", "{%d}" % (low + 1), "{%d,%d}" % (low, low + self.r.randrange(1, 4))]
            if self.unlimited and depth == 0 and not piece.endswith(")") and self.chance(0.4):
                counts = ["*", "+", "{%d,}" % low]
                self.unlimited -= 1
            elif self.unlimited and depth == 0 and self.chance(0.1):
                piece, counts = self.r.choice(["(ab|c)", "(?:[a-z]_)", r"(\d{2},)"]), ["*", "+", "{2,}"]
                self.unlimited -= 1
            out += piece + (self.r.choice(counts) if self.chance(0.5) or "*" in counts else "")
        return out

    def pattern(self):
        self.unlimited = 2
        body = "|".join(self.sequence(0) for _ in range(self.r.choice([1, 1, 1, 2])))
        if "|" in body and self.chance(0.7):
            body = "(" + body + ")"
        return self.r.choice(["", "^", "^"]) + body + self.r.choice(["", "$", "$"])

    def string(self):
        s = {"type": "string"}
        kind = self.r.random()
        if kind < 0.35:
            s["pattern"] = self.pattern()
            if self.chance(0.15):
                s["maxLength"] = 60  # long enough for every pattern made here
        elif kind < 0.75:
            low = self.r.choice([0, 1, 2, 5, 40])
            if self.chance(0.7):
                s["minLength"] = low
            if self.chance(0.7):
                s["maxLength"] = low + self.r.randrange(8)
        return s

    def number(self, kind):
        s = {"type": kind}
        if self.chance(0.5):
            return s
        low = self.r.choice([-1000, -7, -1, 0, 0, 1, 5, 17, 99, 100, 12345, -10**12])
        if kind == "number" and self.chance(0.4):
            low += self.r.choice([0.5, 0.25, 0.125, 0.1])
        high = low + self.r.choice([2, 5, 9, 10, 99, 1000, 123456])
        if kind == "number" and self.chance(0.3):
            high = low + self.r.choice([0.5, 0.25, 1.5])
        if self.chance(0.7):
            s[self.r.choice(["minimum", "exclusiveMinimum"])] = low
        if self.chance(0.7):
            s[self.r.choice(["maximum", "exclusiveMaximum"])] = high
        return s

    def array(self, depth, refs):
        s = {"type": "array"}
        low = self.r.randrange(4) if self.chance(0.5) else 0
        if self.chance(0.2):
            s["prefixItems"] = [self.schema(depth + 1, refs) for _ in range(self.r.randrange(1, 3))]
        if self.chance(0.9):
            s["items"] = self.schema(depth + 1, refs if low else self.all)
        if low:
            s["minItems"] = low
        if self.chance(0.6):
            s["maxItems"] = low + self.r.randrange(4)
        return s

    def object(self, depth, refs):
        s = {"type": "object"}
        names = self.r.sample(NAMES, self.r.randrange(6))
        required = [n for n in names if self.chance(0.5)]
        if names or self.chance(0.5):
            s["properties"] = {n: self.schema(depth + 1, refs if n in required else self.all) for n in names}
        kind = self.r.random()
        if kind < 0.3:
            s["additionalProperties"] = False
        elif kind < 0.5:
            s["additionalProperties"] = self.schema(depth + 1, self.all)
        elif kind < 0.55:
            s["additionalProperties"] = True
        if kind >= 0.5 and self.chance(0.2):
            required.append(self.r.choice(NAMES))
        if required:
            s["required"] = sorted(set(required))
        if not names and not required and kind >= 0.5 and self.chance(0.5):
            s["minProperties"] = self.r.randrange(2)
            s["maxProperties"] = s["minProperties"] + self.r.randrange(3)
        return s

    def choice(self, depth, refs):
        kind = self.r.randrange(5)
        if kind == 0:  # what stands beside holds for every alternative
            return {"type": "object", "properties": {"a": self.schema(depth + 1, refs), "b": {"type": "null"}},
                    "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
        if kind == 1:
            return {"oneOf": [self.string(), self.number("integer"), {"type": "null"}][: self.r.randrange(2, 4)]}
        if kind == 2:
            return {"allOf": [self.schema(depth + 1, refs)]}
        if kind == 3 and self.chance(0.5):
            return {"type": self.r.choice(["integer", "string"]), "anyOf": [True, {}, {"description": "any"}]}
        return {"anyOf": [self.schema(depth + 1, refs) for _ in range(self.r.randrange(1, 4))]}

    # refs: the definitions that a reference may lead to here; all of them inside what can be left out.
    def schema(self, depth, refs):
        kind = self.r.random()
        if refs and kind < 0.12:
            return {"$ref": "#/$defs/" + self.r.choice(refs)}
        if kind < 0.17:
            return {"enum": [self.literal() for _ in range(self.r.randrange(1, 5))]}
        if kind < 0.21:
            return {"const": self.literal()}
        if kind < 0.31 and depth < 4:
            return self.choice(depth, refs)
        if kind < 0.35:
            return self.r.choice([{}, True, {"type": ["string", "null"], "description": "x"},
                                  {"type": ["integer", "boolean"], "minimum": self.r.randrange(-50, 50)},
                                  {"minLength": 2}, {"minItems": 1}, {"required": ["a"]}])
        kinds = ["string", "string", "integer", "number", "boolean", "null"]
        name = self.r.choice(kinds + (["object"] * 4 + ["array"] * 2 if depth < 4 else []))
        if name == "string":
            return self.string()
        if name in ("integer", "number"):
            return self.number(name)
        if name == "array":
            return self.array(depth, refs)
        return self.object(depth, refs) if name == "object" else {"type": name}

    def top(self):
        names = ["n1", "n~0~1"][: self.r.randrange(3)]  # the second is spelled "n~/" where it is defined
        self.all = names
        s = self.schema(0, names)
        if names and isinstance(s, dict):
            s = dict(s)
            s["$defs"] = {n.replace("~1", "/").replace("~0", "~"): self.schema(1, names[i + 1:]) for i, n in enumerate(names)}
        return s


def python_pattern(p):
    """$ is the very end and the dot leaves out all of ECMA's line ends; \\d and \\w are ASCII by re.ASCII."""
    out, in_class, i = "", False, 0
    while i < len(p):
        c = p[i]
        if c == "\\":
            out += p[i:i + 2]
            i += 2
            continue
        in_class = c == "[" or (in_class and c != "]")
        out += r"\Z" if c == "$" and not in_class else "[^\n\r\u2028\u2029]" if c == "." and not in_class else c
        i += 1
    return re.compile(out, re.ASCII)


def validator():
    import jsonschema

    def pattern(_validator, want, instance, _schema):
        if isinstance(instance, str) and not python_pattern(want).search(instance):
            yield jsonschema.ValidationError("%r does not match %r" % (instance, want))

    return jsonschema.validators.extend(jsonschema.Draft202012Validator, {"pattern": pattern})


def judge(schemas, lines):
    check = validator()
    counts, wrong = collections.Counter(), []
    for schema, line in zip(schemas, lines):
        reply = json.loads(line)
        if "error" in reply:
            counts["refused"] += 1
            wrong.append((schema, "", reply["error"]))
            continue
        check.check_schema(schema)
        judged = check(schema)
        counts["whole"] += reply["whole"]
        for answer in reply["answers"]:
            try:
                judged.validate(json.loads(answer))
                counts["valid"] += 1
            except Exception as e:  # whatever it is, the answer is not right
                counts["wrong"] += 1
                wrong.append((schema, answer, str(e).split("\n")[0]))
    return counts, wrong


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("--driver")
    a.add_argument("--tokenizer")
    a.add_argument("--schemas", type=int, default=1000)
    a.add_argument("--answers", type=int, default=20)
    a.add_argument("--tokens", type=int, default=120)
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--list", type=int)
    a = a.parse_args()
    maker = Schemas(a.seed)
    schemas = [maker.top() for _ in range(a.list or a.schemas)]
    lines = "".join(json.dumps(s, ensure_ascii=False) + "\n" for s in schemas)
    if a.list:
        sys.stdout.write(lines)
        return 0
    if not a.driver or not a.tokenizer:
        sys.exit("random_schemas.py: --driver and --tokenizer, or --list")
    out = subprocess.run([a.driver, a.tokenizer, str(a.answers), str(a.tokens), str(a.seed)], input=lines,
                         stdout=subprocess.PIPE, text=True, check=True).stdout
    replies = out.split("\n")[:-1]  # splitlines would split at U+2028 too
    if len(replies) != len(schemas):
        sys.exit("%d schemas and %d replies" % (len(schemas), len(replies)))
    counts, wrong = judge(schemas, replies)
    for schema, answer, why in wrong[:20]:
        print("schema: %s\nanswer: %s\n  %s" % (json.dumps(schema, ensure_ascii=False)[:600], answer[:400], why))
    print("%d schemas, %d refused; %d answers valid (%d ended by themselves), %d wrong"
          % (len(schemas), counts["refused"], counts["valid"], counts["whole"], counts["wrong"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
