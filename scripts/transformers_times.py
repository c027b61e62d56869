#!/usr/bin/env python3
"""Times Transformers models with `fc_attention` beside `sdpa`, and compares errors of logits. Needs a GPU.

usage: transformers_times.py [MODEL] ... [--prompts N,N] [--caches dynamic,static] [--rounds N]   (one JSON row a line)

MODEL is `llama` (16 layers, 32 heads that share 8, head_dim 64, of the sizes of Llama 3.2 1B), `gemma` (soft cap and
windows, of the sizes of Gemma 2 2B) or `oss` (sinks and windows, attention as in gpt-oss 20B, fewer layers and
experts); random weights, bf16. Where `sdpa` does not serve a model, it stands beside `eager`. What is not served is a
row with its error. The implementations run in turn. `prefill_ms` is a forward call over the prompt, `token_ms` a step of
`generate` after the first, with a static cache compiled as Transformers does it by itself. `error` is the mean
absolute error of logits of a short padded batch against attention in float64.
"""

import argparse
import json
import statistics
import sys
import time

import flashcore.transformers
import torch
import transformers
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

TOKENS = 200
ALL = {"vocab_size": 32_000, "max_position_embeddings": 32_768, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def llama():
    sizes = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32}
    config = transformers.LlamaConfig(**ALL, **sizes, num_key_value_heads=8, head_dim=64)
    return transformers.LlamaForCausalLM, config, "sdpa"


def gemma():
    sizes = {"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8}
    config = transformers.Gemma2Config(**ALL, **sizes, num_key_value_heads=4, head_dim=256, sliding_window=4096)
    return transformers.Gemma2ForCausalLM, config, "eager"


def oss():
    sizes = {"hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 12, "num_attention_heads": 64}
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    config = transformers.GptOssConfig(**ALL, **sizes, **experts, num_key_value_heads=8, head_dim=64)
    return transformers.GptOssForCausalLM, config, "eager"


def float64_attention(module, query, key, value, attention_mask, scaling=None, softcap=None, s_aux=None, **kwargs):
    """Attention as its definition has it. Rows that see nothing get numbers, too."""
    groups = query.shape[1] // key.shape[1]
    q, k, v = (x.double() for x in (query, key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)))
    scores = q @ k.mT * (scaling or query.shape[-1] ** -0.5)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if attention_mask is not None:
        scores = scores + attention_mask.double()
    if s_aux is not None:  # a score that every row has, of no key
        scores = torch.cat((scores, s_aux.double().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)), -1)
    weights = scores.softmax(-1)[..., : k.shape[2]]
    return (weights @ v).to(query.dtype).transpose(1, 2).contiguous(), None


def seconds(function):
    torch.cuda.synchronize()
    started = time.perf_counter()
    function()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def in_turn(model, implementations, rounds, function):
    """The median seconds of each, after a round that is not counted."""
    times = {name: [] for name in implementations}
    for _ in range(rounds + 1):
        for name in implementations:
            model.set_attn_implementation(name)
            times[name].append(seconds(function))
    return {name: statistics.median(all_times[1:]) for name, all_times in times.items()}


def errors(model, implementations):
    ids = torch.randint(3, 32_000, (3, 700), device="cuda")
    mask = torch.ones_like(ids)
    mask[0, :123], mask[1, :7] = 0, 0
    logits = {}
    for name in ("float64", *implementations):
        model.set_attn_implementation(name)
        logits[name] = model(ids, attention_mask=mask).logits[mask.bool()].double()
    return {name: (logits[name] - logits["float64"]).abs().mean().item() for name in implementations}


def generation(model, implementations, prompt, kind, rounds):
    """Milliseconds of a token after the first. A static cache is as long as prompt and answer."""
    ids = torch.randint(3, 32_000, (1, prompt), device="cuda")
    times = {}
    for name in implementations:
        model.set_attn_implementation(name)
        torch._dynamo.reset()  # compiled once for each
        cache = transformers.StaticCache(config=model.config, max_cache_len=prompt + TOKENS)

        def run(count):
            options = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False}
            if kind == "static":
                cache.reset()
                options["past_key_values"] = cache
            model.generate(ids, attention_mask=torch.ones_like(ids), **options)

        run(TOKENS)
        pairs = [(seconds(lambda: run(TOKENS)), seconds(lambda: run(1))) for _ in range(rounds)]
        times[name] = statistics.median((all_of - first) / (TOKENS - 1) * 1e3 for all_of, first in pairs)
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=["llama"])
    parser.add_argument("--prompts", default="1000,12000")
    parser.add_argument("--caches", default="dynamic,static")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    flashcore.transformers.register()
    AttentionInterface.register("float64", float64_attention)
    AttentionMaskInterface.register("float64", eager_mask)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    about = {"device": torch.cuda.get_device_name(), **versions}
    for name in options.models:
        kind, config, own = globals()[name]()
        torch.manual_seed(0)
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("cuda"):
            model = kind(config).eval()
        implementations = [own, flashcore.transformers.NAME]

        def row(what, measure, **about_it):
            try:
                found = {what: measure()}
            except NotImplementedError as error:
                found = {"not_served": f"{what}: {error}"}
            print(json.dumps({"model": name, **about_it, **found, **about}), flush=True)

        def prefill():
            times = in_turn(model, implementations, options.rounds, lambda: model(ids, logits_to_keep=1))
            return {name: time * 1e3 for name, time in times.items()}

        with torch.inference_mode():
            row("error", lambda: errors(model, implementations))
            for prompt in (int(word) for word in options.prompts.split(",") if word):
                ids = torch.randint(3, 32_000, (1, prompt), device="cuda")
                row("prefill_ms", prefill, prompt=prompt)
                for cache in filter(None, options.caches.split(",")):
                    tokens = lambda: generation(model, implementations, prompt, cache, options.rounds)
                    row("token_ms", tokens, prompt=prompt, cache=cache)
        del model
        torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(main())
