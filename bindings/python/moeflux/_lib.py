"""The C interface: structures and functions of moeflux.h, as far as the package uses them."""
from __future__ import annotations

import ctypes
import ctypes.util
import os
from ctypes import (CFUNCTYPE, POINTER, Structure, c_bool, c_char, c_char_p, c_double, c_float, c_int, c_int32, c_int64,
                    c_size_t, c_uint8, c_uint64, c_void_p)
from pathlib import Path


class MoefluxError(Exception):
    """A call failed. `status` is the code of moeflux.h, `name` its name ("E_FORMAT")."""

    def __init__(self, status: int, name: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.name = name


class Error(Structure):
    _fields_ = [("status", c_int), ("text", c_char * 640)]


class Callback(Structure):
    """A function and its user pointer: mf_log_sink, mf_route_sink, mf_open_sink, mf_probe."""
    _fields_ = [("fn", c_void_p), ("user", c_void_p)]


class Lossy(Structure):
    _fields_ = [("bonus", c_double), ("sure", c_double), ("tail", c_double), ("skip", c_double), ("small", c_double),
                ("promote", c_double), ("small_ram", c_double), ("protect", c_int), ("most", c_int)]


class ModelOptions(Structure):
    _fields_ = [("backend", c_char_p), ("exact", c_bool), ("kv", c_int), ("n_threads", c_int), ("pin_threads", c_bool),
                ("ram_bytes", c_int64), ("vram_bytes", c_int64), ("io", c_int), ("direct", c_int), ("prefetch", c_int),
                ("n_io_threads", c_int), ("policy", c_char_p), ("most_experts", c_int), ("experts_dirs", POINTER(c_char_p)),
                ("n_experts_dirs", c_int), ("cache_dir", c_char_p), ("experts_per_token", c_int), ("yarn", c_double),
                ("lossy", Lossy), ("log", Callback), ("routes", Callback), ("prompt_cache_ram", c_int64),
                ("prompt_cache_dir", c_char_p), ("prompt_cache_disk", c_int64), ("elsewhere", c_void_p * 5),
                ("experts_only", c_bool), ("progress", Callback)]


class ModelInfo(Structure):
    _fields_ = [("name", c_char_p), ("family", c_char_p), ("backend", c_char_p), ("n_vocab", c_int32),
                ("n_ctx", c_int32), ("n_ctx_trained", c_int32), ("n_layers", c_int32), ("n_hidden", c_int32),
                ("n_experts", c_int32), ("n_experts_per_token", c_int32), ("n_experts_trained", c_int32),
                ("n_eos", c_int32), ("eos", c_int32 * 8), ("trunk_bytes", c_int64), ("expert_bytes", c_int64),
                ("token_bytes", c_int64), ("n_expert_layers", c_int32), ("kv", c_char_p),
                ("kv_bytes_per_token", c_int64), ("state_bytes", c_int64)]


class SessionOptions(Structure):
    _fields_ = [("n_ctx", c_int32), ("n_chunk", c_int32), ("probe", Callback), ("cancel", c_void_p),
                ("cancel_user", c_void_p)]


class LogitBias(Structure):
    _fields_ = [("id", c_int32), ("bias", c_float)]


class SamplerOptions(Structure):
    _fields_ = [("temperature", c_float), ("top_k", c_int), ("top_p", c_float), ("min_p", c_float),
                ("typical_p", c_float), ("seed", c_uint64), ("repetition_penalty", c_float),
                ("frequency_penalty", c_float), ("presence_penalty", c_float), ("penalty_window", c_int),
                ("bias", POINTER(LogitBias)), ("n_bias", c_int)]


class TextInfo(Structure):
    _fields_ = [("has_chat", c_bool), ("has_tools", c_bool), ("has_reasoning", c_bool), ("n_tokens", c_int32)]


class EventC(Structure):
    _fields_ = [("kind", c_int), ("text", POINTER(c_char)), ("n_text", c_size_t), ("call", c_int), ("name", c_char_p),
                ("id", c_char_p), ("token", c_int32), ("part", c_int), ("logprob", c_float), ("top", c_void_p),
                ("n_top", c_int)]


EVENT_FN = CFUNCTYPE(c_int, c_void_p, POINTER(EventC))


class ReplyOptions(Structure):
    _fields_ = [("request", c_char_p), ("request_size", c_size_t), ("text", c_char_p), ("text_size", c_size_t),
                ("text_special", c_bool), ("ids", POINTER(c_int32)), ("n_ids", c_size_t), ("continue_last", c_bool),
                ("reasoning", c_int), ("effort", c_char_p), ("max_reasoning", c_int64), ("tool_choice", c_int),
                ("tool_name", c_char_p), ("one_call", c_bool), ("sampling", SamplerOptions), ("max_tokens", c_int64),
                ("n_ctx", c_int64), ("stops", POINTER(c_char_p)), ("n_stops", c_int), ("form", c_void_p),
                ("ignore_eos", c_bool), ("tokens", c_bool), ("n_logprobs", c_int), ("marks", c_void_p),
                ("n_marks", c_int), ("known", POINTER(c_int32)), ("n_known", c_size_t), ("like", c_void_p),
                ("fn", EVENT_FN), ("user", c_void_p)]


class ReplyPrompt(Structure):
    _fields_ = [("ids", POINTER(c_int32)), ("n_ids", c_size_t), ("marks", POINTER(c_int64)), ("n_marks", c_size_t),
                ("asked", POINTER(c_int64)), ("in_reasoning", c_bool)]


class ReplyResult(Structure):
    _fields_ = [("end", c_int), ("stop", c_int), ("n_calls", c_int), ("n_prompt", c_int64), ("n_made", c_int64),
                ("n_reasoning", c_int64)]


_E = POINTER(Error)
_P = POINTER(c_void_p)
_IDS = POINTER(c_int32)
_F = POINTER(c_float)

# name: result, arguments. A function that returns a status and ends with an Error is checked (see `call`).
_FUNCTIONS = {
    "mf_status_name": (c_char_p, [c_int]),
    "mf_model_options_init": (None, [POINTER(ModelOptions)]),
    "mf_model_open": (c_int, [c_char_p, POINTER(ModelOptions), _P, _E]),
    "mf_model_close": (None, [c_void_p]),
    "mf_model_info_get": (POINTER(ModelInfo), [c_void_p]),
    "mf_session_options_init": (None, [POINTER(SessionOptions)]),
    "mf_session_create": (c_int, [c_void_p, POINTER(SessionOptions), _P, _E]),
    "mf_session_free": (None, [c_void_p]),
    "mf_session_fork": (c_int, [c_void_p, _P, _E]),
    "mf_eval_prompt": (c_int, [c_void_p, _IDS, c_size_t, c_int64, _F, c_size_t, _E]),
    "mf_prompt": (c_int, [c_void_p, _IDS, c_size_t, POINTER(c_int64), c_size_t, _F, c_size_t, POINTER(c_int64), _E]),
    "mf_memory_clear": (None, [c_void_p]),
    "mf_memory_length": (c_int64, [c_void_p]),
    "mf_memory_tokens": (_IDS, [c_void_p]),
    "mf_state_save_file": (c_int, [c_void_p, c_char_p, _E]),
    "mf_state_load_file": (c_int, [c_void_p, c_char_p, _E]),
    "mf_text_open": (c_int, [c_char_p, _P, _E]),
    "mf_text_close": (None, [c_void_p]),
    "mf_text_encode": (c_int, [c_void_p, c_char_p, c_size_t, c_bool, _IDS, c_size_t, POINTER(c_size_t), _E]),
    "mf_text_decode": (c_int, [c_void_p, c_void_p, _IDS, c_size_t, c_char_p, c_size_t, POINTER(c_size_t), _E]),
    "mf_text_info_get": (None, [c_void_p, POINTER(TextInfo)]),
    "mf_form_create": (c_int, [c_int, c_char_p, c_size_t, _P, _E]),
    "mf_form_free": (None, [c_void_p]),
    "mf_sampler_options_load": (c_int, [POINTER(SamplerOptions), c_char_p, _E]),
    "mf_reply_options_init": (None, [POINTER(ReplyOptions)]),
    "mf_reply_create": (c_int, [c_void_p, POINTER(ModelInfo), POINTER(ReplyOptions), _P, _E]),
    "mf_reply_free": (None, [c_void_p]),
    "mf_reply_prompt_get": (None, [c_void_p, POINTER(ReplyPrompt)]),
    "mf_reply_step": (c_int, [c_void_p, _F, POINTER(_IDS), POINTER(c_size_t), _E]),
    "mf_reply_finish": (c_int, [c_void_p, _E]),
    "mf_reply_result_get": (None, [c_void_p, POINTER(ReplyResult)]),
}


def _places() -> "list[str]":
    """Where the library may be: MOEFLUX_LIBRARY, beside this package, in a tree it is part of, where the system looks."""
    given = os.environ.get("MOEFLUX_LIBRARY")
    if given:
        return [given]
    here = Path(__file__).resolve().parent
    places = [str(here / "libmoeflux.so")]
    if len(here.parents) > 2:
        places += [str(p) for p in sorted(here.parents[2].glob("build/*/src/libmoeflux.so"))]
    found = ctypes.util.find_library("moeflux")
    return [p for p in places if os.path.exists(p)] + ([found] if found else []) + ["libmoeflux.so.0.1"]


def _load() -> ctypes.CDLL:
    why = ""
    for place in _places():
        try:
            return ctypes.CDLL(place)
        except OSError as error:
            why = why or str(error)
    raise ImportError(f"libmoeflux.so cannot be loaded ({why}); build the target moeflux_shared (-DMF_SHARED=ON), and say where it is "
                      "in MOEFLUX_LIBRARY")


lib = _load()
for _name, (_result, _arguments) in _FUNCTIONS.items():
    _function = getattr(lib, _name)
    _function.restype = _result
    _function.argtypes = _arguments


def call(name: str, *arguments: object) -> None:
    """A function that returns a status; its last argument, the error, is ours."""
    error = Error()
    status = getattr(lib, name)(*arguments, ctypes.byref(error))
    if status:
        raise MoefluxError(status, lib.mf_status_name(status).decode(), error.text.decode("utf-8", "replace"))
