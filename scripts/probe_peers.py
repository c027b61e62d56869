#!/usr/bin/env python3
"""Writes the table of docs/compared.md: what other libraries serve, read from their wheels and sources.

    scripts/probe_peers.py fa3=FOLDER fa4=FOLDER flashinfer=FOLDER cudnn=FOLDER [--check]

Each FOLDER has an unpacked wheel (fa4: flash-attn-4, flashinfer: flashinfer-python, cudnn: nvidia-cudnn-frontend), or for
fa3 FlashAttention's sources, with their commit in a file COMMIT. A cell with a probe is a text, a file, and a regular expression that must
be found there; where it is not, the script ends and says so: the library has changed, and the cell must be read again.
A cell without a probe is from a project's documentation; a row without any says so. --check writes nothing, and ends
with an error where the page has another table or other versions."""
import datetime
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "compared.md"
BEGIN, END = "<!-- probed -->", "<!-- /probed -->"
LIBRARIES = {"fa3": "FA3", "fa4": "FA4", "flashinfer": "FlashInfer", "cudnn": "cuDNN", "candle": "candle-flash-attn"}
API3, API4 = "hopper/flash_api.cpp", "flash_attn/cute/interface.py"
CUH, PREFILL = "flashinfer/data/include/flashinfer/utils.cuh", "flashinfer/prefill.py"
NODE, NODES = "include/cudnn_frontend/node/scaled_dot_product_flash_attention.h", "include/cudnn_frontend/graph_properties.h"
WHEELS = {"fa4": "flash_attn_4", "flashinfer": "flashinfer_python", "cudnn": "nvidia_cudnn_frontend"}
# Row: FlashCore's cell, then those of the others: a text alone, or with the file and the expression that show it.
ROWS = {
    "GPUs": ("sm_80 and newer; measured on H200", {
        "fa3": ("sm_80 and newer; tuned for Hopper", API3, r"only supports Ampere GPUs or newer"),
        "fa4": ("sm_80 to sm_120", API4, r"arch // 10 in \[8, 9, 10, 11, 12\]"),
        "flashinfer": ("sm_75 to Blackwell", "flashinfer/jit/core.py", r"requires GPUs with sm75 or higher"), "cudnn": "sm_80 to Blackwell", "candle": "sm_80 and newer"}),
    "fp16, bf16": ("yes", {
        "fa3": ("yes", API3, r"qkv_dtype == at::ScalarType::Half \|\| qkv_dtype == at::ScalarType::BFloat16"),
        "fa4": ("yes", API4, r"v\.dtype in \[torch\.float16, torch\.bfloat16"),
        "flashinfer": "yes", "cudnn": "yes", "candle": "yes"}),
    "fp8": ("forward, Hopper and CPU", {
        "fa3": ("forward, Hopper", API3, r"Float8_e4m3fn"),
        "fa4": ("forward, sm_100", API4, r"FP8 is only supported on SM100"),
        "flashinfer": ("yes", PREFILL, r"float8_e4m3fn"), "cudnn": "Hopper, Blackwell", "candle": "no"}),
    "f32": ("yes, scalar", {"fa3": "no", "fa4": "no", "flashinfer": "?", "cudnn": "?", "candle": "no"}),
    "head_dim": ("to 256, multiples of 8", {
        "fa3": ("to 256", API3, r"only supports head dimension at most"),
        "fa4": ("Hopper: to 256; sm_100: 128, 192/128 or 256", API4, r"is_hdim256_shape"),
        "flashinfer": ("64, 128, 256", CUH, r"define DISPATCH_HEAD_DIM.*?case 64.*?case 128.*?case 256"), "cudnn": "to 256", "candle": "to 512"}),
    "causal, sliding window, soft cap, grouped heads": ("yes", {
        "fa3": ("yes", "hopper/flash_attn_interface.py", r"window_size.*softcap"),
        "fa4": ("yes", API4, r"window_size_left.*softcap"),
        "flashinfer": ("yes", PREFILL, r"window_left.*logits_soft_cap"), "cudnn": "yes", "candle": "yes"}),
    "ALiBi, score modifiers": ("ALiBi", {
        "fa3": ("no", API3, r"\A(?!.*alibi)"),
        "fa4": ("modifiers, not on sm_80", API4, r"score_mod is not supported on SM8x"),
        "flashinfer": ("ALiBi, custom", PREFILL, r"maybe_alibi_slopes"),
        "cudnn": ("ALiBi; modifiers and block masks (FlexAttention)", NODE, r"(?=.*attention_score_modifier).*block_mask"), "candle": "ALiBi"}),
    "attention sinks": ("forward", {
        "fa3": ("no", API3, r"\A(?!.*sink)"),
        "fa4": ("yes; gradient on Hopper and sm_100", API4, r"Learnable sink backward is supported on SM90 and SM100"),
        "flashinfer": ("yes", PREFILL, r"sinks: Optional"),
        "cudnn": ("yes, with gradient", NODES, r"DSINK_TOKEN|dsink_token|Dsink_token|DSink_token"), "candle": "no"}),
    "split-KV for decoding": ("yes", {
        "fa3": ("yes", API3, r"num_splits > 256 not supported"),
        "fa4": ("sm_100 alone", API4, r"SplitKV not supported on SM 8\.0.*SplitKV not supported on SM 9\.0.*SplitKV not supported on SM 12\.0"),
        "flashinfer": "yes", "cudnn": "yes", "candle": "?"}),
    "ragged batches (varlen)": ("yes", {
        "fa3": ("yes", "hopper/flash_attn_interface.py", r"def flash_attn_varlen_func"),
        "fa4": ("yes", API4, r"def flash_attn_varlen_func"),
        "flashinfer": ("yes", PREFILL, r"class BatchPrefillWithRaggedKVCacheWrapper"), "cudnn": "yes", "candle": "yes"}),
    "paged KV cache": ("yes", {
        "fa3": ("yes", API3, r"page_table must have dtype torch.int32"),
        "fa4": ("Hopper, sm_100", API4, r"paged KV not supported on SM 8\.0.*Paged KV not supported on SM 12\.0"),
        "flashinfer": ("yes", PREFILL, r"class BatchPrefillWithPagedKVCacheWrapper"), "cudnn": "yes", "candle": "yes"}),
    "append to the cache, rotary embedding": ("yes", {
        "fa3": ("yes", API3, r"If k_new is supplied, v_new must also be passed in.*rotary_cos"),
        "fa4": ("no", API4, r"\A(?!.*def flash_attn_with_kvcache)(?!.*rotary)"), "flashinfer": ("yes", "flashinfer/page.py", r"def append_paged_kv_cache"), "cudnn": "?", "candle": "no"}),
    "backward pass": ("yes; f32 is slow", {
        "fa3": ("yes", API3, r"TORCH_CHECK\(!deterministic \|\| head_size_rounded < 256"),
        "fa4": ("Hopper to sm_120", API4, r"arch // 10 in \[9, 10, 11, 12\]"),
        "flashinfer": ("head_dim 256, packed, causal, bf16, sm_100", "flashinfer/gqa_train.py", r"Packed-varlen causal GQA attention training with head dimension 256"),
        "cudnn": "yes", "candle": "no"}),
    "dropout": ("no", {
        "fa3": "no", "fa4": ("no", API4, r"\A(?!.*dropout)"),
        "flashinfer": "no", "cudnn": ("yes", NODE, r"dropout_probability"), "candle": "no"}),
}


