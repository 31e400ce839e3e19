#!/usr/bin/env python3
"""Writes tests/data/text/jinja_cases.jsonl: small templates and what jinja2 makes of them.

    python3 tools/jinja_cases.py > tests/data/text/jinja_cases.jsonl

Needs jinja2 (3.1). The environment is that of Hugging Face transformers. A case whose rendering raises has
"error": true. The test that reads the file does not need Python."""
import json
import jinja2
import jinja2.ext
from jinja2.sandbox import SandboxedEnvironment

VARS = {
    "s": "Hello, World", "u": "Grüße 你好 👩🏽‍🚀", "empty": "", "n": 7, "neg": -3, "f": 1.5, "t": True, "no": False,
    "nil": None, "l": [3, 1, 2], "words": ["b", "A", "c"], "d": {"b": 1, "a": [1, {"x": None}], "items": 5},
    "rows": [{"k": "x", "v": 2}, {"k": "y", "v": 1}, {"k": "x", "v": 3}],
    "quotes": ["it's", 'say "hi"', "both ' and \"", "tab\tnl\n\\", "\x00\x7f\u200b\u00e9\U0001f600"],
    "floats": [1.0, 0.1, 1e16, 1e15, 1e-4, 1e-5, 123456789.125, -0.0, 1e300, 2.5e-10, 9007199254740993],
}

