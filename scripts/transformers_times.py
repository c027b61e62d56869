#!/usr/bin/env python3
"""Times Transformers models with `fc_attention` and with `sdpa`. Needs a GPU.

usage: transformers_times.py [MODEL] ... [--prompts N,N] [--measure prefill,dynamic,static,pairs,continuous]
                             [--rounds N] [--dtype bfloat16]   (one JSON row a line)

MODEL is `llama` (16 layers, 32 heads that share 8, head_dim 64, of the sizes of Llama 3.2 1B), `gemma` (soft cap and
windows, of the sizes of Gemma 2 2B), `oss` (sinks and windows, attention as in gpt-oss 20B, fewer layers and experts)
or `smollm` (30 layers, 9 heads that share 3, head_dim 64, of the sizes of SmolLM2 135M); random weights. `eager` is the
peer of models that `sdpa` does not serve. Where an implementation fails, the row has its error. They run in turn, and
each row has the milliseconds of every round (`rounds_ms`) and how busy the host was (`load`, of `cores`). `prefill_ms`
is a forward call over the prompt. `token_ms` is a step of `generate` after the first of 200 tokens, with a dynamic or a
static cache; with a static one Transformers compiles steps by itself. `fc_attention` fills all caches, so that the
memory of `eager` suffices for long prompts. `pairs` are forward calls of a token with a dynamic cache, for a batch of
all prompts with padding on the left: the implementations take turns step by step, since a host's speed changes within
seconds. `speed` is the median of the ratios of neighbours, with its interval of 95 %. `continuous_ms` is
`generate_batch` of 64 prompts of 100 to 2,000 tokens, 64 new ones each.
"""

import argparse
import copy
import json
import os
import statistics
import sys
import time

import flashcore_attn.transformers
import torch
import transformers

TOKENS = 200
ALL = {"vocab_size": 32_000, "max_position_embeddings": 32_768, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def family(kind, own, **sizes):
    """The class of a model, its config, and what else serves it. Sizes: columns, of the feed-forward, layers, heads, K/V heads."""
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    config = {**ALL, **dict(zip(names, sizes.pop("sizes"), strict=True)), **sizes}
    return getattr(transformers, f"{kind}ForCausalLM"), getattr(transformers, f"{kind}Config")(**config), own


MODELS = {
    "llama": lambda: family("Llama", "sdpa", sizes=(2048, 8192, 16, 32, 8), head_dim=64),
    "gemma": lambda: family("Gemma2", "eager", sizes=(2304, 9216, 26, 8, 4), head_dim=256, sliding_window=4096),
    "oss": lambda: family("GptOss", "eager", sizes=(2880, 2880, 12, 64, 8), head_dim=64, num_local_experts=4, num_experts_per_tok=2),
    "smollm": lambda: family("Llama", "sdpa", sizes=(576, 1536, 30, 9, 3), head_dim=64, vocab_size=49_152),
}


def seconds(function):
    torch.cuda.synchronize()
    started = time.perf_counter()
    function()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def in_turn(model, implementations, rounds, run):
    """The milliseconds of all rounds of each implementation, which `run` returns, after one that is not counted."""
    times = {name: [] for name in implementations}
    for turn in range(-1, rounds):
        for name in implementations:
            model.set_attn_implementation(name)
            taken = run() * 1e3
            if turn >= 0:
                times[name].append(taken)
    return times


class Clock(transformers.StoppingCriteria):
    """When each token was there. `generate` reads from the device after each step whether it has ended."""

    def __init__(self):
        self.steps = []
        self.no = torch.zeros(1, dtype=torch.bool, device="cuda")

    def __call__(self, ids, scores, **options):
        self.steps.append(time.perf_counter())
        return self.no


def generation(model, prompt, kind):
    """A function that generates tokens with the model's implementation and returns the seconds of one after the first."""
    ids = torch.randint(3, ALL["vocab_size"], (1, prompt), device="cuda")
    torch._dynamo.reset()
    static = transformers.StaticCache(config=model.config, max_cache_len=prompt + TOKENS + 2)

    def run():
        cache = static
        if kind == "static":
            static.reset()
        else:
            cache = transformers.DynamicCache(config=model.config)
        name = model.config._attn_implementation
        model.set_attn_implementation(flashcore_attn.transformers.NAME)
        model(ids, past_key_values=cache, logits_to_keep=1)
        model.set_attn_implementation(name)
        clock, longer = Clock(), torch.cat((ids, ids[:, :1]), 1)
        options = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False, "stopping_criteria": [clock]}
        model.generate(longer, attention_mask=torch.ones_like(longer), past_key_values=cache, **options)
        assert len(clock.steps) == TOKENS, "a criterion is asked once for each token"
        return (clock.steps[-1] - clock.steps[0]) / (TOKENS - 1)

    return run


