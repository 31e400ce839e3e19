#!/usr/bin/env python3
"""Published chat templates (llama.cpp keeps a collection in models/templates) on 61 requests: moeflux beside jinja2.

    python3 tools/jinja_published.py LLAMA_CPP build/test/tests/unit/text/jinja_render [-v]

Needs python3-jinja2. The environment is that of Hugging Face transformers. Prints, by template, how many requests give
the same text (or are refused by both), another text, or an error where jinja2 has none."""
import glob
import os
import sys

from jinja_suite import Table, ours, theirs


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def system(text):
    return {"role": "system", "content": text}


def call(name, arguments, id="call_00001"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(text, id="call_00001", name="get_weather"):
    return {"role": "tool", "content": text, "tool_call_id": id, "name": name}


def parts(*texts):
    return [{"type": "text", "text": t} for t in texts]


WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather in a place, \"now\" or later.",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "A city: <b>München</b> & others"},
        "days": {"type": "integer", "minimum": 1, "maximum": 10, "default": 3},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}, "required": ["city"]}}}
SEARCH = {"type": "function", "function": {
    "name": "search", "description": "Finds things\nin many places",
    "parameters": {"type": "object", "properties": {
        "query": {"type": "string"}, "limits": {"type": "array", "items": {"type": "number"}},
        "filter": {"type": "object", "properties": {"lang": {"type": ["string", "null"]}, "exact": {"type": "boolean"}},
                   "additionalProperties": False, "required": ["lang"]},
        "any": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}, "required": ["query", "filter"]},
    "return": {"type": "string"}}}
NOTHING = {"type": "function", "function": {"name": "noop", "description": "", "parameters": {"type": "object", "properties": {}}}}

HELLO = [user("Hello, how are you?")]
TALK = [system("You are terse."), user("Hi"), assistant("Hello!"), user("What is 2 + 2?")]
ODD = "Grüße, 你好, مرحبا, 👩🏽‍🚀 \t<tag> & \"quotes\" 'single' {{ braces }} {% if %} \\n \u2028 \x7f"
THOUGHT = [user("Why?"), assistant("Because.", reasoning_content="Let me think.\nIt is so."), user("Really?")]
INLINE = [user("Why?"), assistant("<think>\nHm.\n</think>\n\nBecause."), user("Really?")]
CALLED = [user("Weather in Rome?"), assistant("", tool_calls=[call("get_weather", {"city": "Rome", "days": 2})])]
ANSWERED = CALLED + [result("{\"temp\": 21.5}")]
TEXT_ARGS = [user("Weather?"), assistant("", tool_calls=[call("get_weather", "{\"city\": \"Rome\", \"days\": 2}")]), result("sunny")]
TWO = [user("Both?"), assistant("I will look.", tool_calls=[call("get_weather", {"city": "Rome"}),
                                                            call("search", {"query": "a \"b\"", "filter": {"lang": None, "exact": True},
                                                                            "limits": [1, 2.5, -3e-7]}, "call_00002")]),
       result("sunny"), result("[1, 2]", "call_00002", "search"), assistant("It is sunny."), user("Thanks!")]
NULL = [user("Weather?"), {"role": "assistant", "content": None, "tool_calls": [call("get_weather", {"city": "Oslo"})]}, result("snow")]
REASONED_CALL = [user("Weather?"), assistant("", reasoning_content="I should call.", tool_calls=[call("get_weather", {"city": "Oslo"})]),
                 result("snow")]
LONG = [system("S")] + [m for i in range(12) for m in (user(f"Question {i}"), assistant(f"Answer {i}\n"))] + [user("Last")]