def version(name, folder):
    """Of a wheel that of its metadata's folder, of sources their commit (a file COMMIT)."""
    if name not in WHEELS:
        return f"commit {(folder / 'COMMIT').read_text().strip()[:12]}"
    metadata = next(folder.glob(f"{WHEELS[name]}-*.dist-info"))
    return metadata.name.removeprefix(f"{WHEELS[name]}-").removesuffix(".dist-info")


def cell(folders, library, value, missing):
    if isinstance(value, str):
        return value
    text, file, pattern = value
    path = folders[library] / file
    if not path.is_file() or not re.search(pattern, path.read_text(encoding="utf-8", errors="replace"), re.DOTALL):
        missing.append(f"{library}: `{pattern}` is not in {path}: read it, and change the cell")
    return text + " \\*"


def main():
    folders = {name: Path(folder) for name, _, folder in (word.partition("=") for word in sys.argv[1:] if "=" in word)}
    if set(folders) != set(LIBRARIES) - {"candle"}:
        sys.exit(__doc__)
    missing, lines = [], ["| | FlashCore | " + " | ".join(LIBRARIES.values()) + " |", "|---" * 7 + "|"]
    for row, (ours, others) in ROWS.items():
        cells = [cell(folders, library, others[library], missing) for library in LIBRARIES]
        note = "" if any(text.endswith("*") for text in cells) else " (not probed)"
        lines.append(f"| {row}{note} | {ours} | " + " | ".join(cells) + " |")
    if missing:
        sys.exit("\n".join(missing))
    named = [f"{LIBRARIES[name]} {version(name, folder)}" for name, folder in folders.items()]
    day = datetime.date.today().isoformat()
    text = "\n".join(["", f"Cells with an asterisk were read on {day}:\n{', '.join(named)}.", "", *lines, ""])
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    known, after = rest.split(END)
    undated = lambda text: re.sub(r"read on \d{4}-\d\d-\d\d", "", text).strip()
    if "--check" not in sys.argv:
        PAGE.write_text(before + BEGIN + "\n" + text + END + after, encoding="utf-8")
    elif undated(known) != undated(text):
        sys.exit(f"{PAGE} has another table; without --check it is written")


main()
