#!/usr/bin/env python3
"""Answers of models as another project's tests have them, taken apart by ours.

usage: chat_answers.py LLAMA_CPP_CHECKOUT PARSE_ANSWERS [--show] [--only TEMPLATE] [--sample K]

Reads tests/test-chat.cpp of a llama.cpp checkout (its source, not its code: it is neither compiled nor run), gives every
answer to PARSE_ANSWERS (build/test/tests/unit/reply/parse_answers) with the template it belongs to, and compares
reasoning, text and tool calls. White space at the ends of texts, and how JSON is spaced, is not compared. Left out are
cases without one right answer here: those of unfinished answers, of prefilled ones, with reasoning left in the text, and
answers in a notation that no template of ours speaks. --sample K prints every K-th case that is the same instead, for
tests/data/text/chat_answers.jsonl.
"""
import json
import os
import re
import subprocess
import sys

TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
      |(?P<raw>R"(?P<delim>[^()\s\\]*)\((?P<body>.*?)\)(?P=delim)")
      |(?P<str>"(?:[^"\\]|\\.)*")
      |(?P<word>[A-Za-z_][A-Za-z_0-9]*(?:::[A-Za-z_][A-Za-z_0-9]*)*)
      |(?P<num>-?\d[\d.]*)
      |(?P<sym>.)""",
    re.X | re.S,
)
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}


def tokens_of(source):
    out = []
    for m in TOKEN.finditer(source):
        kind = m.lastgroup
        if m.group("space"):
            continue
        if m.group("raw"):
            out.append(("s", m.group("body"), m.start()))
        elif m.group("str"):
            text = re.sub(r"\\x([0-9a-fA-F]{2})|\\(.)", unescape, m.group("str")[1:-1], flags=re.S)
            out.append(("s", text, m.start()))
        elif m.group("word"):
            out.append(("w", m.group("word"), m.start()))
        elif m.group("num"):
            out.append(("n", m.group("num"), m.start()))
        else:
            out.append(("p", m.group("sym"), m.start()))
    return out


def unescape(m):
    if m.group(1):
        return chr(int(m.group(1), 16))
    return ESCAPES.get(m.group(2), m.group(2))


class Unknown(Exception):
    pass


class Reader:
    """Evaluates the few kinds of expressions that the tests are made of."""

    def __init__(self, source):
        self.t = tokens_of(source)
        self.names = {}

    def is_sym(self, i, sym):
        return i < len(self.t) and self.t[i][:2] == ("p", sym)

    def value(self, i):
        """Value at token i and the index behind it: strings (joined), lists, calls, names, lambdas are refused."""
        kind, text, _ = self.t[i]
        if kind == "s":
            out = ""
            while i < len(self.t) and (self.t[i][0] == "s"):
                out += self.t[i][1]
                i += 1
            return self.plus(out, i)
        if kind == "n":
            return text, i + 1
        if self.is_sym(i, "{"):
            return self.values(i + 1, "}")
        if kind == "w" and self.is_sym(i + 1, "("):
            args, j = self.values(i + 2, ")")
            return self.plus(self.call(text, args), j)
        if kind == "w" and self.is_sym(i + 1, "{"):
            args, j = self.values(i + 2, "}")
            return self.plus(self.call(text, args), j)
        if kind == "w":
            if text in ("true", "false"):
                return text == "true", i + 1
            if text in self.names:
                return self.plus(self.names[text], i + 1)
            return ("name", text), i + 1
        raise Unknown(text)

    def plus(self, left, i):
        if self.is_sym(i, "+") and isinstance(left, str):
            right, i = self.value(i + 1)
            if not isinstance(right, str):
                raise Unknown("+")
            return left + right, i
        return left, i

    def values(self, i, end):
        out = []
        while not self.is_sym(i, end):
            if self.is_sym(i, ",") :
                i += 1
                continue
            v, i = self.value(i)
            out.append(v)
        return out, i + 1

    @staticmethod
    def call(name, args):
        def message(content="", reasoning="", tool="", arguments="", call_id=""):
            calls = [[tool, arguments, call_id]] if tool or call_id else []
            return {"content": content, "reasoning": reasoning, "calls": calls}

        makers = {
            "simple_assist_msg": message,
            "std::string": lambda s="": s,
            "message_with_tool_calls": lambda n, a: message("", "", n, a),
            "message_with_tool_calls_and_reasoning": lambda n, a, r: message("", r, n, a),
            "message_with_content_and_tool_call": lambda c, n, a: message(c, "", n, a),
            "message_with_reasoning_and_tool_call": lambda r, n, a: message("", r, n, a),
            "message_with_reasoning_content_and_multiple_tool_calls": lambda r, c, calls: {
                "content": c,
                "reasoning": r,
                "calls": [[k[0], k[1], ""] for k in calls],
            },
        }
        if name not in makers:
            raise Unknown(name)
        return makers[name](*args)

    def read_names(self):
        """Tools, messages and strings that are given a name."""
        for i in range(len(self.t) - 3):
            kind, text, _ = self.t[i]
            if kind != "w":
                continue
            try:
                if text == "common_chat_tool" and self.t[i + 1][0] == "w" and self.is_sym(i + 2, "{"):
                    v, _ = self.values(i + 3, "}")
                    self.names[self.t[i + 1][1]] = {"tool": v[:3]}
                elif text in ("common_chat_msg", "string", "std::string", "char", "auto"):
                    j = i + 1
                    while self.is_sym(j, "*") or self.is_sym(j, "&") or self.t[j][:2] == ("w", "const"):
                        j += 1
                    if self.t[j][0] == "w" and self.is_sym(j + 1, "="):
                        v, _ = self.value(j + 2)
                        if not isinstance(v, tuple):
                            self.names[self.t[j][1]] = v
            except (Unknown, IndexError, TypeError):
                pass

    def cases(self):
        templates = {}
        for i in range(len(self.t)):
            kind, text, at = self.t[i]
            if kind != "w" or i + 4 > len(self.t):
                continue
            if self.is_sym(i + 1, "=") and self.t[i + 2][1] == "peg_tester":
                try:
                    args, _ = self.values(i + 4, ")")
                    templates[text] = args[0] if isinstance(args[0], str) else None
                except Unknown:
                    templates[text] = None
            elif text in templates and self.is_sym(i + 1, ".") and self.t[i + 2][1] == "test":
                yield self.case(i + 3, templates[text], at)

    def case(self, i, template, at):
        case = {"template": template, "at": at, "line": None, "why": None, "options": {}}
        try:
            args, i = self.values(i + 1, ")")
            case["input"] = args[0]
            while self.is_sym(i, "."):
                method = self.t[i + 1][1]
                args, i = self.values(i + 3, ")")
                case["options"][method] = args
                if method == "run":
                    break
        except (Unknown, IndexError, TypeError) as e:
            case["why"] = "not understood: %s" % e
        return case


def expectation(options):
    want = {"content": "", "reasoning": "", "calls": []}
    if "expect" in options:
        want = dict(options["expect"][0])
    if "expect_content" in options:
        want["content"] = options["expect_content"][0]
    if "expect_reasoning" in options:
        want["reasoning"] = options["expect_reasoning"][0]
    if "expect_tool_calls" in options:
        want["calls"] = options["expect_tool_calls"][0]
    return want


def without_one_answer(case):
    o = case["options"]
    if case["why"]:
        return case["why"]
    if not case["template"]:
        return "no template"
    if o.get("is_partial") == [True]:
        return "unfinished"
    if "continue_final_message" in o:
        return "prefilled"
    formats = str(o.get("reasoning_format"))
    want = str(o.get("expect_content", "")) + str(o.get("expect", ""))
    if "NONE" in formats or ("reasoning_format" not in o and re.search("think|channel|THINK", want + case["input"])):
        return "reasoning left in the text"
    return None


def as_json(text):
    try:
        return json.dumps(json.loads(text, parse_int=str), sort_keys=True)
    except ValueError:
        return text


def normal(content, reasoning, calls):
    return {
        "content": content.strip(),
        "reasoning": reasoning.strip(),
        "calls": [[name, as_json(arguments or "{}")] for name, arguments in calls],
    }


def request_of(case, checkout):
    o = case["options"]
    tools = [t["tool"] for t in (o.get("tools") or [[]])[0] if isinstance(t, dict)]
    out = {
        "template": os.path.join(checkout, case["template"]),
        "text": case["input"],
        "tools": [
            {"type": "function", "function": {"name": t[0], "description": t[1], "parameters": json.loads(t[2])}}
            for t in tools
        ],
        "thinking": (o.get("enable_thinking") or [True])[0],
    }
    return out


def parse(program, requests):
    data = "".join(json.dumps(r) + "\n" for r in requests)
    done = subprocess.run([program], input=data.encode(), stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in done.stdout.decode().splitlines()]


def print_sample(cases, answers, every):
    for case, got in list(zip(cases, answers))[::every]:
        want = expectation(case["options"])
        want = normal(want["content"], want["reasoning"], [c[:2] for c in want["calls"]])
        if got["notation"] == "plain" or want != normal(got["content"], got["reasoning"], got["calls"]):
            continue
        print(json.dumps({"from": "%s, line %d" % (os.path.basename(case["template"]), case["line"]),
                          "notation": got["notation"], "in_reasoning": got["in_reasoning"],
                          "tools": request_of(case, "")["tools"], "text": case["input"], "content": got["content"],
                          "reasoning": got["reasoning"], "calls": got["calls"]}, ensure_ascii=False))


def main():
    args = [a for a in sys.argv[1:] if not a.startswith("--")]
    show = "--show" in sys.argv
    only = sys.argv[sys.argv.index("--only") + 1] if "--only" in sys.argv else None
    if len(args) < 2:
        sys.exit(__doc__)
    checkout, program = args[0], args[1]
    source = open(os.path.join(checkout, "tests", "test-chat.cpp"), encoding="utf-8").read()
    reader = Reader(source)
    reader.read_names()
    cases, left_out = [], {}
    for case in reader.cases():
        case["line"] = source.count("\n", 0, case["at"]) + 1
        why = without_one_answer(case)
        if why:
            left_out[why.split(":")[0]] = left_out.get(why.split(":")[0], 0) + 1
        else:
            cases.append(case)
    answers = parse(program, [request_of(c, checkout) for c in cases])
    if "--sample" in sys.argv:
        return print_sample(cases, answers, int(sys.argv[sys.argv.index("--sample") + 1]))
    table = {}
    for case, got in zip(cases, answers):
        name = os.path.basename(case["template"])
        row = table.setdefault(name, [got.get("notation", "?"), 0, 0])
        want = expectation(case["options"])
        want = normal(want["content"], want["reasoning"], [c[:2] for c in want["calls"]])
        have = normal(got["content"], got["reasoning"], got["calls"])
        same = want == have
        row[1 if same else 2] += 1
        if show and not same and (not only or only in name):
            print("line %d, %s (%s)\n  in   %s\n  want %s\n  have %s" % (
                case["line"], name, row[0], json.dumps(case["input"], ensure_ascii=False),
                json.dumps(want, ensure_ascii=False), json.dumps(have, ensure_ascii=False)))
    print("%-52s %-9s %5s %7s" % ("template", "notation", "same", "differ"))
    known = [0, 0]
    for name, (notation, same, differ) in sorted(table.items()):
        print("%-52s %-9s %5d %7d" % (name, notation, same, differ))
        if notation != "plain":
            known[0] += same
            known[1] += differ
    print("in a notation of ours: %d same, %d differ" % tuple(known))
    print("without one right answer: " + ", ".join("%d %s" % (n, why) for why, n in sorted(left_out.items())))


if __name__ == "__main__":
    main()
