"""PyTorch's operators and FlashAttention-3's functions, on CPU tensors and, where there is one, on a CUDA device."""

import os
import shutil
import subprocess
import sys

import flashcore_attn
import numpy as np
import pytest
import reference

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import ops  # noqa: E402  (needs PyTorch)
from flashcore_attn import _names  # noqa: E402
from flashcore_attn import flash_attn_interface as fa3  # noqa: E402
from flashcore_attn.flash_attn_interface import flash_attn_func, flash_attn_qkvpacked_func  # noqa: E402

NO_CUDA = flashcore_attn.why_not_cuda() or (None if torch.cuda.is_available() else "this PyTorch sees no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(NO_CUDA is not None, reason=str(NO_CUDA)))]
OPTIONS = [
    {},
    {"causal": True},
    {"window_size": (5, 3)},
    {"causal": True, "window_size": (5, -1)},
    {"softcap": 4.0},
    {"softmax_scale": 0.3},
]


def tensors(device="cpu", dtype="float32", seq_q=33, seq_kv=50, heads=4, kv_heads=2, dim=16, dim_v=16):
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(shape, generator=generator).to(device, getattr(torch, dtype))
    return draw(2, seq_q, heads, dim), draw(2, seq_kv, kv_heads, dim), draw(2, seq_kv, kv_heads, dim_v)


def want(q, k, v, causal=False, window_size=(-1, -1), softcap=0.0, softmax_scale=None):
    window = tuple(None if side < 0 else side for side in window_size)
    q, k, v = (x.detach().double().cpu().numpy() for x in (q, k, v))
    return reference.attention(q, k, v, causal=causal, window=window, softcap=softcap or None, scale=softmax_scale)


def check(out, lse, q, k, v, **options):
    out_want, lse_want = want(q, k, v, **options)
    reference.check(out.detach().double().cpu().numpy(), out_want, str(q.dtype).removeprefix("torch."))
    reference.check_lse(lse.detach().cpu().numpy(), lse_want)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("device", DEVICES)
def test_flash_attn_func_equals_float64(device, dtype, options):
    q, k, v = tensors(device, dtype)
    out, lse = flash_attn_func(q, k, v, return_attn_probs=True, **options)
    assert out.shape == q.shape and out.dtype == q.dtype and out.is_contiguous()
    assert lse.shape == (2, 4, 33) and lse.dtype == torch.float32
    check(out, lse, q, k, v, **options)
    assert torch.equal(out, flash_attn_func(q, k, v, **options))


@pytest.mark.parametrize("device", DEVICES)
def test_strides_and_another_head_dim_of_v(device):
    q, k, v = tensors(device, "float16", dim=64, dim_v=128)
    k = k.transpose(1, 2).contiguous().transpose(1, 2)
    q = q.transpose(2, 3).contiguous().transpose(2, 3)  # the last dimension is not dense: it is copied
    out, lse = flash_attn_func(q, k, v, return_attn_probs=True)
    check(out, lse, q, k, v)


@pytest.mark.parametrize("device", DEVICES)
def test_qkv_in_one_tensor(device):
    q, k, v = tensors(device, seq_kv=33, kv_heads=4)
    expected = flash_attn_func(q, k, v, causal=True)
    assert torch.equal(flash_attn_qkvpacked_func(torch.stack((q, k, v), dim=2), causal=True), expected)
    k, v = k[:, :, :2], v[:, :, :2]
    packed = torch.cat((q, k, v), dim=2)
    out, lse = flash_attn_qkvpacked_func(packed, num_heads_q=4, return_attn_probs=True)
    check(out, lse, q, k, v)


@pytest.mark.parametrize("packed, num_heads_q", [((2, 5, 8, 16), None), ((2, 5, 7, 16), 4), ((2, 5, 2, 4, 16), None)])
def test_qkv_of_another_shape(packed, num_heads_q):
    with pytest.raises(ValueError, match=r"num_heads_q|qkv has shape"):
        flash_attn_qkvpacked_func(torch.zeros(packed), num_heads_q=num_heads_q)


def test_fp8_with_scales():
    q, k, v = (x.to(torch.float8_e4m3fn) for x in tensors(kv_heads=2, dim=64, dim_v=64))
    k_scale = torch.tensor([[0.5, 2.0], [1.0, 0.25]])
    out, lse = flash_attn_func(q, k, v, k_descale=k_scale, return_attn_probs=True)
    out_want, lse_want = flashcore_attn.attention(q, k, v, k_scale=k_scale, return_lse=True)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, out_want) and torch.equal(lse, lse_want)
    with pytest.raises(RuntimeError, match=r"k_descale has shape \[2, 4\].*\[2, 2\]"):
        flash_attn_func(q, k, v, k_descale=torch.ones(2, 4))
    with pytest.raises(RuntimeError, match="k_descale was given, but q holds f32; only float8_e4m3fn tensors have scales"):
        flash_attn_func(*tensors(), k_descale=k_scale)


