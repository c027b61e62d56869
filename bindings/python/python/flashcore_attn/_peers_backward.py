"""The backward passes of peers. What is called, and timed, is the backward pass alone.

The maker of a peer, `found[name]` of `peers.find`, has the attribute `backward` where the library has a backward pass:
`found[name].backward(tensors, **options)` gives a function or a pass, of a dict of the tensors `q`, `k`, `v`, `out`, `lse`, `dout`, `dq`,
`dk` and `dv`, and the options of `_asked.Asked`:

- The function, or `run()` of the pass, computes the gradients once, and returns them, or None where it wrote `dq`, `dk`
  and `dv`.
- `refresh()` of the pass is called after the values of `q`, `k` and `v` have changed.

`found[name].backward_packed(tensors, problem, ...)`, where there is one, does the same for packed sequences. `tensors`
then also has `cu_seqlens_q` and `cu_seqlens_k`, and `problem` is the `Problem` as a dict.
"""

from ._asked import Asked, NotServed, kinds
from ._peers_serving import check_cudnn, of_equal_lengths


class Pass:
    """A library's own backward pass: `forward()`, which runs once for each set of inputs, gives what `backward` takes. The
    bench's `out` and `lse` are not read."""

    def __init__(self, forward, backward):
        self.forward, self.backward = forward, backward
        self.refresh()

    def refresh(self):
        self.saved = None  # frees what was saved before as much is saved again
        self.saved = self.forward()

    def run(self):
        return self.backward(*self.saved)


def of_autograd(torch, forward):
    """Makes passes of a maker of functions that autograd can differentiate."""

    def make(tensors, **options):
        # Views that are leaves: autograd counts no changes of the bench's memory.
        inputs = [tensors[name].detach().requires_grad_() for name in "qkv"]
        run, grad, dout = forward(*inputs, **options), torch.autograd.grad, tensors["dout"]
        return Pass(lambda: (run(),), lambda out: grad(out, inputs, dout, retain_graph=True))

    return make


def of_packed(tensors, problem):
    """The tensors of packed sequences without their batch of one, and the lengths that libraries ask for."""
    if kinds(problem) != ("packed", "packed"):
        raise NotServed("of sequences with lengths, only packed ones have a backward pass in other libraries")
    if "seqused_q" in tensors or "seqused_k" in tensors:
        raise NotServed("rows that sequences leave unused are not passed on to this peer")
    starts = {name: tensors[name] for name in ("cu_seqlens_q", "cu_seqlens_k")}
    bounds = {"max_seqlen_q": problem["seq_len_q"], "max_seqlen_k": problem["seq_len_kv"]}
    return {name: tensor[0] for name, tensor in tensors.items() if name not in starts}, {**starts, **bounds}


def _batched(gradients):
    """Of packed rows, as a batch of one."""
    return tuple(gradient[None] for gradient in gradients)


def of_torch_packed(torch, backend):
    """PyTorch's own kernels over packed sequences: FlashAttention-2 and cuDNN."""

    def packed(library, tensors, problem, how):
        asked = Asked.by(library, **how)
        tensors, lengths = of_packed(tensors, problem)
        dout, *qkv = (tensors[name] for name in ("dout", "q", "k", "v"))
        return asked, dout, qkv, (*lengths.values(), 0.0, asked.causal)

    def flash(tensors, problem, **how):
        asked, dout, qkv, last = packed("PyTorch's flash kernel", tensors, problem, how)
        options = asked.of_torch()

        def forward():
            out, lse, *state, _ = torch.ops.aten._flash_attention_forward(*qkv, *last, False, **options)
            return out, lse, state

        def backward(out, lse, state):
            return _batched(torch.ops.aten._flash_attention_backward(dout, *qkv, out, lse, *last, *state, **options))

        return Pass(forward, backward)

    def cudnn(tensors, problem, **how):
        asked, dout, qkv, last = packed("cuDNN's function", tensors, problem, how)
        scale = asked.scale
        check_cudnn(torch, asked, *last[:2])

        def forward():
            run = torch.ops.aten._cudnn_attention_forward
            out, lse, *_, seed, offset, _ = run(*qkv, None, *last[:4], True, *last[4:], False, scale=scale)
            return out, lse, seed, offset

        def backward(*saved):
            return _batched(torch.ops.aten._cudnn_attention_backward(dout, *qkv, *saved, None, *last, scale=scale))

        return Pass(forward, backward)

    return {"FLASH_ATTENTION": flash, "CUDNN_ATTENTION": cudnn}.get(backend, of_equal_lengths)


def of_fa3(backward, tensors, options):
    """FlashAttention-3's operator, on the bench's `out` and `lse`, into its `dq`, `dk` and `dv`."""
    arguments = [tensors[name] for name in ("dout", "q", "k", "v", "out", "lse")]
    outputs = {name: tensors[name] for name in ("dq", "dk", "dv")}

    def run():
        backward(*arguments, **outputs, **options)

    return run
