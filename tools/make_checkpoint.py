#!/usr/bin/env python3
"""A checkpoint as published ones are, with random weights: make_checkpoint.py DIR GIGABYTES [SHARDS]

The family is qwen3_moe, the weights are BF16, and the same every time."""
import json
import os
import random
import struct
import sys

out, size, shards = sys.argv[1], float(sys.argv[2]) * 1e9, int(sys.argv[3]) if len(sys.argv) > 3 else 16
hidden, inner, experts, heads, dim, vocab = 1024, 1024, 64, 8, 128, 4096
layer_bytes = experts * 3 * hidden * inner * 2
layers = max(1, round(size / layer_bytes))

tensors = [("model.embed_tokens.weight", [vocab, hidden])]
for i in range(layers):
    at = f"model.layers.{i}."
    tensors += [(at + "input_layernorm.weight", [hidden]), (at + "post_attention_layernorm.weight", [hidden]),
                (at + "self_attn.q_proj.weight", [heads * dim, hidden]), (at + "self_attn.k_proj.weight", [2 * dim, hidden]),
                (at + "self_attn.v_proj.weight", [2 * dim, hidden]), (at + "self_attn.o_proj.weight", [hidden, heads * dim]),
                (at + "self_attn.q_norm.weight", [dim]), (at + "self_attn.k_norm.weight", [dim]),
                (at + "mlp.gate.weight", [experts, hidden])]
    for e in range(experts):
        tensors += [(f"{at}mlp.experts.{e}.{part}_proj.weight", shape) for part, shape in
                    (("gate", [inner, hidden]), ("up", [inner, hidden]), ("down", [hidden, inner]))]
tensors += [("model.norm.weight", [hidden]), ("lm_head.weight", [vocab, hidden])]

# Values of about 0.01 in size: a pool of them, of which every tensor gets a piece that begins elsewhere.
rng = random.Random(1)
low = rng.randbytes(16 << 20)
pool = bytearray(2 * len(low))
pool[0::2] = low
pool[1::2] = bytes(0x3C if b & 1 else 0xBC for b in low)


def count(shape):
    n = 2
    for d in shape:
        n *= d
    return n


total = sum(count(s) for _, s in tensors)
groups, room = [[]], 0
for name, shape in tensors:
    if room + count(shape) > total / shards and groups[-1] and len(groups) < shards:
        groups.append([])
        room = 0
    groups[-1].append((name, shape))
    room += count(shape)

os.makedirs(out)
index = {}
for n, group in enumerate(groups):
    file, at, head = f"model-{n + 1:05d}-of-{len(groups):05d}.safetensors", 0, {}
    for name, shape in group:
        head[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + count(shape)]}
        at += count(shape)
        index[name] = file
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(out, file), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name, shape in group:
            left, start = count(shape), rng.randrange(len(pool) // 2) * 2
            while left:
                piece = pool[start:start + left]
                f.write(piece)
                left -= len(piece)
                start = 0
with open(os.path.join(out, "model.safetensors.index.json"), "w") as f:
    json.dump({"metadata": {"total_size": total}, "weight_map": index}, f)
with open(os.path.join(out, "config.json"), "w") as f:
    json.dump({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": hidden,
               "intermediate_size": 2048, "moe_intermediate_size": inner, "num_hidden_layers": layers,
               "num_experts": experts, "num_experts_per_tok": 4, "norm_topk_prob": True, "num_attention_heads": heads,
               "num_key_value_heads": 2, "head_dim": dim, "vocab_size": vocab, "rms_norm_eps": 1e-6,
               "rope_theta": 1e6, "max_position_embeddings": 4096, "decoder_sparse_step": 1, "mlp_only_layers": [],
               "tie_word_embeddings": False, "hidden_act": "silu", "eos_token_id": 1}, f, indent=1)