def pairs(model, implementations, prompts, rounds):
    """Steps of a batch in turns: the median of the ratios of neighbours, its interval, and the medians in milliseconds.

    Two rounds are not counted, in which either implementation sees each length.
    """
    longest = max(prompts)
    ids = torch.randint(3, ALL["vocab_size"], (len(prompts), longest), device="cuda")
    mask = torch.ones_like(ids)
    for row, length in zip(mask, prompts):
        row[: longest - length] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    model.set_attn_implementation(flashcore_attn.transformers.NAME)
    prompt = transformers.DynamicCache(config=model.config)
    given = {"attention_mask": mask, "position_ids": positions, "past_key_values": prompt, "logits_to_keep": 1}
    first = model(ids, **given).logits.argmax(-1)
    times, ratios = {name: [] for name in implementations}, []
    for turn in range(-2, rounds):
        cache, token, seen, at, steps = copy.deepcopy(prompt), first, mask, positions[:, -1:], []
        for step in range(TOKENS):
            name = implementations[(turn + step) % 2]
            seen, at = torch.cat((seen, mask[:, -1:]), 1), at + 1
            model.set_attn_implementation(name)
            given = {"attention_mask": seen, "position_ids": at, "past_key_values": cache}
            torch.cuda.synchronize()
            started = time.perf_counter()
            token = model(token, **given).logits.argmax(-1)
            torch.cuda.synchronize()
            steps.append((name, time.perf_counter() - started))
        if turn < 0:
            continue
        for name, taken in steps:
            times[name].append(taken * 1e3)
        for both in map(dict, zip(steps[::2], steps[1::2])):
            ratios.append(both[implementations[0]] / both[implementations[1]])
    ratios.sort()
    middle, margin = len(ratios) / 2, len(ratios) ** 0.5  # of a median of many independent ratios
    interval = [ratios[max(0, min(len(ratios) - 1, int(middle + side * margin)))] for side in (-1, 1)]
    return {
        "speed": statistics.median(ratios),
        "interval": interval,
        "pairs": len(ratios),
        "step_ms": {name: statistics.median(all_times) for name, all_times in times.items()},
    }


def continuous(model):
    """A function that serves prompts of mixed lengths by continuous batching, and returns the seconds of all."""
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(100, 2001, (64,), generator=draw).tolist()
    prompts = [torch.randint(3, ALL["vocab_size"], (length,), generator=draw).tolist() for length in lengths]
    room = transformers.ContinuousBatchingConfig(block_size=256, num_blocks=1200, max_batch_tokens=4096)
    until = transformers.GenerationConfig(max_new_tokens=64, min_new_tokens=64, do_sample=False, eos_token_id=None)
    return lambda: seconds(lambda: model.generate_batch(prompts, until, continuous_batching_config=room))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=["llama"], metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--prompts", default="1000,12000")
    parser.add_argument("--measure", default="prefill,dynamic,static")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    wanted = options.measure.split(",")
    if unknown := set(wanted) - {"prefill", "dynamic", "static", "pairs", "continuous"}:
        parser.error(f"--measure {','.join(sorted(unknown))}: give prefill, dynamic, static, pairs or continuous")
    prompts = [int(word) for word in options.prompts.split(",") if word]

    flashcore_attn.transformers.register()
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    about = {"device": torch.cuda.get_device_name(), **versions}
    for name in options.models:
        kind, config, own = MODELS[name]()
        torch.manual_seed(0)
        torch.set_default_dtype(getattr(torch, options.dtype))
        with torch.device("cuda"):
            model = kind(config).eval()
        implementations = [own, flashcore_attn.transformers.NAME]

        def row(what, measure, **about_it):
            try:
                found = {what: measure()}
                if what.endswith("_ms"):
                    rounds = found[what]
                    found = {what: {name: statistics.median(times) for name, times in rounds.items()}}
                    found |= {"rounds_ms": rounds, "load": os.getloadavg()[0], "cores": os.cpu_count()}
            except NotImplementedError as error:
                found = {"not_served": f"{what}: {error}"}
            print(json.dumps({"model": name, "dtype": options.dtype, **about_it, **found, **about}), flush=True)

        def timed(what, run, **about_it):
            row(what, lambda: in_turn(model, implementations, options.rounds, run), **about_it)

        with torch.inference_mode():
            if "pairs" in wanted:
                row("pairs", lambda: pairs(model, implementations, prompts, options.rounds), prompts=prompts)
            if "continuous" in wanted:
                timed("continuous_ms", continuous(model))
            for prompt in prompts:
                ids = torch.randint(3, ALL["vocab_size"], (1, prompt), device="cuda")
                if "prefill" in wanted:
                    timed("prefill_ms", lambda: seconds(lambda: model(ids, logits_to_keep=1)), prompt=prompt)
                for cache in ("dynamic", "static"):
                    if cache in wanted:
                        timed("token_ms", generation(model, prompt, cache), prompt=prompt, cache=cache)
        del model
        torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(main())
