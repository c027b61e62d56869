"""JAX arrays, through DLPack: without `out` NumPy's tensors come back on the CPU; with it, JAX's, on any device."""

import os

import flashcore_attn
import numpy as np
import pytest
import reference

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other tests need memory, too
jax = pytest.importorskip("jax", reason="JAX is not installed")
import jax.numpy as jnp  # noqa: E402


def gpu():
    try:
        return jax.devices("cuda")[0]
    except RuntimeError as error:
        return str(error)


NO_CUDA = flashcore_attn.why_not_cuda() or (gpu() if isinstance(gpu(), str) else None)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(NO_CUDA is not None, reason=str(NO_CUDA)))]


def draw(device, dtype="float32", seq=33):
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = [(2, seq, 4, 64), (2, seq, 2, 64), (2, seq, 2, 64)]
    tensors = [jax.random.normal(key, shape, dtype) for key, shape in zip(keys, shapes)]
    return [jax.device_put(x, jax.devices(device)[0]) for x in tensors]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_writes_an_array_of_jax(device, dtype):
    q, k, v = draw(device, dtype)
    out, other = jnp.empty_like(q), jnp.zeros_like(q)
    same = flashcore_attn.attention(q, k, v, causal=True, out=out)
    assert same is out and out.devices() == q.devices()
    want, _ = reference.attention(*(np.asarray(x, np.float64) for x in (q, k, v)), causal=True)
    reference.check(np.asarray(out, np.float64), want, dtype)
    assert not np.asarray(other).any(), "an array that was not given is as it was"
    # JAX computes with what was written.
    reference.check(np.asarray(jax.jit(lambda x: x + x)(out), np.float64) / 2, want, dtype)


def test_without_out_on_the_cpu():
    q, k, v = draw("cpu")
    out, lse = flashcore_attn.attention(q, k, v, return_lse=True)
    want, want_lse = reference.attention(*(np.asarray(x) for x in (q, k, v)))
    reference.check(out, want, "float32")
    reference.check_lse(lse, want_lse)


@pytest.mark.parametrize("device", DEVICES[1:])
def test_without_out_on_a_gpu_is_refused(device):
    q, k, v = draw(device)
    with pytest.raises((TypeError, ValueError), match="out="):
        flashcore_attn.attention(q, k, v)


@pytest.mark.parametrize("device", DEVICES)
def test_inputs_that_are_not_ready(device):
    """The call waits for values that JAX is still computing."""
    q, k, v = draw(device, seq=300)
    for _ in range(5):
        q = jnp.tanh(q @ jnp.ones((64, 64)) / 64) * 3
        out = flashcore_attn.attention(q, k, v, out=jnp.empty_like(q))
        want, _ = reference.attention(*(np.asarray(x) for x in (q, k, v)))
        reference.check(np.asarray(out), want, "float32")
