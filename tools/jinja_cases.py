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
{{ '{} {}'.format(1, 'a') }} {{ '{1} {0} {x}'.format(1, 2, x=3) }} {{ '{0.k}|{0[v]}|{1[0]}'.format(rows[0], l) }} {{ '{!r:>8}|{!s}|{!a}'.format('é', 'é', 'é') }} {{ '{{}} {{{}}}'.format(5) }}
{{ '{:>5}|{:<5}|{:^5}|{:*^7}|{:05d}|{:+d}|{: d}|{:,}|{:_}|{:x}|{:#X}|{:b}|{:o}|{:c}'.format('a', 'b', 'c', 'd', 42, 7, 7, 1234567, 1234567, 255, 255, 5, 8, 65) }}
{{ '{:.2f}|{:8.3f}|{:e}|{:g}|{:.3g}|{:%}|{:.1%}|{:,.2f}|{:+.1f}|{:010.2f}|{}'.format(3.14159, 2.5, 12345.678, 0.0001, 1234.5, 0.25, 0.123, 1234567.891, -0.05, -3.5, 1e20) }}
{{ '{:.3}|{:>{w}}|{:{f}<{w}}'.format('abcdef', 'x', 'y', w=4, f='*') }} {{ '{:5}|{:5}|{}'.format(1, true, true) }} {{ '{:08,}'.format(1234) }} {{ '{:=+8d}'.format(42) }} {{ '{a}'.format_map({'a': 1}) }}
{{ '{:.2f}|{:.0f}|{:.3f}|{:f}|{:e}'.format(5, 2.5, 1.0005, 1e15, 0) }} {{ '{:n}|{:d}'.format(7, true) }} {{ '{:s}'.format('x') }}
{{ '{:d}'.format('a') }}
{{ '{} {}'.format(1) }}
{{ '{'.format(1) }}
{{ '}'.format(1) }}
{{ '{x}'.format(1) }}
{{ '{:5}'.format([1]) }}
{{ '{:.2d}'.format(3) }}
{{ '%s %d %5.2f|%-5s|%05d|%x|%X|%o|%e|%g|%r|%c|%%|%+d|% d' % ('a', 3.9, 2.345, 'b', 42, 255, 255, 8, 12345.6789, 0.00001, 'q', 'z', 5, 6) }}
{{ '%(a)s-%(b)03d' % {'a': 1, 'b': 2} }} {{ '%s' % l }} {{ '%s' % (l,) }} {{ '%5s|%.2s|%*d' % ('a', 'bcd', 4, 7) }} {{ '%s' % none }} {{ '%d%%' % 5 }} {{ '%#x|%#o|%.3d' % (255, 8, 5) }} {{ 'abc' % {} }}
{{ '%d' % 'a' }}
{{ '%s %s' % 1 }}
{{ '%s' % (1, 2) }}
{{ '%(x)s' % {'a': 1} }}
{{ '%y' % 1 }}
{{ '%s is %d'|format('a', 3) }} {{ '%(x)s'|format(x=4) }} {{ 'plain'|format }}
{{ rows|groupby('k') }} {% for g in rows|groupby('k') %}{{ g.grouper }}={{ g.list|map(attribute='v')|join(',') }};{% endfor %}{% for k, items in rows|groupby('k') %}{{ k }}{{ items|length }}{% endfor %}
{{ [{'n': 'b'}, {'n': 'A'}, {'n': 'B'}, {}]|groupby('n', default='z') }} {{ [{'n': 'b'}, {'n': 'A'}, {'n': 'B'}]|groupby('n', case_sensitive=true)|map('first')|list }} {{ [(1, 2), (0, 3), (1, 4)]|groupby(0) }}
{{ l|batch(2)|list }} {{ l|batch(2, 'x')|list }} {{ range(7)|slice(3)|list }} {{ range(7)|slice(3, 'x')|list }} {{ []|batch(3)|list }} {{ []|slice(2)|list }}
{{ 'foo bar baz qux'|truncate(9) }}|{{ 'foo bar baz qux'|truncate(9, true) }}|{{ 'foo bar baz qux'|truncate(11) }}|{{ 'foo bar baz qux'|truncate(11, false, '...', 0) }}|{{ 'foobarbazqux'|truncate(5, end='') }}|{{ u|truncate(4, leeway=0, end='…') }}
{{ 'abc'|truncate(2) }}
{% set j = joiner('|') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %} {% set c = joiner() %}{{ c() }}a{{ c() }}b
{% set c = cycler('a', 'b', 'c') %}{{ c.current }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.next() }}{{ c.next() }}{% set _ = c.reset() %}{{ c.current }}
{{ cycler() }}
{% for item in [{'n': 1, 'c': [{'n': 2, 'c': [{'n': 3}]}, {'n': 4}]}, {'n': 5}] recursive %}{{ item.n }}({{ loop.depth }}{{ loop.depth0 }}{{ loop.index }}{% if item.c %} {{ loop(item.c) }}{% endif %}){% endfor %}
{% for x in [1] %}{{ loop([2]) }}{% endfor %}
{% for a, (b, c) in [(1, (2, 3)), (4, [5, 6])] %}{{ a }}{{ b }}{{ c }};{% endfor %}{% for (a, b), c in [((1, 2), 3)] %}{{ a + b + c }}{% endfor %}{% set (a, (b, c)) = (1, (2, 3)) %}{{ a }}{{ b }}{{ c }}
{% block head %}[{{ s }}{% set inner = 1 %}]{% endblock %}{{ inner }}|{{ self.head() }}{% for i in [1, 2] %}{% block item scoped %}{{ i }}{% endblock %}{% block other %}{{ i }}{% endblock other %}{% endfor %}
{% block a %}{% endblock %}{% block a %}{% endblock %}
{% autoescape true %}{{ '<b>' }}{{ '<b>'|safe }}{{ '<b>'|escape }}{% set x = '<b>'|safe %}{{ '<a>' ~ x }}{{ '<i>' ~ '<b>' }}{{ ['<', '>'|safe]|join('&') }}{{ '<x>'|replace('<', '<<') }}{% set t %}<q>{{ '<' }}{% endset %}{{ t }}{% endautoescape %}{{ '<' }}
{% autoescape true %}{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m('<') }}{{ {'a': '<'} }}{{ '%s' % '<' }}{{ '<%s>'|safe % '<' }}{{ '<{}>'|safe|string }}{{ ('<{}>'|safe).format('<') }}{% endautoescape %}{{ m('<') }}
{{ '<a>'|e|e }} {{ '<a>'|e|forceescape }} {{ ('<'|safe) + '>' }} {{ '<' + ('>'|safe) }} {{ ('a<'|safe) * 2 }} {{ ('<'|safe).upper() is escaped }} {{ 'x' is escaped }} {{ ['<'|safe] }} {{ ('<a>'|safe)[0] is escaped }} {{ ('<'|safe).join(['<', '>'|safe]) }} {{ ('<x'|safe).replace('x', '<') }}
{{ 'ß ŉ ǆ ﬁ İ I'|upper }} {{ 'ß ŉ ǆ ﬁ İ ΑΣ Σ ΑΣΒ'|lower }} {{ 'ßa ŉa ǆa ﬁa they\'re o-neill (x) {y} [z] <w> ΑΣ'|title }} {{ "ßa ŉa ǆa ﬁa they're o-neill ΑΣ ΌΣΟΣ".title() }} {{ 'ﬁNE ǆX'|capitalize }} {{ 'ﬁNE'.capitalize() }} {{ 'aBßÉ'.swapcase() }} {{ 'Straße ﬁ'.casefold() }}
{{ 'ﬁ ŉ'.upper() }} {{ 'İ'.lower()|length }} {{ 'ὈΔΥΣΣΕΎΣ'.lower() }} {{ 'ᾳ'.upper() }} {{ 'ᾳ'.title() }} {{ 'ǅ'.lower() }} {{ 'ǅ'.upper() }} {{ 'ǅ'.title() }} {{ 'i\u0307'.upper() }} {{ 'Σ'.lower() }} {{ 'aΣ.'.lower() }} {{ 'aΣ.b'.lower() }}
{{ 'abc'.replace('', '-') }} {{ 'né你'.replace('', '.', 2) }} {{ ''.replace('', 'x') }} {{ 'aaa'.replace('aa', 'b') }} {{ 'abc'.replace('b', '') }} {{ 'abc'.replace('x', 'y', 0) }} {{ 'éé'|replace('é', 'e', 1) }} {{ 5|replace(5, 6) }} {{ 'abc'|replace('', '|') }}
{{ 'a,b,,c'.split(',') }} {{ 'a b  c '.split(' ') }} {{ 'abc'.split('abc') }} {{ 'a--b--c'.rsplit('--', 1) }} {{ ' a b c '.rsplit(None, 1) }} {{ 'a b c'.rsplit() }} {{ 'a b c'.split(maxsplit=1) }} {{ 'a,b,c'.split(sep=',', maxsplit=0) }} {{ ' a b '.split(None, 0) }} {{ 'aXbXc'.rsplit('X', -1) }} {{ '   '.split() }} {{ 'a\u3000b\x1fc'.split() }}
{{ 'a\nb\x0bc\x0cd\x1ce\x85f\u2028g\r\nh\n'.splitlines() }} {{ 'a\nb\r\n'.splitlines(true) }} {{ ''.splitlines() }} {{ '\n'.splitlines() }} {{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'abc'.partition('x') }} {{ 'abc'.rpartition('x') }}
{{ 'abcabc'.find('c', 3) }} {{ 'abcabc'.find('a', 1, 3) }} {{ 'né你né'.rfind('é') }} {{ 'abc'.rfind('') }} {{ 'abc'.find('') }} {{ 'abcabc'.rindex('b') }} {{ 'aaaa'.count('aa') }} {{ 'né你'.count('') }} {{ 'abcabc'.count('b', 2) }} {{ 'abc'.startswith('b', 1) }} {{ 'abc'.endswith('b', 0, 2) }} {{ 'abc'.startswith(('x', 'a')) }} {{ ''.startswith('') }} {{ 'abc'.find('c', -1) }} {{ 'abc'.index('b', -2) }}
{{ 'abc'.startswith(['a']) }}
{{ 'abc'.startswith((1, 'a')) }}
{{ 'abc'.index('x') }}
{{ 'a'.center(5) }}|{{ 'ab'.center(5, '*') }}|{{ 'a'.ljust(3, '.') }}|{{ 'a'.rjust(3) }}|{{ '-5'.zfill(5) }}|{{ '+'.zfill(3) }}|{{ 'abc'.zfill(2) }}|{{ 'a\tb\tc'.expandtabs(4) }}|{{ 'x'|center(4) }}|{{ 'é'.center(4, 'ü') }}
{{ '12'.isdigit() }}{{ '²'.isdigit() }}{{ '½'.isdigit() }}{{ '½'.isnumeric() }}{{ '一'.isnumeric() }}{{ '٣'.isdecimal() }}{{ '²'.isdecimal() }}{{ 'aé你'.isalpha() }}{{ 'a1'.isalpha() }}{{ 'a1²'.isalnum() }}{{ ' \t'.isspace() }}{{ ''.isspace() }}{{ 'aé'.isascii() }}{{ ''.isascii() }}{{ 'a\n'.isprintable() }}{{ 'Ab Cd'.istitle() }}{{ 'AB'.istitle() }}{{ 'ab1'.islower() }}{{ '12'.islower() }}{{ 'ǅ'.isupper() }}{{ 'A1'.isupper() }}{{ 'a_1'.isidentifier() }}{{ '1a'.isidentifier() }}{{ ''.isdigit() }}
{{ 'xay'.strip('xy') }} {{ 'éaé'.strip('é') }} {{ '\u3000a\u2003'.strip()|length }} {{ 'abc'.lstrip('cba') }}| {{ ' a '.strip(none) }} {{ 'a'.strip('') }}
{{ 'a'.strip(1) }}
{{ 'a'.strip(chars='a') }}
{{ 'a'|upper(1) }}
{{ 'a'|trim(foo=1) }}
{{ l|sort(foo=true) }}
{{ l|join('-', attr='x') }}
{{ 'a'|replace('a') }}
{{ n is divisibleby(num=7) }} {{ l is sequence }} {{ d.items() is sequence }} {{ d.items() is iterable }} {{ range(3) is sequence }} {{ (1, 2) is sequence }} {{ s is sequence }} {{ l is mapping }} {{ 'upper' is filter }} {{ 'nope' is filter }} {{ 'even' is test }} {{ 1.0 is integer }} {{ 1.0 is number }} {{ 3.0 is odd }} {{ l is callable }} {{ range is callable }}
{{ l|select('>', 1)|list }} {{ l|select('==', 1)|list }} {{ l|reject('even')|list }} {{ l|select('in', [1, 2])|list }} {{ none|select|list }} {{ none|map('upper')|list }} {{ ''|selectattr('a')|list }}
{{ d.items() }} {{ d.keys() }} {{ d.values() }} {{ range(3) }} {{ range(1, 9, 2) }} {{ range(0) }} {{ d.items()|list }} {{ range(5)[1:3]|list }} {{ range(5)[-1] }} {{ d.items()|length }} {{ d.items()[0] }}| {{ dict(a=1).items() == dict(a=1).items() }}
{% set g = l|map('string') %}{{ g|list }}{{ g|list }} {{ 'x' if []|map('upper') else 'y' }} {{ 'x' if []|map('upper')|list else 'y' }} {{ (l|map('string'))[0] }}| {{ l|map('string') is sequence }} {{ l|map('string') is iterable }} {% for x in l|select('odd') %}{{ loop.last }}{{ loop.length }}{% endfor %}
{{ l|map('string')|length }}
{{ l|map('string')|tojson }}
{{ range(3)|tojson }}
{{ d.items()|tojson }}
{% macro m(a, b=2) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1) }}{{ m(1, 2, 3, 4) }}{{ m(1, x=5) }}{{ m(*[1, 2, 3]) }}{{ m(**{'a': 1, 'z': 2}) }}{{ m(0, *[1], b2=3, **{'y': 1}) }}{{ m.name }}{{ m.arguments }}{{ m.catch_kwargs }}{{ m.catch_varargs }}{{ m.caller }}
{{ [1, 2, 3]|join(*['-']) }} {{ dict(**{'a': 1}) }} {{ range(*[1, 4])|list }} {{ '{} {}'.format(*l) }}
{% macro m(a, b=a, c=n) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}
{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}{% call m() %}{% endcall %}
{{ l|unique|list }} {{ ['a', 'A', 'b']|unique|list }} {{ ['a', 'A']|unique(true)|list }} {{ rows|unique(attribute='k')|map(attribute='v')|list }} {{ ['b', 'A', 'c']|max }} {{ ['b', 'A', 'c']|min }} {{ rows|max(attribute='v') }} {{ []|max }}| {{ rows|sum(attribute='v') }} {{ [1.5, 2]|sum }} {{ [[1], [2]]|sum(start=[]) }} {{ [1, 2]|sum(start=10) }}
{{ ['a']|sum }}
{{ rows|sort(attribute='k,v') }} {{ ['b', 'a', 'B']|sort(reverse=true) }} {{ [(2, 'b'), (1, 'c')]|sort }} {{ {'b': 1, 'A': 2, 'c': 0}|dictsort }} {{ {'b': 1, 'A': 2, 'c': 0}|dictsort(by='value') }} {{ {'b': 1, 'A': 2}|dictsort(true) }} {{ {'b': 1, 'A': 2}|dictsort(reverse=true) }} {{ rows|sort(attribute='v', reverse=true)|map(attribute='v')|join }}
{{ d|dictsort(by='x') }}
{{ 42.5|round }} {{ 43.5|round }} {{ 42|round }} {{ 2.675|round(2) }} {{ 1234|round(-2) }} {{ 1250|round(-2) }} {{ 1234.5|round(-2) }} {{ 2.51|round(1, 'floor') }} {{ 2.51|round(1, 'ceil') }} {{ 1e300|round(2) }} {{ true|round }} {{ -2.5|round }} {{ 0.5|round|int }}
{{ 'x'|round }}
{{ '0x1f'|int(0, 16) }} {{ '1f'|int(base=16) }} {{ '077'|int(0, 8) }} {{ ' 12 '|int }} {{ '1_000'|int }} {{ '12.9'|int }} {{ '1e3'|int }} {{ ''|int }} {{ none|int(7) }} {{ [1]|int(3) }} {{ '-5'|int }} {{ '0b101'|int(0, 2) }} {{ '1e3'|float }} {{ ' 2.5 '|float }} {{ 'nan'|float }} {{ '-inf'|float }} {{ none|float(1.5) }} {{ '1__0'|int(9) }} {{ '0x10'|int }} {{ 'zz'|int(0, 36) }}
{{ 0x1F }} {{ 0o17 }} {{ 0b101 }} {{ 1_000_000 }} {{ 1e3 }} {{ 1.5e-7 }} {{ 9223372036854775807 }} {{ -9223372036854775807 - 1 }} {{ 1e22 }} {{ 123456789012345680.0 }} {{ 0.1 + 0.2 }} {{ 1e16 }} {{ 5e-324 }}
{{ 100|filesizeformat }} {{ 1000|filesizeformat }} {{ 1024|filesizeformat(true) }} {{ 1234567|filesizeformat }} {{ 1|filesizeformat }} {{ '2000'|filesizeformat }}
{{ 'a b/c?ü'|urlencode }} {{ {'a b': 'c&d', 'e': 1}|urlencode }} {{ 'hello big World 1_a é-b'|wordcount }} {{ 'a\n\nb'|indent(2, blank=true) }}|{{ 'a\nb'|indent('> ') }}|{{ 'a\nb'|indent(first=true) }}|{{ ''|indent(first=true) }}|
{{ rows|map(attribute='zz', default='-')|list }} {{ [[1, 2], [3]]|map('join', '+')|list }} {{ [[1, 2]]|map(attribute='0')|list }} {{ [[1, 2]]|map(attribute=1)|list }} {{ rows|map('attr', 'items')|list|length }} {{ [{'a': {'b': 1}}]|map(attribute='a.b')|list }} {{ words|map('replace', 'b', 'x')|list }}
{{ rows|map(attribute='v', foo=1)|list }}
{% set d2 = {'a': 1} %}{{ d2.setdefault('b', 2) }}{{ d2.setdefault('a', 9) }}{{ d2.pop('a') }}{{ d2.pop('zz', 'def') }}{{ d2 }}{% set _ = d2.update({'x': 1}, y=2) %}{% set _ = d2.update([('z', 3)]) %}{{ d2 }}{{ d2.popitem() }}{{ d2.copy() }}{% set _ = d2.clear() %}{{ d2 }}{{ dict([('a', 1)]) }}{{ d.get('b', 0) }}
{{ {'a': 1}.pop('b') }}
{% set l2 = [3, 1, 2] %}{% set _ = l2.sort() %}{{ l2 }}{% set _ = l2.reverse() %}{{ l2 }}{% set _ = l2.remove(1) %}{{ l2 }}{{ l2.copy() }}{% set _ = l2.clear() %}{{ l2 }}{{ [1, 2, 1].index(1, 1) }}{{ (1, 2, 1).count(1) }}{{ (1, 2).index(2) }}
{{ [1].remove(5) }}
{{ {1: 'a', 1.0: 'b', true: 'c'} }} {{ {(1, 2): 'x'}[(1, 2)] }} {{ {none: 1}[none] }} {{ (1, [2]) in {} }}
{{ {[1]: 2} }}
{{ {'a': 1} == {'a': 1.0} }} {{ [1, [2]] == [1, [2]] }} {{ (1,) == [1] }} {{ 'a' == 'a'|safe }} {{ none == none }} {{ [] == () }} {{ {'a': 1, 'b': 2} == {'b': 2, 'a': 1} }} {{ (1, 2) < (1, 3) }} {{ [] < [1] }} {{ 'Z' < 'a' }} {{ true < 2 }} {{ missing == missing2 }} {{ 1 != 2 != 1 }}
{{ {} < {} }}
{{ none < 1 }}
{{ 'abc'[::2] }} {{ 'né你好'[::-1] }} {{ 'né你好'[-2:] }} {{ 'abc'[5:] }}| {{ 'abc'[none:2] }} {{ l[true] }} {{ (1, 2, 3)[::-1] }} {{ 'abc'[-10:10] }} {{ l[1:][0] }} {{ d['a'][0] }} {{ d[]|default('u') }} {{ d[1, 2] is undefined }} {{ {(1, 2): 3}[1, 2] }}
{{ d[1:2] }}
{{ nil[1:] }}
{{ 7 // 2.0 }} {{ -7 // 2 }} {{ 7 % -2 }} {{ 7.5 % 2 }} {{ -7.5 % 2 }} {{ 2 ** 0.5 }} {{ 2 ** 3 ** 2 }} {{ 10 / 4 }} {{ 4 / 2 }} {{ true + true }} {{ 1 - 1.0 }} {{ 0 * -1.0 }} {{ 3 * [0] }} {{ (1,) * 2 }} {{ 'a' * 0 }} {{ -1 * 'a' }}|
{{ 0.0 ** -1 }}
{{ [] + () }}
{{ 1 % 0 }}
{{ loop }}
{% for x in l %}{{ loop }}{% endfor %} {{ namespace(a=1) }} {% macro mm() %}{% endmacro %}{{ mm }}
{% for x in l %}{% if loop.first %}{% continue %}{% endif %}{{ x }}{% else %}none{% endfor %} {% for x in l if x > 5 %}{{ x }}{% else %}none{% endfor %} {% for x in l %}{% for y in l if y > x %}{{ x }}{{ y }} {% endfor %}{% endfor %}
{% for k, v in {'b': 1, 'a': 2}|dictsort %}{{ k }}{{ v }}{% endfor %} {% for k, v in {'b': 1}|items %}{{ k }}{{ v }}{% endfor %} {% for i in range(3)|reverse %}{{ i }}{% endfor %} {% for x in 'ab' %}{{ loop.previtem|default('-') }}{{ loop.nextitem|default('+') }}{% endfor %}
{% for x in [1, 1, 2, 2, 1] %}{{ loop.changed(x, 'c') }}{% endfor %} {% for x in l %}{{ loop.cycle(1, 2) }}{% endfor %}
{% set ns = namespace() %}{% set ns.a = 1 %}{% with ns2 = ns %}{% set ns2.a = 5 %}{% endwith %}{{ ns.a }} {% with a = 1, b = a %}{{ b }}{% endwith %}| {% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q }}|
{% set x = 1 %}{% set y %}{% set x = 2 %}{{ x }}{% endset %}{{ x }}{{ y }} {% filter upper %}{% set x = 3 %}a{{ x }}{% endfilter %}{{ x }} {% set z | replace('a', 'b') | upper %}aaa{% endset %}{{ z }}
{% if x is defined and x %}a{% elif missing is not defined %}b{% endif %}{{ 'a' if missing else 'b' }}{{ 'a' if missing }}|
{{ größe }}|{% set größe = 5 %}{{ größe }} {% set ünï_2 = 'x' %}{{ ünï_2 }}
{{ '\x41\u00e9\U0001F600\101\n' }} {{ "\'" }} {{ '\\d' }}
{{ {'a': [1, {'b': none}], 'c': 'é"\\'}|tojson(indent=4) }} {{ [1, 2]|tojson(indent=0) }} {{ {'a': 1}|tojson(indent='--') }} {{ 'é\x7f😀'|tojson(true) }} {{ {'b': 1, 'a': {'d': 1, 'c': 2}}|tojson(sort_keys=true) }} {{ [1.0, 1e20, true]|tojson }} {{ '</script>&'|tojson }} {{ {'a': {}, 'b': []}|tojson(indent=2) }} {{ {1: 1, 1.5: 2, none: 3, true: 4}|tojson }}
{{ {'a': 1}|tojson(foo=1) }}
{{ {(1, 2): 1}|tojson }}
{{ '{"a": [1, 2.5, null, true, "x"]}'|from_json }} {{ '5'|from_json + 1 }}
{{ '{'|from_json }}
{{ 'a' is string is true }}
{{ s|default('x')|upper|lower|title|trim|length }} {{ (s|upper)[:3] }} {{ s|upper|list|first }} {{ -5|abs }} {{ -5.5|abs }} {{ (-5)|abs }} {{ 'x' ~ -1|abs }} {{ l|length - 1 }} {{ not l|length }} {{ 2 * 3|string }}
{{ true|abs }} {{ none|string }} {{ none|upper }} {{ none|trim }} {{ 5|title }} {{ [1, 'a']|string }} {{ none|list }}
{{ 5|first }}
{{ none|length }}
{{ none|join }}
{{ 'abc'|first }}{{ 'abc'|last }}{{ d|first }}{{ ''|first }}{{ []|last }} {{ l|attr('append') is callable }} {{ d|attr('b') }}| {{ s|count }} {{ d|list }} {{ 'abc'|reverse }} {{ (1, 2)|reverse|list }}
{% macro a(x) %}{% if x > 0 %}{{ x }}{{ a(x - 1) }}{% endif %}{% endmacro %}{{ a(10) }} {% macro outer() %}{% macro inner() %}i{% endmacro %}{{ inner() }}{% endmacro %}{{ outer() }}{{ inner is defined }}
{% for i in [1, 2] %}{% macro lm() %}{{ i }}{% endmacro %}{{ lm() }}{% endfor %}
{{ "it's" ~ 'say "x"' }} {{ ["it's", 'say "x"', "b'\""] }} {{ '\x00\x1f\x7f\xa0\xad\u200b\ud7ff\ue000' ~ '' == '' }} {{ ['\x00\x1f\x7f\xa0\xad\u200b\ue000\U0010ffff'] }}
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
    "{{ 'a\\\nb' }} {{ 1 +\n 2 }}",
    "{% macro a() -%}\n  x\n{%- endmacro %}\n[{{ a() }}]",
]


def environment(**syntax):
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            next(parser.stream)
            return parser.parse_statements(["name:endgeneration"], drop_needle=True)

    options = {"trim_blocks": True, "lstrip_blocks": True} | syntax
    env = SandboxedEnvironment(extensions=["jinja2.ext.loopcontrols", Generation], **options)
    env.filters["tojson"] = tojson
    env.filters["from_json"] = json.loads
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


if __name__ == "__main__":
    main()
