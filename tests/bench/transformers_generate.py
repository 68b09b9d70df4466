#!/usr/bin/env python3
"""Generation with a cache in transformers: what tests/bench/generate is measured against.

It is the same decoder with the same weights, fp32 on CPU: Mixtral if there are experts, Mistral if there
is a window, otherwise Llama. tests/bench/generate starts it and takes turns with it. The protocol is
lines of JSON:

    it prints  {"ready": true, "torch": "2.15.0", "transformers": "5.23.0", "threads": 2}
    it reads   {"prefill": 512, "batch": 16}   compute a prompt of 512 tokens, and use its cache for 16 sequences
    it prints  {"seconds": 1.5, "setting": "dynamic"}
    it reads   {"decode": 8}                   decode 8 more tokens of each sequence, in one pass each
    it prints  {"seconds": 0.9}                the last logits, [batch, vocab] f32, are in the file logits
    ...                                        until its input ends

A prefill also chooses the kind of cache, and the way of running the experts, for which decoding is
fastest. So the peer is the best of its settings. The token at position i of sequence b is
(7919 i + 104729 b) mod vocab, with b = 0 in prompts.

FOLDER/weights.json is {name: [first element, shape]} of FOLDER/weights.f32. Exit code 3: this Python has
no transformers.
"""

import argparse
import copy
import json
import os
import sys
import time

# Freed memory stays mapped, on huge pages if possible. glibc reads these variables when it starts.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "4000000000", "MALLOC_TRIM_THRESHOLD_": "4000000000",
             "MALLOC_TOP_PAD_": "100000000", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
if __name__ == "__main__" and "MALLOC_TOP_PAD_" not in os.environ:
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ALLOCATOR})

try:
    import torch
    import transformers
    from transformers import DynamicCache, StaticCache
except ImportError as error:
    print(f"transformers_generate.py: no transformers here: {error}", file=sys.stderr)
    sys.exit(3)

# Switchyard's parameter (or half of one) for each parameter of transformers.
OUTSIDE = {"model.embed_tokens.weight": "embedding.weight", "model.norm.weight": "final_norm.weight",
           "lm_head.weight": "output.weight"}
IN_LAYER = {"input_layernorm.weight": "attention_norm.weight", "post_attention_layernorm.weight": "ffn_norm.weight",
            **{f"self_attn.{x}_proj.weight": f"attention.{x}.weight" for x in "qkv"},
            "self_attn.o_proj.weight": "attention.out.weight",
            "mlp.down_proj.weight": "mlp.down.weight", "mlp.gate.weight": "moe.router.weight",
            "mlp.experts.gate_up_proj": "moe.experts.up.weight", "mlp.experts.down_proj": "moe.experts.down.weight"}
HALVES = {"mlp.gate_proj.weight": 0, "mlp.up_proj.weight": 1}  # of mlp.up.weight: [2, F, D]


def load(model, folder):
    index = json.load(open(os.path.join(folder, "weights.json")))
    values = torch.from_file(os.path.join(folder, "weights.f32"), size=sum(_elements(s) for _, s in index.values()))

    def ours(name):
        first, shape = index[name]
        return values[first:first + _elements(shape)].view(shape)

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in OUTSIDE:
                value = ours(OUTSIDE[name])
            else:
                _, _, layer, rest = name.split(".", 3)
                if rest in HALVES:
                    value = ours(f"layers.{layer}.mlp.up.weight")[HALVES[rest]]
                else:
                    value = ours(f"layers.{layer}.{IN_LAYER[rest]}")
            parameter.copy_(value.reshape(parameter.shape))


def _elements(shape):
    n = 1
    for d in shape:
        n *= d
    return n


def build(o):
    common = dict(vocab_size=o.vocab, hidden_size=o.d_model, intermediate_size=o.d_ff, num_hidden_layers=o.layers,
                  num_attention_heads=o.heads, num_key_value_heads=o.kv_heads, head_dim=o.d_model // o.heads,
                  rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
                  max_position_embeddings=1 << 16, tie_word_embeddings=False)
    if o.experts:
        config = transformers.MixtralConfig(num_local_experts=o.experts, num_experts_per_tok=o.top_k,
                                            sliding_window=o.window or None, **common)
    elif o.window:
        config = transformers.MistralConfig(sliding_window=o.window, **common)
    else:
        config = transformers.LlamaConfig(**common)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)
    load(model, o.folder)
    return model.eval()


class Generation:
    def __init__(self, o):
        self.o, self.model = o, build(o)

    def ids(self, begin, end, batch):
        return (torch.arange(begin, end)[None] * 7919 + torch.arange(batch)[:, None] * 104729) % self.o.vocab

    def forward(self, ids):
        return self.model(input_ids=ids, past_key_values=self.cache, use_cache=True, logits_to_keep=1).logits[:, -1]

    def prefill(self, length, batch):
        self.length, self.batch = length, batch
        self.cache = DynamicCache(config=self.model.config)
        begin = time.perf_counter()
        self.forward(self.ids(0, length, 1))
        seconds = time.perf_counter() - begin
        return {"seconds": seconds, "setting": self.choose()}

    def choose(self):
        """Chooses the fastest setting, each with two passes to warm up and two that count.

        The cache is left as it was.
        """
        prompt, best = self.cache, None
        for kind in ["dynamic"] + ([] if self.o.window else ["static"]):
            for experts in ["eager", "batched_mm", "grouped_mm"] if self.o.experts else [None]:
                def start():
                    if experts:
                        self.model.set_experts_implementation(experts)
                    self.cache = self.of_batch(prompt, kind)
                start()
                try:
                    self.decode(2, self.length)
                    seconds = self.decode(2, self.length + 2)["seconds"]
                except Exception as error:
                    print(f"transformers_generate.py: {kind}, {experts}: {error}", file=sys.stderr)
                    continue
                if best is None or seconds < best[0]:
                    best = seconds, start, " ".join(filter(None, [kind, experts]))
        best[1]()
        return best[2]

    def of_batch(self, prompt, kind):
        if kind == "dynamic":
            cache = copy.deepcopy(prompt)
            cache.batch_repeat_interleave(self.batch)
            return cache
        cache = StaticCache(config=self.model.config, max_cache_len=self.length + self.o.passes)
        for to, layer in zip(cache.layers, prompt.layers):
            keys, values = (x.expand(self.batch, -1, -1, -1) for x in (layer.keys, layer.values))
            to.lazy_initialization(keys, values)
            to.update(keys, values)
        return cache

    def decode(self, passes, at=None):
        begin = time.perf_counter()
        at = self.length if at is None else at
        for i in range(passes):
            logits = self.forward(self.ids(at + i, at + i + 1, self.batch))
        seconds = time.perf_counter() - begin
        self.last = logits
        return {"seconds": seconds}

    def more(self, passes):
        answer = self.decode(passes)
        self.length += passes
        self.last.numpy().astype("float32").tofile(os.path.join(self.o.folder, "logits"))
        return answer


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("d-model", "layers", "heads", "kv-heads", "d-ff", "experts", "top-k", "vocab", "window", "threads", "passes"):
        parser.add_argument("--" + name, type=int, required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--serve", action="store_true")
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    torch.set_grad_enabled(False)
    generation = Generation(o)
    print(json.dumps({"ready": True, "torch": torch.__version__, "transformers": transformers.__version__,
                      "threads": torch.get_num_threads()}), flush=True)
    for line in sys.stdin:
        told = json.loads(line)
        answer = generation.prefill(told["prefill"], told["batch"]) if "prefill" in told else generation.more(told["decode"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
