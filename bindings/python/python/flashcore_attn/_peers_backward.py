"""The backward passes of peers. What is called, and timed, is the backward pass alone.

The maker of a peer, `found[name]` of `peers.find`, has the attribute `backward` where the library has a backward pass:
`found[name].backward(tensors, **options)` gives a pass, of a dict of the tensors `q`, `k`, `v`, `out`, `lse`, `dout`, `dq`,
`dk` and `dv`, and the options of `_asked.Asked`:

- `run()` computes the gradients once, and returns them, or None where it wrote `dq`, `dk` and `dv`.
- `refresh()`, if there is one, is called after the values of `q`, `k` and `v` have changed.

`found[name].backward_packed(tensors, problem, ...)`, where there is one, does the same for packed sequences. `tensors`
then also has `cu_seqlens_q` and `cu_seqlens_k`, and `problem` is the `Problem` as a dict.
"""

from ._asked import Asked, NotServed, kinds
from ._peers_serving import check_cudnn, of_equal_lengths


class Autograd:
    """A library's own backward pass, through PyTorch's autograd, which keeps what the library's forward pass saved for
    it: the bench's `out` and `lse` are not read. The forward pass runs once for each set of inputs."""

    def __init__(self, torch, forward, tensors, options):
        # Views that are leaves: autograd counts no changes of the bench's memory.
        self.inputs = [tensors[name].detach().requires_grad_() for name in "qkv"]
        self.grad, self.dout = torch.autograd.grad, tensors["dout"]
        self.forward = forward(*self.inputs, **options)
        self.refresh()

    def refresh(self):
        self.out = None  # frees what was saved before as much is saved again
        self.out = self.forward()

    def run(self):
        return self.grad(self.out, self.inputs, self.dout, retain_graph=True)


def of_autograd(torch, forward):
    """Makes passes of a maker of functions that autograd can differentiate."""
    return lambda tensors, **options: Autograd(torch, forward, tensors, options)


def of_packed(tensors, problem):
    """The tensors of packed sequences without their batch of one, and the lengths that libraries ask for."""
    if kinds(problem) != ("packed", "packed"):
        raise NotServed("of sequences with lengths, only packed ones have a backward pass in other libraries")
    if "seqused_q" in tensors or "seqused_k" in tensors:
        raise NotServed("rows that sequences leave unused are not passed on to this peer")
    starts = {name: tensors[name] for name in ("cu_seqlens_q", "cu_seqlens_k")}
    bounds = {"max_seqlen_q": problem["seq_len_q"], "max_seqlen_k": problem["seq_len_kv"]}
    return {name: tensor[0] for name, tensor in tensors.items() if name not in starts}, {**starts, **bounds}


class Packed:
    """A backward pass after the library's own forward pass, which runs once for each set of inputs: `forward()` gives what
    `backward` takes. The bench's `out` and `lse` are not read."""

    def __init__(self, forward, backward):
        self.forward, self.backward = forward, backward
        self.refresh()

    def refresh(self):
        self.saved = None  # frees what was saved before as much is saved again
        self.saved = self.forward()

    def run(self):
        return tuple(gradient[None] for gradient in self.backward(*self.saved))


def of_torch_packed(torch, backend):
    """PyTorch's own kernels over packed sequences: FlashAttention-2 and cuDNN."""

    def flash(tensors, problem, **how):
        asked = Asked(**how)
        asked.check("PyTorch's flash kernel")
        tensors, lengths = of_packed(tensors, problem)
        (*qkv, dout), lengths = (tensors[name] for name in ("q", "k", "v", "dout")), lengths.values()
        last, options = (*lengths, 0.0, asked.causal), asked.of_torch()

        def forward():
            out, lse, *state, _ = torch.ops.aten._flash_attention_forward(*qkv, *last, False, **options)
            return out, lse, state

        def backward(out, lse, state):
            return torch.ops.aten._flash_attention_backward(dout, *qkv, out, lse, *last, *state, **options)

        return Packed(forward, backward)

    def cudnn(tensors, problem, **how):
        asked = Asked(**how)
        asked.check("cuDNN's function")
        tensors, lengths = of_packed(tensors, problem)
        (*qkv, dout), lengths = (tensors[name] for name in ("q", "k", "v", "dout")), lengths.values()
        last, scale = (*lengths, 0.0, asked.causal), asked.scale
        check_cudnn(torch, asked, *last[:2])

        def forward():
            run = torch.ops.aten._cudnn_attention_forward
            out, lse, *_, seed, offset, _ = run(*qkv, None, *last[:4], True, *last[4:], False, scale=scale)
            return out, lse, seed, offset

        def backward(*saved):
            return torch.ops.aten._cudnn_attention_backward(dout, *qkv, *saved, None, *last, scale=scale)

        return Packed(forward, backward)

    return {"FLASH_ATTENTION": flash, "CUDNN_ATTENTION": cudnn}.get(backend, of_equal_lengths)


class Fa3:
    """FlashAttention-3's operator, on the bench's `out` and `lse`, into its `dq`, `dk` and `dv`."""

    def __init__(self, backward, tensors, options):
        names = ("dout", "q", "k", "v", "out", "lse")
        arguments = [tensors[name] for name in names]
        outputs = {name: tensors[name] for name in ("dq", "dk", "dv")}
        self.call = lambda: backward(*arguments, **outputs, **options)

    def run(self):
        self.call()
