"""moeflux: runs Mixture-of-Experts language models larger than memory.

    from moeflux import Model
    with Model("models/stories-moe") as model:
        for piece in model.generate("Once upon a time", max_tokens=40):
            print(piece, end="")
"""
from __future__ import annotations

import ctypes
import json
import os
from collections import deque
from ctypes import byref, c_char_p, c_float, c_int32, c_int64, c_size_t, c_void_p
from dataclasses import dataclass
from typing import Any, Deque, Dict, Iterator, List, Mapping, Optional, Sequence, Union

from . import _lib
from ._lib import MoefluxError, call, lib

__all__ = ["Event", "Form", "Model", "MoefluxError", "Reply", "Session"]
__version__ = "0.1.0"

_KINDS = ("reasoning", "text", "call", "arguments", "call_end", "token")
_ENDS = ("none", "stop", "stop_text", "length", "tool_calls", "complete", "context", "cancelled", "failed")
_SWITCH = {None: 0, True: 1, False: 2}

Message = Mapping[str, Any]


@dataclass
class Event:
    """A piece of an answer: `kind` is reasoning, text, call (a tool call begins), arguments or call_end."""
    kind: str
    text: str = ""
    call: int = 0
    name: Optional[str] = None
    id: Optional[str] = None


class _Owned:
    """A C object that is freed once, and before those that it needs: also when the interpreter ends and takes things
    away in any order."""

    def __init__(self, pointer: c_void_p, free: Any, *needs: "_Owned") -> None:
        self.pointer: Optional[c_void_p] = pointer
        self.users = 0
        self._later = False  # to be freed when the last user is
        self._free = free
        self._needs = needs
        for other in needs:
            other.users += 1

    def get(self) -> c_void_p:
        if self.pointer is None:
            raise ValueError("it is closed")
        return self.pointer

    def close(self) -> None:
        if self.pointer is None:
            return
        self._free(self.pointer)
        self.pointer = None
        for other in self._needs:
            other.users -= 1
            if other._later and not other.users:
                other.close()
        self._needs = ()

    def __del__(self) -> None:
        if self.users:
            self._later = True
        else:
            self.close()


class Form:
    """What an answer must be like. Compiled once, used for any number of answers."""

    def __init__(self, kind: int, source: str = "") -> None:
        out, data = c_void_p(), source.encode()
        call("mf_form_create", kind, data, len(data), byref(out))
        self._form = _Owned(out, lib.mf_form_free)

    @classmethod
    def json(cls) -> "Form":
        """Any JSON object or array."""
        return cls(0)

    @classmethod
    def schema(cls, schema: Union[str, Mapping[str, Any]]) -> "Form":
        """JSON that is valid for a JSON Schema."""
        return cls(2, schema if isinstance(schema, str) else json.dumps(schema))

    @classmethod
    def regex(cls, pattern: str) -> "Form":
        """A text that matches as a whole."""
        return cls(3, pattern)

    @classmethod
    def grammar(cls, rules: str) -> "Form":
        """Rules "name ::= ...", of which root is the text."""
        return cls(4, rules)


class Model:
    """A model directory, opened. Shared between threads; sessions of it hold it open."""

    def __init__(self, path: Union[str, "os.PathLike[str]"], *, backend: Optional[str] = None, threads: int = 0,
                 ram: int = 0, exact: bool = False, kv: str = "auto", prompt_cache_ram: int = 0,
                 prompt_cache_dir: Optional[str] = None, experts_per_token: int = 0) -> None:
        options, model, text = _lib.ModelOptions(), c_void_p(), c_void_p()
        lib.mf_model_options_init(byref(options))
        options.backend = backend.encode() if backend else None
        options.n_threads = threads
        options.ram_bytes = ram
        options.exact = exact
        options.kv = ("auto", "f16", "f32", "int8").index(kv)
        options.prompt_cache_ram = prompt_cache_ram
        options.prompt_cache_dir = os.fsencode(prompt_cache_dir) if prompt_cache_dir else None
        options.experts_per_token = experts_per_token
        self.path = os.fsdecode(path)
        call("mf_model_open", os.fsencode(path), byref(options), byref(model))
        self._model = _Owned(model, lib.mf_model_close)
        call("mf_text_open", os.fsencode(path), byref(text))
        self._text = _Owned(text, lib.mf_text_close)
        self._info: _lib.ModelInfo = lib.mf_model_info_get(model).contents
        about = _lib.TextInfo()
        lib.mf_text_info_get(text, byref(about))
        self.has_chat: bool = about.has_chat
        self.has_tools: bool = about.has_tools
        self.has_reasoning: bool = about.has_reasoning
        self.name: str = self._info.name.decode()
        self.family: str = self._info.family.decode()
        self.backend: str = self._info.backend.decode()
        self.n_vocab: int = self._info.n_vocab
        self.n_ctx: int = self._info.n_ctx
        self.n_layers: int = self._info.n_layers
        self.eos: List[int] = list(self._info.eos[:self._info.n_eos])

    def close(self) -> None:
        """Frees the model; its sessions must be closed before."""
        if self._model.users:
            raise ValueError(f"{self._model.users} sessions of the model are still open")
        self._text.close()
        self._model.close()

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *_: object) -> None:
        if not self._model.users:
            self.close()  # else with the last session that goes

    def encode(self, text: str, *, special: bool = False) -> List[int]:
        """Tokens of a text; special: markers such as <|im_end|> in it become their tokens."""
        data, n = text.encode(), c_size_t()
        ids = (c_int32 * (len(data) + 1))()
        call("mf_text_encode", self._text.get(), data, len(data), special, ids, len(ids), byref(n))
        return list(ids[:n.value])

    def decode(self, ids: Sequence[int]) -> str:
        n, given = c_size_t(), (c_int32 * len(ids))(*ids)
        call("mf_text_decode", self._text.get(), None, given, len(ids), None, 0, byref(n))
        data = ctypes.create_string_buffer(n.value + 1)
        call("mf_text_decode", self._text.get(), None, given, len(ids), data, n.value, byref(n))
        return data.raw[:n.value].decode("utf-8", "replace")

    def session(self, *, n_ctx: int = 0, n_chunk: int = 0) -> "Session":
        return Session(self, n_ctx=n_ctx, n_chunk=n_chunk)

    def generate(self, prompt: str, **options: Any) -> Iterator[str]:
        """Continues a text, in a session of its own: pieces as they come. Options as those of Session.reply."""
        with self.session() as session:
            yield from session.generate(prompt, **options)

    def ask(self, messages: Sequence[Message], **options: Any) -> str:
        """The answer to a conversation, as one text, without reasoning."""
        with self.session() as session:
            return "".join(e.text for e in session.chat(messages, **options) if e.kind == "text")


