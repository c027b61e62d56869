"""The backward passes of peers. What is called, and timed, is the backward pass alone.

The maker of a peer, `found[name]` of `peers.find`, has the attribute `backward` where the library has a backward pass:
`found[name].backward(tensors, *, causal, window, softcap, scale, scales)` of a dict of the tensors `q`, `k`, `v`, `out`,
`lse`, `dout`, `dq`, `dk` and `dv` gives a pass:

- `run()` computes the gradients once, and returns them, or None where it wrote `dq`, `dk` and `dv`.
- `refresh()`, if there is one, is called after the values of `q`, `k` and `v` have changed.
"""


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


class Fa3:
    """FlashAttention-3's operator, on the bench's `out` and `lse`, into its `dq`, `dk` and `dv`."""

    def __init__(self, backward, tensors, options, deterministic):
        names = ("dout", "q", "k", "v", "out", "lse")
        arguments = [tensors[name] for name in names]
        outputs = {name: tensors[name] for name in ("dq", "dk", "dv")}
        self.call = lambda: backward(*arguments, **outputs, **options, deterministic=deterministic)

    def run(self):
        self.call()