def requests():
    """61 of them: (name, variables)."""
    for name, messages in {
        "hello": HELLO, "talk": TALK, "odd": [system(ODD), user(ODD), assistant(ODD), user("  spaces \n\n")],
        "empty": [user("")], "none": [], "system only": [system("Only this.")], "thought": THOUGHT, "inline": INLINE,
        "ends with assistant": TALK[:3], "two users": [user("a"), user("b")], "two assistants": [user("a"), assistant("b"), assistant("c"), user("d")],
        "system later": [user("a"), system("now obey"), user("b")], "parts": [user(parts("One. ", "Two."))],
        "parts with an image": [user([{"type": "image"}, {"type": "text", "text": "What is it?"}])],
        "parts everywhere": [system(parts("Be.")), user(parts("Hi")), assistant(parts("Yes")), user(parts("Go"))],
        "developer": [{"role": "developer", "content": "Dev says."}, user("Hi")],
        "strange role": [{"role": "narrator", "content": "Once"}, user("Hi")], "no content": [{"role": "user"}],
        "long": LONG, "newlines": [user("\n\n a \n b\n\n"), assistant("\n\nx\n\n"), user("y")],
    }.items():
        yield name, {"messages": messages, "add_generation_prompt": True}
    for name, messages in {"hello": HELLO, "talk": TALK, "thought": THOUGHT, "inline": INLINE, "talk so far": TALK[:3], "none": []}.items():
        yield name + ", not to be continued", {"messages": messages, "add_generation_prompt": False}
    tools = [WEATHER, SEARCH, NOTHING]
    for name, messages in {
        "hello": HELLO, "talk": TALK, "called": CALLED, "answered": ANSWERED, "arguments as text": TEXT_ARGS, "two calls": TWO,
        "null content": NULL, "reasoned call": REASONED_CALL, "result in parts": CALLED + [{**result(""), "content": parts("a", "b")}],
        "call without arguments": [user("Go"), assistant("", tool_calls=[call("noop", {})]), result("done", name="noop")],
        "odd arguments": [user("Go"), assistant("", tool_calls=[call("search", {"query": ODD, "filter": {}})]), result(ODD, name="search")],
        "answer after the result": ANSWERED + [assistant("21.5 degrees."), user("And tomorrow?")],
    }.items():
        yield name + ", with tools", {"messages": messages, "tools": tools, "add_generation_prompt": True}
    for name, messages in {"called": CALLED, "answered": ANSWERED, "two calls": TWO}.items():
        yield name + ", tools not given", {"messages": messages, "add_generation_prompt": True}
    for name, messages in {"hello": HELLO, "answered": ANSWERED}.items():
        yield name + ", one tool, ended", {"messages": messages, "tools": [WEATHER], "add_generation_prompt": False}
    yield "no tools in the list", {"messages": HELLO, "tools": [], "add_generation_prompt": True}
    for name, extra in {
        "thinking": {"enable_thinking": True, "thinking": True}, "no thinking": {"enable_thinking": False, "thinking": False},
        "low effort": {"reasoning_effort": "low"}, "high effort": {"reasoning_effort": "high"},
        "a date": {"date_string": "1 Jan 2025", "today": "2025-01-01"}, "kept thoughts": {"preserve_thinking": True, "clear_thinking": False},
        "identity": {"model_identity": "You are M.", "builtin_tools": ["browser", "python"]},
    }.items():
        yield "thought, " + name, {"messages": THOUGHT, "add_generation_prompt": True, **extra}
        if name in ("thinking", "no thinking", "high effort", "kept thoughts", "identity"):
            yield "with tools, " + name, {"messages": REASONED_CALL, "tools": tools, "add_generation_prompt": True, **extra}
    yield "documents", {"messages": HELLO, "documents": [{"title": "T", "text": "body"}], "add_generation_prompt": True}
    yield "numbers", {"messages": [user("n")], "tools": tools, "add_generation_prompt": True, "n": 2**63 - 1, "x": 1e100}
    yield "no tokens", {"messages": TALK, "add_generation_prompt": True, "bos_token": "", "eos_token": ""}
    yield "legacy system", {"messages": [system("")] + HELLO, "add_generation_prompt": True}
    yield "name", {"messages": [{**user("Hi"), "name": "Ann"}, assistant("Yo"), user("?")], "add_generation_prompt": True}


def main():
    checkout, renderer, *rest = sys.argv[1:]
    table, all_requests = Table("-v" in rest), list(requests())
    for path in sorted(glob.glob(f"{checkout}/models/templates/*.jinja")):
        with open(path, encoding="utf-8") as f:
            source = f.read()
        cases = [{"template": source, "vars": {"bos_token": "<s>", "eos_token": "</s>", "tools": None, **v}} for _, v in all_requests]
        for (name, _), case, got in zip(all_requests, cases, ours(renderer, cases)):
            table.add(os.path.basename(path)[:-6], name, got, theirs(case))
    print(f"{len(all_requests)} requests")
    sys.exit(not table.show("template"))


main()