def test_the_inner_function():
    q, k, v = tensors()
    out, lse, out_accum, lse_accum = fa3._flash_attn_forward(q, k, v, causal=True, window_size_left=7)
    check(out, lse, q, k, v, causal=True, window_size=(7, -1))
    assert out_accum.numel() == lse_accum.numel() == 0


@pytest.mark.parametrize("name, given", [("qv", "tensor"), ("attention_chunk", 16)])
def test_what_is_not_served_raises_with_its_name(name, given):
    q, k, v = tensors()
    with pytest.raises(NotImplementedError, match=f"^{name} is "):
        flash_attn_func(q, k, v, **{name: q if given == "tensor" else given})


@pytest.mark.parametrize("name, given", [("qv", "tensor"), ("out_", "tensor"), ("attention_chunk", 16)])
def test_the_inner_function_names_what_it_does_not_serve(name, given):
    q, k, v = tensors()
    with pytest.raises(NotImplementedError, match=f"^{name} is "):
        fa3._flash_attn_forward(q, k, v, **{name: q if given == "tensor" else given})


@pytest.mark.parametrize("size", [{"batch": 0}, {"seq_q": 0}, {"seq_kv": 0}], ids=str)
def test_calls_without_rows_or_keys_are_empty_or_zero(size):
    batch, seq_q, seq_kv = (size.get(name, usual) for name, usual in (("batch", 2), ("seq_q", 3), ("seq_kv", 5)))
    q = torch.randn(batch, seq_q, 4, 16, requires_grad=True)
    k, v = torch.randn(batch, seq_kv, 2, 16, requires_grad=True), torch.randn(batch, seq_kv, 2, 24)
    out, lse = flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    assert out.shape == (batch, seq_q, 4, 24) and lse.shape == (batch, 4, seq_q)
    assert not out.any() and lse.isneginf().all()
    dq, dk = torch.autograd.grad(out.sum(), (q, k))
    assert dq.shape == q.shape and dk.shape == k.shape and not dq.any() and not dk.any()


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda q, k, v: (q, k, torch.ones(2, 7, 2, 16)), r"v has shape \(2, 7, 2, 16\)"),
        (lambda q, k, v: (q, k[:1], v[:1]), r"k has shape \(1, 0, 2, 16\); its batch"),
        (lambda q, k, v: (q[..., :8], k, v), "its batch and head_dim must be those of q"),
        (lambda q, k, v: (q[:, :, :3], k, v), "its heads divide q's"),
        (lambda q, k, v: (q, k.half(), v), "k holds torch.float16"),
        (lambda q, k, v: (q.double(), k.double(), v.double()), "q holds torch.float64; allowed are float16"),
    ],
)
def test_empty_calls_are_checked(change, says):
    q, k, v = torch.randn(2, 3, 4, 16), torch.randn(2, 0, 2, 16), torch.randn(2, 0, 2, 16)
    with pytest.raises(ValueError, match=says):
        flash_attn_func(*change(q, k, v))


def test_wishes_about_the_schedule_change_nothing():
    q, k, v = tensors()
    expected = flash_attn_func(q, k, v)
    for wish in [{"num_splits": 0}, {"num_splits": 3}, {"pack_gqa": True}, {"deterministic": True}]:
        assert torch.equal(flash_attn_func(q, k, v, **wish), expected)
    with pytest.raises(ValueError, match=r"window_size is 3; it must be a pair \(left, right\)"):
        flash_attn_func(q, k, v, window_size=3)
    with pytest.raises(ValueError, match="num_splits is -1"):
        flash_attn_func(q, k, v, num_splits=-1)