CASES = r"""
{{ s }} {{ u }} {{ n }} {{ f }} {{ t }} {{ nil }} {{ l }} {{ d }} {{ quotes }} {{ floats }}
{{ missing }}|{{ missing is defined }}|{{ missing|length }}|{% for x in missing %}x{% endfor %}
{{ missing.attr }}
{{ missing + 'x' }}
{{ s.nothing }}|{{ d.nothing }}|{{ nil.x }}|{{ n.x }}
{{ 1 + 2 * 3 - 4 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 7.5 // 2 }}
{{ 1 / 0 }}
{{ -2 ** 2 }} {{ (1 + 2) * 3 }} {{ +n }} {{ -f }} {{ -t }}
{{ 'a' + 'b' ~ 1 ~ none ~ true }} {{ 'ab' * 3 }} {{ [1] + [2] }} {{ [0] * 3 }} {{ 3 * 'x' }}
{{ 'a' + 1 }}
{{ 1 < 2 < 3 }} {{ 1 < 2 > 3 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ [1,2] < [1,3] }} {{ 'a' == 1 }} {{ none == false }}
{{ 'a' < 1 }}
{{ 2 in l }} {{ 9 not in l }} {{ 'ell' in s }} {{ '' in s }} {{ 'b' in d }} {{ 'x' in missing }} {{ not 2 in l }}
{{ 1 in s }}
{{ 'x' in nil }}
{{ not false and true or false }} {{ 0 or 'x' }} {{ '' and 'y' }} {{ [] or {} or 'z' }} {{ 'a' if n else 'b' }} {{ 'a' if no }}|
{{ s[0] }}{{ s[-1] }}{{ u[6] }}{{ u[1:3] }}{{ s[::-1] }}{{ l[1:] }}{{ l[:-1] }}{{ l[::2] }}{{ l[-5:2] }}{{ l[5:] }}{{ s[7:][:3] }}{{ l[99] }}|
{{ l[::-2] }} {{ s[10:2:-3] }} {{ (1, 2, 3)[1:] }} {{ (1,) }} {{ () }} {{ (1) }}
{{ l[::0] }}
{{ d['b'] }} {{ d.b }} {{ d.a[1].x }} {{ d.items()|list }} {{ d['items'] }} {{ d.keys()|list }} {{ d.values()|list }} {{ d.get('zz', 4) }} {{ d.get('zz') }}
{{ {'a': 1, 2: 'b', none: [1, (2, 3)]} }} {{ {}|length }} {{ {'a': {'b': 'c'}}.a.b }}
{{ s|upper }} {{ s|lower }} {{ 'hello wORLD'|title }} {{ 'hELLO'|capitalize }} {{ u|upper }} {{ '  x '|trim }}| {{ 'xxaxx'|trim('x') }}
{{ l|sort }} {{ words|sort }} {{ words|sort(case_sensitive=true) }} {{ l|sort(reverse=true) }} {{ rows|sort(attribute='v')|map(attribute='k')|join(',') }}
{{ l|first }} {{ l|last }} {{ l|length }} {{ l|max }} {{ l|min }} {{ l|sum }} {{ []|first }}| {{ l|reverse|list }} {{ s|reverse }}
{{ [1,1,2,1]|unique|list }} {{ l|join('-') }} {{ l|join }} {{ rows|join(', ', attribute='k') }} {{ ['a', 1, none]|join('+') }}
{{ rows|map(attribute='v')|list }} {{ words|map('upper')|list }} {{ rows|selectattr('k', 'equalto', 'x')|map(attribute='v')|list }} {{ rows|rejectattr('k', 'eq', 'x')|list }}
{{ l|select('odd')|list }} {{ l|reject('gt', 1)|list }} {{ [0, 1, '', 'a']|select|list }} {{ rows|selectattr('zz')|list }} {{ rows|selectattr('v', 'in', [1, 2])|list|length }}
{{ d|tojson }} {{ quotes|tojson }} {{ floats|tojson }} {{ none|tojson }} {{ true|tojson }} {{ (1, 2)|tojson }} {{ ''|tojson }} {{ {}|tojson }} {{ []|tojson }}
{{ d|tojson(indent=2) }}
{{ d|tojson(ensure_ascii=true) }} {{ u|tojson(ensure_ascii=true) }} {{ {'b': 1, 'a': 2}|tojson(sort_keys=true) }} {{ {1: 2, none: 3, true: 4, 1.5: 5}|tojson }} {{ d|tojson(separators=(',', ':')) }}
{{ missing|tojson }}
{{ missing|default('x') }} {{ nil|default('x') }} {{ nil|default('x', true) }} {{ ''|d('y', boolean=true) }} {{ missing|default }}|
{{ '12'|int }} {{ 'x'|int }} {{ 'x'|int(5) }} {{ 3.9|int }} {{ '2.5'|float }} {{ 'q'|float }} {{ -3|abs }} {{ 2.567|round(2) }} {{ 2.5|round }} {{ 2.1|round(method='ceil') }} {{ true|int }}
{{ 'a b'|replace(' ', '_') }} {{ 'aaa'|replace('a', 'b', 2) }} {{ '<a & "b">'|escape }} {{ 'x'|safe }} {{ 5|string + 'a' }} {{ 'a\nb\n\nc'|indent }}|{{ 'a\nb'|indent(2, true) }}
{{ d|dictsort }} {{ d|items|list }} {{ missing|items|list }} {{ 'abc'|list }} {{ d|list }} {{ d|length }}
{{ s|nofilter }}
{{ s is nottest }}
{{ s is string }} {{ n is number }} {{ t is number }} {{ t is integer }} {{ n is integer }} {{ f is float }} {{ l is sequence }} {{ d is mapping }} {{ d is iterable }} {{ n is iterable }} {{ nil is none }} {{ t is true }} {{ t is boolean }} {{ missing is undefined }} {{ missing is iterable }} {{ nil is defined }}
{{ n is odd }} {{ n is even }} {{ n is divisibleby 7 }} {{ n is divisibleby(2) }} {{ n is eq 7 }} {{ n is in [7, 8] }} {{ 'a' is in 'abc' }} {{ n is not none }} {{ s is lower }} {{ 'ab' is lower }} {{ 'AB' is upper }} {{ '1' is upper }} {{ n is gt 3 and n is lt 9 }} {{ none is sameas none }} {{ s is not string or true }}
{{ s.upper() }} {{ s.split(',') }} {{ ' a  b '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'a  b c'.split(None, 1) }} {{ ''.split(',') }} {{ ''.split() }} {{ 'a\nb\r\nc'.splitlines() }}
{{ s.startswith('Hell') }} {{ s.endswith(('x', 'World')) }} {{ '  x '.strip() }}|{{ '  x '.lstrip() }}|{{ '  x '.rstrip() }}|{{ 'abcba'.strip('ab') }} {{ s.replace('l', 'L') }} {{ s.find('o') }} {{ u.find('你') }} {{ s.count('l') }} {{ '-'.join(['a', 'b']) }} {{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('x') }} {{ '12'.isdigit() }} {{ s.title() }} {{ s.index('W') }}
{{ s.split('') }}
{{ '-'.join([1]) }}
{% set l2 = [1] %}{% set _ = l2.append(2) %}{{ l2 }}{{ l2.pop() }}{{ l2 }}{% set _ = l2.insert(0, 9) %}{% set _ = l2.extend([7, 8]) %}{{ l2 }}{{ l2.index(9) }}{{ l2.count(7) }}{{ l2.pop(0) }}{{ l2 }}
{{ [].pop() }}
{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}
{% for x in l if x > 1 %}{{ loop.index }}:{{ x }}/{{ loop.length }} {% else %}none{% endfor %} {% for x in [] %}x{% else %}none{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %} {% for a, b in [(1, 2), [3, 4]] %}{{ a + b }} {% endfor %} {% for c in 'né你' %}{{ c }}.{% endfor %} {% for k in d %}{{ k }}{% endfor %}
{% for a, b in [1, 2] %}{{ a }}{% endfor %}
{% for x in 5 %}{% endfor %}
{% for x in range(6) %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %} {{ range(3)|list }} {{ range(2, 8, 3)|list }} {{ range(3, 0, -1)|list }}
{% for x in l %}{% for y in l %}{{ loop.depth }}{{ loop.index }}{% endfor %}{{ loop.index }} {% endfor %} {% for x in [1, 1, 2] %}{{ loop.changed(x) }}{{ loop.cycle('a', 'b') }}{% endfor %}
{% set x = 1 %}{% for i in l %}{% set x = i %}{{ x }}{% endfor %}{{ x }}{% if true %}{% set x = 5 %}{% endif %}{{ x }}
{% set ns = namespace(a=1, b='x') %}{% for i in l %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.c }}|{% set ns.c = 3 %}{{ ns.c }}
{% set n.x = 1 %}
{% set a, b = 1, 2 %}{{ a }}{{ b }} {% set c = 1, 2 %}{{ c }} {% set t %}block {{ s }}{% endset %}{{ t }} {% set q | upper | trim %} abc {% endset %}[{{ q }}]
{% macro m(a, b=2, c='x') %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, c=3) }}{{ m(a=5, b=6) }}{{ m() }}{{ m(1, 2, 3)|length }}{{ m is callable }}
{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{% endmacro %}{{ m(z=2) }}
{% macro f(n) %}{{ n }}{% if n > 0 %},{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}
{% set g = 1 %}{% macro m() %}{{ g }}{{ late }}{% endmacro %}{% set g = 2 %}{% set late = 'L' %}{{ m() }}{% for loopvar in [1] %}{% set g = 3 %}{{ m() }}{% endfor %}
{% macro w(t) %}<{{ t }}>{{ caller() }}</{{ t }}>{% endmacro %}{% call w('b') %}in {{ s }}{% endcall %} {% macro v() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b) v() %}{{ a + b }}{% endcall %}
{% filter upper %}abc {{ s }}{% endfilter %} {% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}| {% raw %}{{ x }} {% if %}{% endraw %}
'a\'b' {{ 'a\'b\\n\n\t\x41\u00e9' }} {{ "q\"q" }} {{ 'a' 'b' "c" }} {{ '\q' }}
{{ 1_000 }} {{ 1.5e3 }} {{ 2e-3 }} {{ 10 }} {{ 1.0 }}
{{ [1, 2, ] }} {{ {'a': 1, } }} {{ [] }} {{ {'}}': '%}'}['}}'] }}
{{ raise_exception('boom') }}
{{ strftime_now('%Y') }} {{ namespace(a=1).a }} {{ dict(a=1, b=2) }} {{ dict({'z': 1}, a=2) }}
{{ n|string|length }} {{ l|length > 2 and s }} {{ s|length - 2 }} {{ (s ~ n)|length }} {{ 'a' ~ 'b'|upper }} {{ l|map('string')|join('') }}
{% if l %}{% if not nil %}{{ 'y' }}{% elif 1 %}z{% else %}w{% endif %}{% endif %}{% if '' %}a{% elif [] %}b{% elif 0.0 %}c{% else %}d{% endif %}
{% if x %}
{% endfor %}
{{ 'unclosed }}
{{ }}
{% unknown %}
{{ a b }}
{% break %}
{% generation %}gen {{ s }}{% endgeneration %}
{{ [3, 'a']|sort }}
{{ 'abc'[1] }} {{ 'abc'.0 }} {{ l.0 }} {{ l['0'] }}| {{ d.a.0 }}
{{ 1 if true else 2 if false else 3 }} {{ (1 if false else 2) + 1 }} {{ 'x' if missing is defined else 'y' }}
{{ "%s" }} {{ '{{' }} {{ '#}' }} {% if '%}' == '%}' %}ok{% endif %}
{{ s.nope() }}
{{ n() }}
{{ t and 5 }} {{ 5 and t }} {{ nil or 0 }} {{ not nil }} {{ not not 5 }}
""".strip("\n")


