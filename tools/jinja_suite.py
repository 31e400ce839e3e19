"""What the scripts that compare templates with jinja2 share: rendering on both sides, counting, reading C++ tests."""
import json
import re
import subprocess
import sys

from jinja_cases import environment

TODAY = "2025"  # what strftime_now gives on both sides


def ours(renderer, cases):
    """Results of tests/unit/text/jinja_render for a list of {"template", "vars", "syntax"}."""
    lines = "".join(json.dumps(c | {"strftime_now": TODAY}) + "\n" for c in cases)
    run = subprocess.run([renderer], input=lines, capture_output=True, text=True, encoding="utf-8")
    if run.returncode:
        sys.exit(f"{renderer}: exit code {run.returncode}: {run.stderr}")
    return [json.loads(line) for line in run.stdout.split("\n") if line]


def theirs(case, parsed={}):
    """What jinja2 makes of a case."""
    syntax = case.get("syntax", {})
    key = case["template"], tuple(sorted(syntax.items()))
    try:
        if key not in parsed:
            parsed[key] = environment(**syntax).from_string(case["template"])
        return {"text": parsed[key].render(**json.loads(json.dumps(case["vars"])))}
    except Exception as e:
        return {"error": f"{type(e).__name__}: {e}"}


def sample(cases, n):
    """Prints n of the cases, evenly spread, with what jinja2 makes of them: lines for test_jinja.c."""
    kept = [c for c in cases if "text" in theirs(c) and " at 0x" not in theirs(c)["text"]]
    for i in range(n):
        c = kept[i * len(kept) // n]
        print(json.dumps({"template": c["template"], "vars": c["vars"], "expected": theirs(c)["text"]}))


class Table:
    """Counts by group, and prints what is not equal."""

    def __init__(self, verbose):
        self.rows, self.verbose = {}, verbose

    def add(self, group, name, got, want):
        """got, want: {"text"} or {"error"}; want may also be {"any": True}: whatever it is, it must be a result."""
        if "any" in want:
            verdict = "equal"
        elif "error" in want:
            verdict = "equal" if "error" in got else "differ"
        elif "error" in got:
            verdict = "fail"
        else:
            verdict = "equal" if got["text"] == want["text"] else "differ"
        row = self.rows.setdefault(group, {"equal": 0, "differ": 0, "fail": 0})
        row[verdict] += 1
        if verdict != "equal" and self.verbose:
            print(f"--- {group}: {name}: {verdict}\n  ours   {json.dumps(got)[:600]}\n  wanted {json.dumps(want)[:600]}")

    def show(self, what):
        width = max([len(g) for g in self.rows] + [len(what)])
        print(f"{what:{width}}  equal  differ  fail")
        total = {"equal": 0, "differ": 0, "fail": 0}
        for group, row in self.rows.items():
            print(f"{group:{width}}  {row['equal']:5}  {row['differ']:6}  {row['fail']:4}")
            for k in total:
                total[k] += row[k]
        print(f"{'all':{width}}  {total['equal']:5}  {total['differ']:6}  {total['fail']:4}")
        return total["differ"] + total["fail"] == 0


# ---- C++ literals ---------------------------------------------------------------------------------------------------

TOKEN = re.compile(
    r'\s+|//[^\n]*|/\*.*?\*/|(?P<raw>(?:u8)?R"(?P<mark>[^(\s]*)\((?P<text>.*?)\)(?P=mark)")|(?P<str>(?:u8)?"(?:[^"\\]|\\.)*")'
    r"|(?P<char>'(?:[^'\\]|\\.)')"
    r'|(?P<num>-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)|(?P<word>[A-Za-z_][A-Za-z_0-9:]*)|(?P<op>.)', re.S)


def tokens(source):
    for m in TOKEN.finditer(source):
        if m["raw"] is not None:
            yield "str", m["text"].encode("utf-8"), m.end()
        elif m["str"] is not None:
            body = m["str"][m["str"].index('"') + 1:-1].encode("utf-8").decode("latin-1")
            data = re.sub(r"\\(x[0-9a-fA-F]+|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|.)", unescape, body, flags=re.S)
            yield "str", data.encode("latin-1"), m.end()
        elif m["num"] is not None:
            yield "num", m["num"], m.end()
        elif m["word"] is not None:
            yield "word", m["word"], m.end()
        elif m["char"] is not None:
            yield "char", m["char"], m.end()
        elif m["op"] is not None:
            yield "op", m["op"], m.end()


def unescape(m):
    e = m[1]
    if e[0] == "x":
        return chr(int(e[1:], 16))
    if e[0] in "uU":
        return "".join(map(chr, chr(int(e[1:], 16)).encode("utf-8")))
    if e[0] in "01234567":
        return chr(int(e, 8))
    return {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "\n": ""}.get(e, e)


class Reader:
    """Expressions of C++ that stand for strings and JSON values."""

    def __init__(self, source, names=None):
        self.list, self.at, self.names = list(tokens(source)), 0, names or {}

    def peek(self):
        return self.list[self.at][:2] if self.at < len(self.list) else ("end", "")

    def accept(self, text):
        if self.peek() == ("op", text):
            self.at += 1
            return True
        return False

    def expect(self, text):
        if not self.accept(text):
            raise ValueError(f"expected {text}, found {self.peek()}")

    def value(self):
        v = self.primary()
        while self.accept("+"):
            v = v + self.primary()
        return v

    def primary(self):
        kind, text = self.peek()
        self.at += 1
        if kind == "str":
            while self.peek()[0] == "str":
                text += self.peek()[1]
                self.at += 1
            return text.decode("utf-8", "replace")
        if kind == "num":
            return float(text) if re.search("[.eE]", text) else int(text)
        if kind == "op" and text == "{":
            return self.initializer("}", True)
        if kind == "op" and text == "(":
            v = self.value()
            self.expect(")")
            return v
        if kind != "word":
            raise ValueError(f"found {text}")
        if text in ("true", "false", "nullptr"):
            return {"true": True, "false": False, "nullptr": None}[text]
        if text in self.names:
            return self.names[text]
        return self.call(text)

    def call(self, name):
        if name.endswith("array") or name.endswith("object") or name in ("json", "std::string"):
            close = ")" if self.accept("(") else "}"
            if close == "}":
                self.expect("{")
            args = self.initializer(close, False)
            if name.endswith("array"):
                inner = args[0] if args else []
                return list(inner.items()) if isinstance(inner, dict) and not isinstance(inner, Object) else inner
            if name.endswith("object"):
                return args[0] if args and args[0] else {}
            if close == "}":
                return as_json(args)
            return args[0] if args else ""
        if name == "json::parse":
            self.expect("(")
            v = self.value()
            self.expect(")")
            return json.loads(v)
        raise ValueError(f"the name {name}")

    def initializer(self, close, as_value):
        items = []
        while not self.accept(close):
            items.append(self.value())
            if not self.accept(","):
                self.expect(close)
                break
        return as_json(items) if as_value else items


class Object(dict):
    pass


def as_json(items):
    """nlohmann's rule: a list of pairs that begin with a string is an object."""
    if items and all(isinstance(i, list) and len(i) == 2 and isinstance(i[0], str) for i in items):
        return Object((k, v) for k, v in items)
    return items