@pytest.mark.parametrize(
    "change, error, says",
    [
        ({"window_size": (None, 0)}, TypeError, "^window_size has None on the left; both sides are ints"),
        ({"window_size": (1.0, 2)}, TypeError, "^window_size has 1.0 on the left"),
        ({"softcap": None}, TypeError, "^softcap is None; it must be a float, 0 for no cap"),
        ({"causal": "no"}, TypeError, "^causal is 'no'; it must be a bool"),
        ({"softmax_scale": "x"}, TypeError, "^softmax_scale is 'x'"),
        ({"num_splits": "x"}, TypeError, "^num_splits is 'x'"),
        ({"sm_margin": 1.5}, TypeError, "^sm_margin is 1.5"),
        ({"batch_invariant": 1.5}, TypeError, "^batch_invariant is 1.5"),
    ],
    ids=str,
)
def test_options_of_another_type_are_named(change, error, says):
    with pytest.raises(error, match=says):
        flash_attn_func(*tensors(), **change)


def test_other_things_than_tensors_are_named():
    q, k, v = tensors()
    with pytest.raises(TypeError, match="^qkv is a list"):
        flash_attn_qkvpacked_func([1])
    with pytest.raises(ValueError, match="^num_heads_q is -8 of 12"):
        flash_attn_qkvpacked_func(torch.ones(2, 3, 12, 16), num_heads_q=-8)
    with pytest.raises(TypeError, match="^num_heads_q is 8.0"):
        flash_attn_qkvpacked_func(torch.ones(2, 3, 12, 16), num_heads_q=8.0)
    with pytest.raises(TypeError, match="^q_descale is a float"):
        flash_attn_func(*(x.to(torch.float8_e4m3fn) for x in (q, k, v)), q_descale=1.0)
    nested = torch.nested.nested_tensor([q[0], q[0, :5]], layout=torch.jagged)
    with pytest.raises(NotImplementedError, match="^q is a nested tensor, .* flash_attn_varlen_func"):
        flash_attn_func(nested, nested, nested)


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda q, k, v: (q.double(), k, v), "q holds float64; allowed are float16"),
        (lambda q, k, v: (q, k.half(), v), "k holds fp16 and q f32"),
        (lambda q, k, v: (q, k, v[:, :-1]), r"v has shape \[2, 49, 2, 16\]"),
        (lambda q, k, v: (q[:, :, :0], k[:, :, :0], v[:, :, :0]), "heads is 0"),
        (lambda q, k, v: (q[..., :0], k[..., :0], v), "head_dim is 0"),
        (lambda q, k, v: (q[..., :7], k[..., :7], v), "head_dim is 7"),
    ],
)
def test_errors_name_the_tensor(change, says):
    with pytest.raises(RuntimeError, match=says):
        flash_attn_func(*change(*tensors()))
    with pytest.raises(RuntimeError, match="q has 3 dimensions; it must have 4"):
        ops.call("fwd", *(x[0] for x in tensors()), numbers=(1.0,))


@pytest.mark.parametrize("device", DEVICES)
def test_opcheck(device):
    q, k, v = tensors(device)
    for numbers in [(0.25, True, -1, -1, 0.0, 0), (0.5, False, 4, 2, 3.0, 4), (0.5, False, -1, -1, 0.0, 6, False)]:
        torch.library.opcheck(ops.operator("fwd"), ops.arguments("fwd", q, k, v, numbers=numbers))
    q, k, v = (x.to(torch.float8_e4m3fn) for x in tensors(device, dim=64, dim_v=64))
    scales = [torch.full((2, 2), scale, device=device) for scale in (0.5, 1.0, 2.0)]
    if device == "cpu":
        # test_schema needs arithmetic on float8_e4m3fn, which PyTorch has none of.
        checks = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
        args = ops.arguments("fwd", q, k, v, *scales, numbers=(0.25, True))
        torch.library.opcheck(ops.operator("fwd"), args, test_utils=checks)


