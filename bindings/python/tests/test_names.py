"""Errors name an argument as the function does that was called, on CPU tensors."""

import ast
import inspect
from pathlib import Path

import flashcore_attn
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import ragged  # noqa: E402  (needs PyTorch)
from flashcore_attn import flash_attn_interface as fa3  # noqa: E402

I32 = ragged.int32
Q, KV, CACHE = torch.randn(2, 1, 4, 16), torch.randn(2, 1, 2, 16), torch.randn(4, 8, 2, 16)
TABLES = {"rotary_cos": torch.ones(16, 4), "rotary_sin": torch.ones(16, 4)}
PAGED = {"q": Q, "k_cache": CACHE, "v_cache": CACHE, "cache_seqlens": I32([3, 4]), "page_table": I32([[0, 1], [2, 3]])}
NEW = {**PAGED, "v_cache": CACHE.clone(), "k": KV, "v": KV}
FP8 = {x: torch.ones(2, 8, 2, 16).to(torch.float8_e4m3fn) for x in "qkv"}
PACKED = {"q": torch.randn(5, 4, 16), "k": torch.randn(7, 2, 16), "v": torch.randn(7, 2, 16)}
PACKED |= {"cu_seqlens_q": I32([0, 2, 5]), "cu_seqlens_k": I32([0, 3, 7]), "max_seqlen_q": 5, "max_seqlen_k": 7}
INNER = {"q": Q, "k": CACHE, "v": CACHE, "seqused_k": PAGED["cache_seqlens"], "page_table": PAGED["page_table"]}
INNER_NEW = {**INNER, "v": CACHE.clone(), "k_new": KV, "v_new": KV}
OUTPUTS = {"dout": torch.zeros(2, 8, 2, 16), "out": torch.zeros(2, 8, 2, 16), "softmax_lse": torch.zeros(2, 2, 8)}
OUTPUTS |= {x: torch.zeros(2, 8, 2, 16) for x in ("q", "k", "v", "dq", "dk", "dv")}
PACKED_OUTPUTS = {**PACKED, "dout": PACKED["q"], "out": PACKED["q"], "softmax_lse": torch.zeros(4, 5)}
PACKED_OUTPUTS |= {"dq": PACKED["q"].clone(), "dk": PACKED["k"].clone(), "dv": PACKED["v"].clone()}