class Session:
    """One sequence of tokens. Used by one thread at a time."""

    def __init__(self, model: Model, *, n_ctx: int = 0, n_chunk: int = 0, _pointer: Optional[c_void_p] = None) -> None:
        self.model = model
        self.n_ctx = n_ctx or model.n_ctx
        out = _pointer or c_void_p()
        if _pointer is None:
            options = _lib.SessionOptions()
            lib.mf_session_options_init(byref(options))
            options.n_ctx, options.n_chunk = n_ctx, n_chunk
            call("mf_session_create", model._model.get(), byref(options), byref(out))
        self._session = _Owned(out, lib.mf_session_free, model._model)
        self._row = (c_float * model.n_vocab)()

    def close(self) -> None:
        self._session.close()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return int(lib.mf_memory_length(self._session.get()))

    @property
    def tokens(self) -> List[int]:
        n = len(self)
        return list(lib.mf_memory_tokens(self._session.get())[:n]) if n else []

    @property
    def logits(self) -> memoryview:
        """Of the token evaluated last: n_vocab floats, which numpy.asarray takes without a copy; the next call writes
        over them."""
        return memoryview(self._row).cast("B").cast("f")

    def clear(self) -> None:
        lib.mf_memory_clear(self._session.get())

    def fork(self) -> "Session":
        """A second session that goes on from the same state."""
        out = c_void_p()
        call("mf_session_fork", self._session.get(), byref(out))
        return Session(self.model, n_ctx=self.n_ctx, _pointer=out)

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        call("mf_state_save_file", self._session.get(), os.fsencode(path))

    def load(self, path: Union[str, "os.PathLike[str]"]) -> None:
        call("mf_state_load_file", self._session.get(), os.fsencode(path))

    def eval(self, tokens: Sequence[int], *, n_logits: int = 1) -> memoryview:
        """Evaluates tokens behind those it holds; the logits of the last n_logits of them, shaped (n_logits, n_vocab)."""
        n_vocab = self.model.n_vocab
        ids = (c_int32 * len(tokens))(*tokens)
        rows = self._row if n_logits == 1 else (c_float * (n_vocab * n_logits))()
        call("mf_eval_prompt", self._session.get(), ids, len(ids), len(self), rows, n_vocab * n_logits)
        if n_logits > 1:
            ctypes.memmove(self._row, ctypes.byref(rows, 4 * n_vocab * (n_logits - 1)), 4 * n_vocab)
        return memoryview(rows).cast("B").cast("f", (n_logits, n_vocab)) if n_logits else memoryview(b"")

    def generate(self, prompt: str, **options: Any) -> Iterator[str]:
        """Continues a text: pieces as they come. The session holds prompt and answer afterwards."""
        for event in self.reply(text=prompt, **options):
            if event.kind == "text":
                yield event.text

    def chat(self, messages: Sequence[Message], *, tools: Optional[Sequence[Mapping[str, Any]]] = None,
             **options: Any) -> "Reply":
        """Answers a conversation; what the session holds of its beginning is not evaluated again."""
        return self.reply(messages=messages, tools=tools, **options)

    def reply(self, **options: Any) -> "Reply":
        """An answer in events. text or messages say to what; max_tokens, temperature, top_k, top_p, min_p, seed, stop,
        form, reasoning (True or False) and others of the sampler say how."""
        return Reply(self, **options)