@pytest.mark.parametrize("device", DEVICES)
def test_heads_first(device):
    """The same bits of tensors [batch, heads, seq, head_dim], without the log-sum-exp."""
    q, k, v = tensors(device, dim_v=24)
    bhsd = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    run = lambda *tensors, layout=ops.BHSD, numbers=(0.25, True): ops.call(
        "fwd", *tensors, numbers=numbers, layout=layout, return_lse=False
    )
    for numbers in [(0.25, True, -1, -1, 0.0), (0.25, False, 4, 2, 3.0)]:
        with torch.no_grad():
            out, lse = run(*bhsd, numbers=numbers)
            given = ops.arguments("fwd", *bhsd, numbers=numbers, layout=ops.BHSD, return_lse=False)
            torch.library.opcheck(ops.operator("fwd"), given)
        assert out.shape == (2, 33, 4, 24) and out.is_contiguous() and lse.numel() == 0
        want, _ = ops.call("fwd", q, k, v, numbers=numbers)
        assert torch.equal(out, want)
        heads_first, _ = run(*bhsd, layout=ops.BHSD | 2, numbers=numbers)
        assert torch.equal(heads_first, want.transpose(1, 2))
    with pytest.raises(NotImplementedError, match="gradients of this layout are not computed"):
        run(bhsd[0].requires_grad_(), *bhsd[1:])[0].sum().backward()
    with torch.no_grad(), pytest.raises(RuntimeError, match="k holds fp16 and q f32"):
        run(bhsd[0], bhsd[1].half(), bhsd[2])
    with torch.no_grad(), pytest.raises(RuntimeError, match="layout is 8; it is the sum of"):
        run(*bhsd, layout=8)


@pytest.mark.parametrize("device", DEVICES)
def test_heads_first_over_rows_of_a_cache(device):
    """Attention over the rows alone, whatever the strides of a cache whose sequences are whole rows apart."""
    q, k, v = tensors(device, seq_q=2, dim_v=24)
    used = [[3, 4, 40, 41], [0, 1, 2, 49, 7, 8, 9]]
    counts = torch.tensor([len(rows) for rows in used], dtype=torch.int32, device=device)
    bhsd, options = [x.transpose(1, 2) for x in (q, k, v)], (0.25, True, 3, -1, 2.0)
    arguments = lambda *cache, table: ops.arguments(
        "fwd_lengths", bhsd[0], *cache, seqused_k=counts, block_table=table, numbers=options, layout=ops.BHSD,
        max_seqlen_k=table.shape[1],
    )  # fmt: skip
    for cache, apart in [(bhsd[1:], 50), ([x.contiguous() for x in bhsd[1:]], 100)]:
        rows = torch.full((2, 9), -1, dtype=torch.int32, device=device)
        for i, of in enumerate(used):
            rows[i, : len(of)] = torch.tensor(of) + i * apart
        given = arguments(*cache, table=rows)
        out, _ = ops.operator("fwd_lengths")(*given)
        torch.library.opcheck(ops.operator("fwd_lengths"), given)
        assert out.shape == (2, 2, 4, 24) and out.is_contiguous()
        for i, of in enumerate(used):
            want, _ = ops.call("fwd", q[i : i + 1], k[i : i + 1, of], v[i : i + 1, of], numbers=options)
            torch.testing.assert_close(out[i : i + 1], want, atol=1e-6, rtol=1e-6)
    with pytest.raises(RuntimeError, match="block_table has 1 rows; it must have one for each of 2 sequences"):
        ops.operator("fwd_lengths")(*arguments(*bhsd[1:], table=rows[:1]))
    with pytest.raises(RuntimeError, match="not the same whole number of rows apart"):
        ops.operator("fwd_lengths")(*arguments(bhsd[1], bhsd[2].contiguous(), table=rows))


class Block(torch.nn.Module):
    """A projection, attention and a residual, so that there is something to fuse around the operator."""

    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(64, 3 * 64)

    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 16).unbind(2)
        return x + torch.relu(flash_attn_func(q, k, v, causal=True)).flatten(2)


@pytest.mark.parametrize("device", DEVICES)
def test_compiles_without_graph_breaks_and_without_recompiling_for_lengths(device):
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    block = Block().to(device).eval()
    compiled = torch.compile(block, backend="inductor", fullgraph=True, dynamic=True)
    with torch.no_grad():
        for length in (7, 64, 33, 128, 5):
            x = torch.randn(2, length, 64, device=device)
            torch.testing.assert_close(compiled(x), block(x), atol=1e-5, rtol=1e-5)
            assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("device", DEVICES)
