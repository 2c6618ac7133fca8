# SPDX-License-Identifier: Apache-2.0
"""One process, two GPUs: a call runs where its tensors lie, whatever device and stream are current."""
import threading

import conftest
import pytest

torch = pytest.importorskip("torch")
if conftest.DEVICE == "cpu" or torch.cuda.device_count() < 2:
    pytest.skip("needs two GPUs and ATTN_TEST_DEVICE=cuda", allow_module_level=True)

import attn

PLACES = ["cuda:0", "cuda:1"]


@pytest.fixture(autouse=True)
def first_is_current():
    torch.manual_seed(3)
    torch.cuda.set_device(0)
    yield
    assert torch.cuda.current_device() == 0


def make(device, *shape, dtype=torch.bfloat16):
    return [torch.randn(shape or (2, 64, 2, 64), dtype=dtype, device=device) for _ in range(3)]


def step(tensors, **options):
    leaves = [t.detach().requires_grad_() for t in tensors]
    o, lse = attn.attention(*leaves, deterministic=True, return_lse=True, **options)
    grads = torch.autograd.grad(o.float().square().sum() + lse.sum(), leaves)
    found = (o.detach(), lse.detach(), *grads)
    assert all(t.device == tensors[0].device for t in found) and torch.cuda.current_device() == 0
    return found


def moved(tensors, device):
    return [t.to(device) for t in tensors]


def same(a, b):
    assert all(torch.equal(x.cpu(), y.cpu()) for x, y in zip(a, b))


def lengths(device):
    cu = torch.tensor([0, 3, 8, 8, 20], dtype=torch.int32, device=device)
    return dict(layout="thd", cu_seqlens_q=cu, cu_seqlens_kv=cu, max_seqlen_q=16, max_seqlen_kv=16)


@pytest.mark.parametrize("what", ["plain", "causal", "dropout", "bias", "packed", "native"])
def test_the_same_bits_on_both(what):
    tensors = make("cpu", *((24, 2, 64) if what == "packed" else ()))
    more = {"plain": {}, "causal": dict(causal=True), "dropout": dict(dropout=0.3, seed=7), "native": dict(implementation="cuda_native")}
    for _ in range(2):
        found = []
        for device in (*PLACES, *PLACES[::-1]):
            options = more.get(what)
            if what == "bias":
                options = dict(bias=torch.arange(64.0, device=device).expand(64, 64) / 64)
            elif what == "packed":
                options = lengths(device)
            found.append(step(moved(tensors, device), **options))
        for other in found[1:]:
            same(found[0], other)


def test_dropout_draws_from_the_devices_generator():
    tensors = make("cuda:1")
    drawn = []
    for seed in (5, 5, 6):
        torch.cuda.manual_seed_all(seed)
        attn.attention(*make("cuda:0"), dropout=0.5)
        drawn.append(attn.attention(*tensors, dropout=0.5))
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    words = torch.tensor([7, 9], device="cuda:1")
    assert torch.equal(attn.attention(*tensors, dropout=0.5, seed=words), attn.attention(*tensors, dropout=0.5, seed=7, offset=9))
    with pytest.raises(attn.Error) as error:
        attn.attention(*tensors, dropout=0.5, seed=words.to("cuda:0"))
    assert error.value.field == "seed"


def test_streams_of_the_other_device():
    tensors = make("cuda:1", 1, 2048, 16, 64)
    want = step(tensors)
    side = torch.cuda.Stream("cuda:1")
    for _ in range(3):
        late = [torch.zeros_like(t) for t in tensors]
        torch.cuda.synchronize("cuda:1")
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            for t, source in zip(late, tensors):
                t.copy_(source)
            with torch.cuda.device(0):
                got = step(late)  # the current stream of cuda:1 stays `side`
        side.synchronize()
        same(want, got)


def test_mixed_devices_name_the_argument():
    here, there = make("cuda:0"), make("cuda:1")
    cases = {"k": (here[0], there[1], here[2]), "v": (here[0], here[1], there[2]), "mask": (*there,)}
    for _ in range(2):
        for name, tensors in cases.items():
            more = dict(mask=torch.ones(64, 64, dtype=torch.bool, device="cuda:0")) if name == "mask" else {}
            with pytest.raises(attn.Error) as error:
                attn.attention(*tensors, **more)
            assert error.value.field == name
    with pytest.raises(attn.Error) as error:
        attn.attention(*make("cuda:1", 24, 2, 64), **lengths("cuda:0"))
    assert error.value.field.startswith("cu_seqlens")