class Reply:
    """An answer on its way: iterate over its events; then `end`, `n_prompt` and `n_tokens` say how it went."""

    def __init__(self, session: Session, *, text: Optional[str] = None, messages: Optional[Sequence[Message]] = None,
                 tools: Optional[Sequence[Mapping[str, Any]]] = None, max_tokens: int = -1,
                 stop: Sequence[str] = (), form: Optional[Form] = None, reasoning: Optional[bool] = None,
                 logit_bias: Optional[Mapping[int, float]] = None, **sampling: Any) -> None:
        self.end = "none"
        self.n_prompt = self.n_tokens = 0
        self._session = session
        self._events: Deque[Event] = deque()
        self._bytes: List[Any] = []  # what C points to
        options = _lib.ReplyOptions()
        lib.mf_reply_options_init(byref(options))
        call("mf_sampler_options_load", byref(options.sampling), os.fsencode(session.model.path))
        known = {name for name, _ in _lib.SamplerOptions._fields_} - {"bias", "n_bias"}
        for name, value in sampling.items():
            if name not in known:
                raise TypeError(f"there is no option {name}")
            setattr(options.sampling, name, value)
        self._set_prompt(options, text, messages, tools)
        self._set_lists(options, stop, logit_bias or {})
        options.max_tokens = max_tokens
        options.n_ctx = session.n_ctx
        options.reasoning = _SWITCH[reasoning]
        options.form = form._form.get() if form else None
        self._fn = options.fn = _lib.EVENT_FN(self._take)
        out = c_void_p()
        call("mf_reply_create", session.model._text.get(), byref(session.model._info), byref(options), byref(out))
        self._reply = _Owned(out, lib.mf_reply_free, session.model._text)
        self._steps = self._run()

    def _set_prompt(self, options: _lib.ReplyOptions, text: Optional[str], messages: Optional[Sequence[Message]],
                    tools: Optional[Sequence[Mapping[str, Any]]]) -> None:
        if (text is None) == (messages is None):
            raise TypeError("either text or messages")
        if text is not None:
            options.text = data = text.encode()
            options.text_size = len(data)
            options.text_special = True
        else:
            request: Dict[str, Any] = {"messages": list(messages or ())}
            if tools:
                request["tools"] = list(tools)
            options.request = data = json.dumps(request).encode()
            options.request_size = len(data)
            held = self._session.tokens
            self._bytes.append((c_int32 * (len(held) or 1))(*held))
            options.known = self._bytes[-1]
            options.n_known = len(held)
        self._bytes.append(data)

    def _set_lists(self, options: _lib.ReplyOptions, stop: Sequence[str], bias: Mapping[int, float]) -> None:
        stops = [stop] if isinstance(stop, str) else list(stop)
        self._bytes.append((c_char_p * (len(stops) or 1))(*[s.encode() for s in stops]))
        options.stops = self._bytes[-1]
        options.n_stops = len(stops)
        self._bytes.append((_lib.LogitBias * (len(bias) or 1))(*[_lib.LogitBias(i, b) for i, b in bias.items()]))
        options.sampling.bias = self._bytes[-1]
        options.sampling.n_bias = len(bias)

    def _take(self, _user: Any, event: Any) -> int:
        e = event.contents
        text = ctypes.string_at(e.text, e.n_text).decode("utf-8", "replace") if e.n_text else ""
        self._events.append(Event(_KINDS[e.kind], text, e.call, e.name.decode() if e.name else None,
                                  e.id.decode() if e.id else None))
        return 0

    def _prompt(self) -> None:
        session, p = self._session, _lib.ReplyPrompt()
        lib.mf_reply_prompt_get(self._reply.get(), byref(p))
        call("mf_prompt", session._session.get(), p.ids, p.n_ids, p.marks, p.n_marks, session._row,
             session.model.n_vocab, None)

    def _run(self) -> Iterator[Event]:
        session = self._session
        pointer = session._session
        try:
            self._prompt()
            while True:
                ids, n = ctypes.POINTER(c_int32)(), c_size_t()
                call("mf_reply_step", self._reply.get(), session._row, byref(ids), byref(n))
                while self._events:
                    yield self._events.popleft()
                if not n.value:
                    break
                call("mf_eval_prompt", pointer.get(), ids, n.value, c_int64(len(session)), session._row,
                     session.model.n_vocab)
        finally:
            self._finish()
        while self._events:
            yield self._events.popleft()

    def _finish(self) -> None:
        if self._reply.pointer is None:
            return
        result = _lib.ReplyResult()
        call("mf_reply_finish", self._reply.get())
        lib.mf_reply_result_get(self._reply.get(), byref(result))
        self.end, self.n_prompt, self.n_tokens = _ENDS[result.end], result.n_prompt, result.n_made
        self._reply.close()

    def close(self) -> None:
        """Ends the answer where it is."""
        self._steps.close()  # type: ignore[attr-defined]
        self._finish()

    def __iter__(self) -> Iterator[Event]:
        return self._steps

    @property
    def text(self) -> str:
        """All of the text that is still to come."""
        return "".join(e.text for e in self if e.kind == "text")