MULTI = [
    "{# c #}a{# multi\nline #}b{#- trim -#}   c {{- 1 -}}  d  {%- if true -%}  e  {%- endif -%}  f",
    "line1\n  {% if true %}\n    indented\n  {% endif %}\nline2\n",
    "x{% if true %}\n\ny{% endif %}\nz\n\n",
    "   {%+ if true %}keep{% endif +%}\n\nend",
    "  {{ n }}\n  {# comment line #}\nafter\t{% if true %}\ttab{% endif %}\n",
    "{% for x in l %}\n  {{ x }}\n{% endfor %}\nend",
    "{% for x in l -%}\n  {{ x }}\n{%- endfor %}\nend",
    "a\r\nb\rc\n{% if true %}\r\nd\r\n{% endif %}\r\n",
    "{% if true %}\n    {% if true %}\n    x\n    {% endif %}\n{% endif %}\n",
    "  {% set a = 1 %}  {% set b = 2 %}  {{ a + b }}",
    "{%- set a = 1 -%}\n\n  {%- set b = 2 %}\n  \n{{- a }}\n{{ b }}",
    "text {% raw %}\n  {{ raw }}\n{% endraw %}\nmore",
    "text {%- raw -%}\n  {{ raw }}\n{%- endraw -%}\nmore",
    "\u00a0\u2003{%- if true %}nbsp{% endif -%}\u3000x",
    "{{ 'multi\nline' }}\n{#-#}x{#- -#}\n y",
    "{% macro a() -%}\n  x\n{%- endmacro %}\n[{{ a() }}]",
]


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            next(parser.stream)
            return parser.parse_statements(["name:endgeneration"], drop_needle=True)

    env = SandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda fmt: "2025"
    return env


def main():
    env = environment()
    for source in CASES.split("\n") + MULTI:
        out = {"template": source}
        try:
            out["expected"] = env.from_string(source).render(**json.loads(json.dumps(VARS)))
        except Exception:
            out["error"] = True
        print(json.dumps(out))
    print(json.dumps({"vars": VARS}))


main()