CASES = [
    # function, its arguments, what is changed, how the message begins
    ("flash_attn_func", {"q": Q, "k": KV, "v": KV}, {"q": [1.0]}, "q is a list; it must be a tensor"),
    ("flash_attn_func", FP8, {"q_descale": torch.ones(2, 3)}, "q_descale has"),
    ("flash_attn_func", FP8, {"v_descale": torch.ones(2, 2).half()}, "v_descale holds"),
    ("flash_attn_qkvpacked_func", {"qkv": torch.ones(2, 8, 3, 2, 16).to(torch.float8_e4m3fn)},
     {"k_descale": torch.ones(1, 2)}, "k_descale has"),
    ("flash_attn_varlen_func", PACKED, {"cu_seqlens_q": [0, 2, 5]}, "cu_seqlens_q is a list; it must be a tensor"),
    ("flash_attn_varlen_func", PACKED, {"cu_seqlens_q": None}, "q has shape (5, 4, 16); without cu_seqlens_q"),
    ("flash_attn_varlen_func", PACKED, {"max_seqlen_q": -7}, "max_seqlen_q is -7; it is a bound of lengths"),
    ("flash_attn_varlen_func", PACKED, {"max_seqlen_k": -1}, "max_seqlen_k is -1; it is a bound of lengths"),
    ("flash_attn_varlen_func", PACKED, {"max_seqlen_k": 7.5}, "max_seqlen_k is a float; it must be an int"),
    ("flash_attn_with_kvcache", PAGED, {"k_cache": CACHE[..., :8]}, "k_cache has shape"),
    ("flash_attn_with_kvcache", PAGED, {"v_cache": CACHE[:, :, :1]}, "v_cache has shape"),
    ("flash_attn_with_kvcache", PAGED, {"v_cache": CACHE.half()}, "v_cache holds"),
    ("flash_attn_with_kvcache", PAGED, {"k_cache": None}, "k_cache is a NoneType; it must be a tensor"),
    ("flash_attn_with_kvcache", PAGED, {"cache_seqlens": I32([3, 99])}, "cache_seqlens has 99 for sequence 1"),
    ("flash_attn_with_kvcache", PAGED, {"cache_seqlens": I32([3])}, "cache_seqlens has 1 entries"),
    ("flash_attn_with_kvcache", PAGED, {"cache_seqlens": I32([3, 4]).long()}, "cache_seqlens holds int64"),
    ("flash_attn_with_kvcache", PAGED, {"cache_seqlens": [3, 4]}, "cache_seqlens is a list; it must be an int or"),
    ("flash_attn_with_kvcache", PAGED, {"cache_seqlens": 5.5}, "cache_seqlens is a float; it must be an int or"),
    ("flash_attn_with_kvcache", PAGED, {"page_table": I32([[0, 9], [1, 2]]), "cache_seqlens": 9}, "page_table has 9"),
    ("flash_attn_with_kvcache", PAGED, {"page_table": I32([[0, 1]])}, "page_table has 1 rows"),
    ("flash_attn_with_kvcache", PAGED, {"page_table": torch.ones(2, 2)}, "page_table holds float32"),
    ("flash_attn_with_kvcache", PAGED, {"page_table": [[0, 1], [2, 3]]}, "page_table is a list"),
    ("flash_attn_with_kvcache", PAGED, {"cache_batch_idx": I32([0])}, "cache_batch_idx holds"),
    ("flash_attn_with_kvcache", PAGED, {"cache_leftpad": I32([0, 0]).long()}, "cache_leftpad holds torch.int64"),
    ("flash_attn_with_kvcache", PAGED, {"cu_seqlens_q": I32(0)}, "cu_seqlens_q has shape ()"),
    ("flash_attn_with_kvcache", PAGED, {"cu_seqlens_q": [0, 1, 2]}, "cu_seqlens_q is a list"),
    ("flash_attn_with_kvcache", PAGED, {"q_descale": torch.ones(2, 2)}, "q_descale was given"),
    ("flash_attn_varlen_func", {**PACKED, "cu_seqlens_q": None, "q": Q}, {"max_seqlen_q": 0},
     "max_seqlen_q is 0; q has 1 rows"),
    ("flash_attn_with_kvcache", PAGED, {"max_seqlen_q": -7}, "max_seqlen_q is -7; it is a bound of lengths"),
    ("flash_attn_with_kvcache", PAGED, {"max_seqlen_q": 0}, "max_seqlen_q is 0; q has 1 rows a sequence"),
    ("flash_attn_with_kvcache", NEW, {"max_seqlen_q": 0}, "max_seqlen_q is 0; q has 1 rows a sequence"),
    ("flash_attn_with_kvcache", PAGED, TABLES, "rotary_cos is given without k and v"),
    ("flash_attn_with_kvcache", {"q": FP8["q"], "k_cache": FP8["k"], "v_cache": FP8["v"]},
     {"k_descale": torch.ones(1, 2)}, "k_descale has"),
    ("flash_attn_with_kvcache", NEW, {"k": KV[:, :, :1]}, "k has"),
    ("flash_attn_with_kvcache", NEW, {"v": KV.half()}, "v holds"),
    ("flash_attn_with_kvcache", NEW, {"v": None}, "v is not given, but the other of k and v is"),
    ("flash_attn_with_kvcache", NEW, {"cache_seqlens": None}, "cache_seqlens is not given, but k is"),
    ("flash_attn_with_kvcache", NEW, {"cache_seqlens": I32([3, 16])}, "cache_seqlens has 16 for sequence 1"),
    ("flash_attn_with_kvcache", NEW, {"k_cache": CACHE.half()}, "k_cache holds"),
    ("flash_attn_with_kvcache", NEW, {**TABLES, "rotary_seqlens": I32([3, 3]).long()}, "rotary_seqlens holds int64"),
    ("flash_attn_with_kvcache", NEW, {"page_table": I32([[0, -1], [-1, 3]])}, "page_table has -1 in entry 0"),
    ("_flash_attn_forward", INNER, {"seqused_k": I32([3, 99])}, "seqused_k has 99 for sequence 1"),
    ("_flash_attn_forward", INNER, {"page_table": I32([[0, 1]])}, "page_table has 1 rows"),
    ("_flash_attn_forward", INNER, {"kv_batch_idx": I32([0])}, "kv_batch_idx holds"),
    ("_flash_attn_forward", INNER, {"leftpad_k": I32([0])}, "leftpad_k holds"),
    ("_flash_attn_forward", INNER, {"k": CACHE[:0]}, "k has shape (0, 8, 2, 16)"),
    ("_flash_attn_forward", INNER, TABLES, "rotary_cos is given without k_new and v_new"),
    ("_flash_attn_forward", INNER_NEW, {"k_new": KV.half()}, "k_new holds"),
    ("_flash_attn_forward", INNER_NEW, {"seqused_k": None}, "seqused_k is not given, but k_new is"),
    ("_flash_attn_forward", INNER_NEW, {**TABLES, "seqlens_rotary": I32([3, 3]).long()}, "seqlens_rotary holds int64"),
    ("_flash_attn_backward", OUTPUTS, {"softmax_lse": torch.zeros(2, 2, 7)}, "softmax_lse has"),
    ("_flash_attn_backward", PACKED_OUTPUTS, {"sequed_k": I32([3])}, "sequed_k has 1 entries"),
    ("_flash_attn_backward", PACKED_OUTPUTS, {"sequed_q": I32([2, 9])}, "sequed_q has 9 for sequence 1"),
]  # fmt: skip


@pytest.mark.parametrize("function, given, change, says", CASES, ids=[f"{case[0]}-{case[3]}" for case in CASES])
def test_errors_name_the_callers_argument(function, given, change, says):
    call = getattr(fa3, function)
    call(**given)
    with pytest.raises((TypeError, ValueError, RuntimeError)) as raised:
        call(**{**given, **change})
    assert str(raised.value).startswith(says), str(raised.value)


def test_a_call_that_does_not_fit_the_signature_is_not_renamed():
    with pytest.raises(TypeError, match="multiple values for argument 'k'"):
        fa3.flash_attn_with_kvcache(Q, CACHE, CACHE, KV, k=KV)


def test_plans_take_what_attention_takes():
    of = lambda function: inspect.signature(function).parameters.keys()
    assert of(flashcore_attn.plan) == of(flashcore_attn.attention)
    stub = ast.parse((Path(flashcore_attn.__file__).parent / "__init__.pyi").read_text())
    options = [node for node in stub.body if isinstance(node, ast.ClassDef) and node.name in ("OtherOptions", "Options")]
    names = [field.target.id for node in options for field in node.body]
    assert {"q", "k", "v", *names} == set(of(flashcore_attn.attention)) and len(names) == len(set(names))
    for function in (node for node in stub.body if isinstance(node, ast.FunctionDef)):
        if function.name in ("attention", "plan", "explain"):
            assert [arg.arg for arg in function.args.args] == ["q", "k", "v"], function.name
            assert ast.unparse(function.args.kwarg.annotation).startswith("Unpack[Options"), function.name