def test_exports_with_a_dynamic_length(device):
    torch.manual_seed(0)
    block = Block().to(device).eval()
    length = torch.export.Dim("length", min=2, max=4096)
    with torch.no_grad():
        program = torch.export.export(block, (torch.randn(2, 9, 64, device=device),), dynamic_shapes=({1: length},))
        assert "flashcore.fwd.default" in str(program.graph)
        for seq in (9, 40):
            x = torch.randn(2, seq, 64, device=device)
            torch.testing.assert_close(program.module()(x), block(x), atol=1e-5, rtol=1e-5)


PACKAGE = """
import sys, torch
from flashcore_attn.flash_attn_interface import flash_attn_func

class Layer(torch.nn.Module):
    def forward(self, q, k, v):
        return (flash_attn_func(q, k, v, causal=True, softcap=4.0) if sys.argv[2] == "flashcore" else q) * 2

given = tuple(torch.randn(2, 9, heads, 16) for heads in (4, 2, 2))
with torch.no_grad():
    program = torch.export.export(Layer(), given)
    package = torch._inductor.aoti_compile_and_package(program, package_path=sys.argv[1])
    out = torch._inductor.aoti_load_package(package)(*given)
assert torch.equal(out, Layer()(*given))
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling a package needs g++")
def test_a_package_compiled_ahead_of_time(tmp_path):
    """PyTorch's loader calls the operator by its schema, without Python. In processes of their own: some of its
    builds end with a segmentation fault when they load any package."""

    def run(layer):
        command = [sys.executable, "-c", PACKAGE, str(tmp_path / f"{layer}.pt2"), layer]
        return subprocess.run(command, capture_output=True, text=True)

    done = run("flashcore")
    if done.returncode < 0 and run("plain").returncode < 0:
        pytest.skip("this PyTorch crashes when it loads a package without FlashCore, too")
    assert done.returncode == 0, done.stderr


def test_many_calls_keep_no_memory():
    resource = pytest.importorskip("resource", reason="Windows has no getrusage")
    q, k, v = tensors(seq_q=64, seq_kv=64)
    call = lambda: flash_attn_func(q, k, v)  # 32 KiB of output
    fail = lambda: pytest.raises(RuntimeError, flash_attn_func, q, k, v[:, :-1])
    for _ in range(100):
        call(), fail()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(1000):
        call(), fail()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # KiB on Linux
    assert grown < 8 * 1024, f"{grown} KiB; the outputs of all calls are {1000 * 32} KiB"


OUT_OF_MEMORY = """
import resource, torch
from flashcore_attn.flash_attn_interface import flash_attn_func
q = torch.empty(1, 1 << 20, 1, 8, dtype=torch.float16).expand(1, 1 << 20, 256, 8)
k = torch.zeros(1, 1, 1, 8, dtype=torch.float16)
with open("/proc/self/statm") as used:
    limit = int(used.read().split()[0]) * resource.getpagesize() + (1 << 30)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    flash_attn_func(q, k, k)
except RuntimeError as error:
    print(error)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc/self/statm is Linux's")
