#!/usr/bin/env python3
"""Trains a 2-layer Llama-shaped model on real text with `fc_attention` and with `sdpa`, and compares losses and times.

usage: train_llama.py [--steps N] [--seeds N,N,N] [--runs N] [--seq N] [--batch N] [--device cuda]
       (one JSON row a line)

The text is the documentation of the package `torch` (its files of docstrings and the sources of `torch.nn`), as bytes.
Both start from the same weights and see the same batches in the same order. Each runs N times for each seed (2 unless
told), in turns: kernels of both add gradients as blocks come, so that losses differ from run to run. `loss` is the mean
of the last 20 steps, `step_ms` the median of all but the first 20. The last row compares: `spread` is the largest
difference of two runs of `sdpa` of the same seed, `difference` that of a run of each, `of_means` that of their means,
and `over_seeds` is that of all runs of `sdpa`. Exit code: 1 if a loss falls by less than 1 nat, or if `of_means` is
more than `spread`. `fc_attention` raises for what it does not serve, so that nothing else computes for it.
"""

import argparse
import json
import pathlib
import statistics
import sys
import time

import flashcore_attn.transformers
import torch
import transformers

LAST = 20


def text():
    folder = pathlib.Path(torch.__file__).parent
    files = [folder / "_torch_docs.py", folder / "_tensor_docs.py", *sorted(folder.glob("nn/**/*.py"))]
    return torch.frombuffer(bytearray(b"\n".join(file.read_bytes() for file in files)), dtype=torch.uint8)


def model_of(options):
    # Attention as in Llama 3 8B, and half of its width; small where there is no GPU.
    heads, width = (16, 2048) if options.device == "cuda" else (4, 128)
    sizes = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": 2, "head_dim": width // heads}
    config = transformers.LlamaConfig(
        vocab_size=256, max_position_embeddings=options.seq, num_attention_heads=heads, num_key_value_heads=heads // 2,
        tie_word_embeddings=True, pad_token_id=None, bos_token_id=None, eos_token_id=None, **sizes,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).to(options.device)


def train(name, seed, data, options):
    """Losses of all steps, and their milliseconds."""
    torch.manual_seed(seed)
    model = model_of(options)
    model.set_attn_implementation(name)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=options.device == "cuda")
    draws = torch.Generator().manual_seed(seed)
    losses, times = [], []
    synchronise = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    for step in range(options.steps):
        starts = torch.randint(len(data) - options.seq, (options.batch,), generator=draws).to(data.device)
        ids = data[starts[:, None] + torch.arange(options.seq, device=data.device)].long()
        synchronise()
        began = time.perf_counter()
        for group in optimiser.param_groups:
            group["lr"] = 3e-4 * min(1.0, (step + 1) / 50)
        with torch.autocast(options.device, torch.bfloat16):
            loss = model(ids, labels=ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        synchronise()
        times.append((time.perf_counter() - began) * 1e3)
        losses.append(loss.item())
    return losses, times


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    if options.runs < 2:
        parser.error(f"--runs is {options.runs}; at least 2, whose losses differ")
    flashcore_attn.transformers.register(strict=True)
    data = text().to(options.device)
    device = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "device": device}
    own = flashcore_attn.transformers.NAME
    train(own, 0, data, argparse.Namespace(**{**vars(options), "steps": 2}))  # compiles
    runs = {}
    for seed in (int(word) for word in options.seeds.split(",")):
        for name in (own, "sdpa") * options.runs:
            losses, times = train(name, seed, data, options)
            row = {"attention": name, "seed": seed, "steps": options.steps, "first_loss": losses[0]}
            row |= {"loss": statistics.mean(losses[-LAST:]), "step_ms": statistics.median(times[LAST:] or times)}
            runs.setdefault((name, seed), []).append(row)
            print(json.dumps({**row, "bytes_of_text": len(data), **versions}), flush=True)
    seeds = sorted({seed for _, seed in runs})
    of = lambda name, seed: [row["loss"] for row in runs[name, seed]]
    step = lambda name: statistics.median(row["step_ms"] for (of, _), rows in runs.items() if of == name for row in rows)
    fell = min(row["first_loss"] - row["loss"] for rows in runs.values() for row in rows)
    range_of = lambda losses: max(losses) - min(losses)
    found = {
        "fell_by_at_least": fell,
        "difference": max(abs(one - other) for seed in seeds for one in of(own, seed) for other in of("sdpa", seed)),
        "spread": max(range_of(of("sdpa", seed)) for seed in seeds),
        "of_means": max(abs(statistics.mean(of(own, seed)) - statistics.mean(of("sdpa", seed))) for seed in seeds),
        "over_seeds": range_of([loss for seed in seeds for loss in of("sdpa", seed)]),
        "step_ms": {own: step(own), "sdpa": step("sdpa")},
    }
    print(json.dumps({**found, **versions}), flush=True)
    return int(fell < 1.0 or found["of_means"] > found["spread"])


if __name__ == "__main__":
    sys.exit(main())