def test_bad_lengths_are_told_by_their_device():
    good, bad = lengths("cuda:1"), lengths("cuda:1")
    bad["cu_seqlens_kv"] = torch.tensor([0, 9, 3, 3, 3], dtype=torch.int32, device="cuda:1")
    tensors = make("cuda:1", 24, 2, 64)
    attn.attention(*tensors, **bad)
    with pytest.raises(attn.Error) as error:
        attn.check_device()
    assert error.value.field.startswith("cu_seqlens")
    attn.attention(*tensors, **good)
    attn.check_device()


def test_model_parallel():
    """Two layers on two devices, gradients across both, against the same on one."""

    def run(places):
        torch.manual_seed(9)
        layers = [torch.nn.Linear(64, 192, device="cpu").to(place) for place in places]
        x = torch.randn(2, 48, 64, device="cpu").to(places[0]).requires_grad_()
        y = x
        for layer, place in zip(layers, places):
            q, k, v = layer(y.to(place)).unflatten(-1, (3, 4, 16)).unbind(2)
            y = attn.attention(q, k, v, causal=True, deterministic=True, tensor_cores=False).flatten(2)
        y.square().sum().backward()
        return [y.detach(), x.grad, *(p.grad for layer in layers for p in layer.parameters())]

    for a, b in zip(run(["cuda:0", "cuda:1"]), run(["cuda:0", "cuda:0"])):
        assert (a.cpu() - b.cpu()).abs().max() <= 1e-4 * max(1.0, b.abs().max().item())


def test_threads_of_both_devices():
    inputs = {place: make(place) for place in PLACES}
    wants = {place: step(tensors, causal=True) for place, tensors in inputs.items()}
    bad = []

    def work(place):
        try:
            for _ in range(50):
                leaves = [t.detach().requires_grad_() for t in inputs[place]]
                o, lse = attn.attention(*leaves, causal=True, deterministic=True, return_lse=True)
                got = (o.detach(), lse.detach(), *torch.autograd.grad(o.float().square().sum() + lse.sum(), leaves))
                if not all(torch.equal(a, b) for a, b in zip(got, wants[place])):
                    bad.append(place)
        except Exception as error:
            bad.append(error)

    threads = [threading.Thread(target=work, args=(place,)) for place in PLACES * 2]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not bad


def test_graph_of_the_other_device():
    q, k, v = make("cuda:1")
    attn.attention(q, k, v, causal=True)
    with torch.cuda.device(1):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            o = attn.attention(q, k, v, causal=True)
        q.copy_(torch.randn_like(q))
        graph.replay()
        torch.cuda.synchronize()
    assert torch.equal(o, attn.attention(q, k, v, causal=True))


def test_compiled_on_the_other_device():
    compiled = torch.compile(lambda q, k, v: attn.attention(q * 2, k, v, causal=True, deterministic=True).sin(), fullgraph=True)
    for place in PLACES:
        tensors = [t.requires_grad_() for t in make(place)]
        got, want = compiled(*tensors), attn.attention(tensors[0] * 2, *tensors[1:], causal=True, deterministic=True).sin()
        dout = torch.randn_like(want)
        for a, b in zip((got, *torch.autograd.grad(got, tensors, dout)), (want, *torch.autograd.grad(want, tensors, dout))):
            assert a.device == torch.device(place) and (a.float() - b.float()).abs().max() <= 2e-2 * max(1, b.abs().max().item())


def test_rules_of_masks_travel():
    """A layer of a transformers model on the other device gets its mask's rules there, not a matrix."""
    m = pytest.importorskip("transformers.masking_utils")
    import attn.transformers
    from attn import _seen

    padding = torch.ones(2, 9, dtype=torch.bool)
    padding[1, :4] = False
    mask = attn.transformers.attention_mask(2, 9, 9, mask_function=m.sliding_window_causal_mask_function(3), attention_mask=padding,
                                            device=padding.device)
    there = mask.to("cuda:1")
    assert type(there) is _seen.Seen and there.device == torch.device("cuda:1")
    q, k, v = (t.transpose(1, 2) for t in make("cuda:1", 2, 9, 2, 16, dtype=torch.float32))
    got, want = (attn.transformers.attention_forward(torch.nn.Module(), q, k, v, t)[0] for t in (there, mask[...].to("cuda:1")))
    assert (got - want)[padding.to("cuda:1")].abs().max() < 1e-5