def test_memory_that_is_not_there_is_named():
    done = subprocess.run([sys.executable, "-c", OUT_OF_MEMORY], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("cannot allocate 4294967296 bytes on cpu for a tensor of shape [1, 1048576, 256, 8]: ")
    assert "can't allocate memory" in done.stdout + done.stderr  # PyTorch before 2.13 prints its message


def test_a_gpu_that_is_out_of_memory_has_pytorchs_type():
    def operator(says):
        raise RuntimeError(says)

    says = "cannot allocate 64 bytes on cuda:0 for a tensor of shape [64]: CUDA out of memory. Tried to allocate 2 MiB"
    with pytest.raises(torch.OutOfMemoryError, match="^cannot allocate 64 bytes on cuda:0"):
        _names.typed(operator, says)
    for says in ("cannot allocate 64 bytes on cpu: can't allocate memory", "k holds f32"):
        with pytest.raises(RuntimeError, match=says) as raised:
            _names.typed(operator, says)
        assert type(raised.value) is RuntimeError
    if NO_CUDA is None:
        q = torch.zeros(1, 1 << 20, 1, 8, dtype=torch.float16, device="cuda").expand(1, 1 << 20, 64, 8)
        torch.cuda.set_per_process_memory_fraction(1e-3)  # the output takes 1 GiB
        try:
            with pytest.raises(torch.OutOfMemoryError, match="^cannot allocate .* on cuda:0"):
                flash_attn_func(q, q[:, :1, :1], q[:, :1, :1])
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.skipif(sys.platform != "linux", reason="reads the names of threads")
@pytest.mark.parametrize("rayon", [None, "2"])
def test_calls_on_the_cpu_have_pytorchs_threads(monkeypatch, rayon):
    script = """if True:
        import os, torch
        from flashcore_attn.flash_attn_interface import flash_attn_func

        q, counts = torch.ones(1, 256, 4, 16, requires_grad=True), []
        for threads in (len(os.sched_getaffinity(0)), 1):
            torch.set_num_threads(threads)
            flash_attn_func(q, q, q).sum().backward()
            names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
            counts.append(sum(name.startswith("flashcore-") for name in names))
        print(counts)
    """
    one_is_less = len(os.sched_getaffinity(0)) > 1
    counts = [0, 1 if rayon is None and one_is_less else 0]
    monkeypatch.delenv("RAYON_NUM_THREADS", raising=False)
    if rayon is not None:
        monkeypatch.setenv("RAYON_NUM_THREADS", rayon)
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == str(counts)


@pytest.mark.skipif(NO_CUDA is not None, reason=str(NO_CUDA))
@pytest.mark.parametrize("seq_q", [1, 33])
def test_cuda_graph_trees(seq_q, device="cuda"):
    """`torch.compile(mode="reduce-overhead")`: later steps replay a graph, with other tensors and lengths."""
    from torch._dynamo.utils import counters

    def step(q, k, v, lengths):
        q = q * 0.5
        return flash_attn_func(q, k, v, causal=True), fa3.flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths)

    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(step, mode="reduce-overhead", fullgraph=True)
    q, k, v = tensors(device, "float16", seq_q=seq_q, dim=64, dim_v=64)
    with torch.inference_mode():
        for at in range(5):
            q, k, v = (torch.roll(x, 1, 1) for x in (q, k, v))
            lengths = torch.tensor([40 + at, 50 - 9 * at], dtype=torch.int32, device=device)
            torch.compiler.cudagraph_mark_step_begin()
            for out, eager in zip(compiled(q, k, v, lengths), step(q, k, v, lengths)):
                assert torch.equal(out, eager)
    assert counters["inductor"]["cudagraph_skips"] == 0
    assert counters["stats"]["unique_graphs"] == 1


def test_importing_flashcore_imports_neither_torch_nor_the_driver():
    if not sys.platform.startswith("linux"):
        pytest.skip("/proc/self/maps is Linux's")
    script = "import sys, flashcore_attn; print('torch' in sys.modules, 'libcuda.' in open('/proc/self/maps').read())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_results_equal_those_of_attention():
    q, k, v = tensors(dtype="bfloat16", seq_q=64, seq_kv=130, dim=64, dim_v=64)
    out, lse = flashcore_attn.attention(q, k, v, causal=True, return_lse=True)
    again, lse_again = flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    assert torch.equal(out, again) and torch.equal(lse, lse_again)
    assert np.isfinite(lse.numpy()).all()


def test_a_trace_of_a_recorded_call_has_the_operator():
    q, k, v = (x.requires_grad_() for x in tensors(seq_q=8, seq_kv=8))
    traced = torch.jit.trace(lambda q, k, v: flash_attn_func(q, k, v, causal=True), (q, k, v))
    assert "flashcore::fwd" in str(traced.graph)
    assert torch.equal(traced(q, k, v), flash_attn_func(q, k, v, causal=True))


def test_numbers_of_numpy_are_taken_where_new_keys_are():
    q, k, v = tensors(seq_q=1, seq_kv=16)
    new = dict(k=k[:, :1], v=v[:, :1], cache_seqlens=3, causal=True)
    plain = fa3.flash_attn_with_kvcache(q, k.clone(), v.clone(), softmax_scale=0.25, window_size=(2, 0), **new)
    given = dict(softmax_scale=np.float64(0.25), softcap=np.float32(0), window_size=(np.int64(2), 0))
    assert torch.equal(fa3.flash_attn_with_kvcache(q, k.clone(), v.clone(), **given, **new), plain)
