"""Trains small models in transformers and in switchyard, from the same weights on the same tokens, and compares the losses.

Needs torch and transformers: python3 parity.py SWITCHYARD [NAME ...]
It trains 50 steps of AdamW, in f32: betas 0.9 and 0.95, decay 0.1 of matrices, gradients clipped at 1. Every
step uses all tokens (256 windows, in shuffled order), so that their order does not matter. If
output_router_logits is true, transformers has a load-balancing loss of all layers together over the whole
batch, and an import sets the same. Exit code 1 if losses differ by more than a share of 1e-4.
"""

import json
import subprocess
import sys
import tempfile

import torch
import transformers as hf

SEQUENCES, LENGTH, STEPS, LR = 256, 8, 50, 3e-3


def sizes(**more):
    return dict(vocab_size=257, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                intermediate_size=44, max_position_embeddings=LENGTH, bos_token_id=0, eos_token_id=0, pad_token_id=0, **more)


BALANCED = dict(output_router_logits=True, router_aux_loss_coef=0.05)
TOGETHER = [f"--train.micro_batch={SEQUENCES}"]
CASES = [
    ("llama", "LlamaForCausalLM", hf.LlamaConfig(**sizes(tie_word_embeddings=True)), []),
    ("mixtral", "MixtralForCausalLM", hf.MixtralConfig(**sizes(num_local_experts=5, num_experts_per_tok=2)), []),
    ("mixtral_balanced", "MixtralForCausalLM",
     hf.MixtralConfig(**{**sizes(), "num_hidden_layers": 3}, num_local_experts=5, num_experts_per_tok=2, **BALANCED),
     TOGETHER),
    ("olmoe", "OlmoeForCausalLM", hf.OlmoeConfig(**sizes(num_experts=6, num_experts_per_tok=3)), []),
    ("olmoe_balanced", "OlmoeForCausalLM",
     hf.OlmoeConfig(**sizes(num_experts=6, num_experts_per_tok=3, **BALANCED)), TOGETHER),
    ("deepseek_v3", "DeepseekV3ForCausalLM",
     hf.DeepseekV3Config(**{**sizes(), "num_key_value_heads": 4, "num_hidden_layers": 3}, n_routed_experts=6,
                         num_experts_per_tok=3, moe_intermediate_size=12, q_lora_rank=9, kv_lora_rank=10, qk_rope_head_dim=4,
                         qk_nope_head_dim=6, v_head_dim=5, first_k_dense_replace=1, n_group=3, topk_group=2,
                         n_shared_experts=1, routed_scaling_factor=2.5),
     ["--moe.bias_update_rate=1e-30"]),  # selection biases do not change, as in transformers
]


def train(model, tokens):
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    adamw = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=LR,
                              betas=(0.9, 0.95), eps=1e-8)
    inputs = tokens[:-1].reshape(SEQUENCES, LENGTH)
    targets = tokens[1:].reshape(SEQUENCES, LENGTH)
    losses = []
    for _ in range(STEPS):
        out = model(inputs, use_cache=False)
        loss = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), targets.flatten())
        balance = model.config.router_aux_loss_coef * out.aux_loss if getattr(out, "aux_loss", None) is not None else 0
        adamw.zero_grad()
        (loss + balance).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        losses.append(loss.item())
    return losses


def main(switchyard, *only):
    failed = False
    for name, architecture, config, settings in CASES:
        if only and name not in only:
            continue
        if settings is not TOGETHER:
            settings = ["--moe.aux_loss=0", *settings]
        with tempfile.TemporaryDirectory() as folder:
            def run(*command):
                done = subprocess.run([switchyard, *command], capture_output=True, text=True)
                assert done.returncode == 0, done.stderr

            torch.manual_seed(3)
            config._attn_implementation = "eager"
            model = getattr(hf, architecture)(config).float()
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.dim() > 1:
                        parameter.normal_(std=0.08)
            model.save_pretrained(f"{folder}/model")
            text = bytes((i * i * 7 + i // 3) % 96 + 32 for i in range(SEQUENCES * LENGTH))
            with open(f"{folder}/text", "wb") as f:
                f.write(text)
            run("prepare", "--domain", f"text={folder}/text", "--valid-fraction", "0", "--output", f"{folder}/data", "--quiet")
            run("import", f"{folder}/model", f"{folder}/run", "--quiet")
            run("train", f"{folder}/run/config.ini", f"--run.init_from={folder}/run", f"--run.dir={folder}/on", "--quiet",
                f"--data.path={folder}/data", "--run.backend=cpu", f"--train.steps={STEPS}",
                f"--train.global_batch={SEQUENCES}", "--train.micro_batch=64", f"--train.lr={LR}",
                "--train.schedule=constant", "--train.warmup=0", "--moe.z_loss=0",
                f"--run.checkpoint_every={STEPS}", *settings)
            with open(f"{folder}/on/metrics.jsonl") as f:
                losses = [json.loads(line)["loss"] for line in f]
            model.train()
            hf_losses = train(model, torch.tensor(list(text) + [256]))
            worst = max(abs(a - b) / b for a, b in zip(losses, hf_losses))
            print(f"{name}: loss {hf_losses[0]:.6f} to {hf_losses[-1]:.6f}; ours {losses[0]:.6f} to {losses[-1]:.6f}; they differ by at most "
                  f"{worst:.2g} of it, over {len(losses)} steps", flush=True)
            failed |= len(losses) != STEPS or worst > 1e-4
    return failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
