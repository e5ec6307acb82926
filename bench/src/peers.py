"""Other libraries' attention, timed as splitkv-bench times its own.

Called as `python3 -c THIS PEER DEVICE`. Reads a request a line from standard input and writes an answer a line to
standard output, both JSON. The first answer comes unasked: {"version": ...} or {"missing": why}.

{"prepare": {sizes}}  -> {"choice": name}: the fastest of the peer's ways to compute it is ready, and checked
{"replay": n}         -> {"micros": t}: n replays of its graph, after one that does not count
An answer may be {"error": why} instead.
"""

import json
import math
import os
import sys

# What libraries print must not mix with the answers.
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

ROUNDS, MICROS = 3, 10_000.0


def answer(**values):
    print(json.dumps(values), file=answers, flush=True)


def one_line(error):
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:240]


class Inputs:
    """Q [B, Q, H, D], K [B, K, Hkv, D] and V [B, K, Hkv, Dv], without gaps."""

    def __init__(self, s):
        dtype = {"bf16": torch.bfloat16, "f16": torch.float16, "e4m3": torch.float8_e4m3fn}[s["dtype"]]
        self.s = s

        def rand(seq, heads, dim):
            wide = torch.bfloat16 if s["dtype"] == "e4m3" else dtype
            return torch.randn(s["batch"], seq, heads, dim, device=device, dtype=wide).to(dtype)

        self.q = rand(s["sq"], s["heads"], s["head_dim_qk"])
        self.k = rand(s["sk"], s["kv_heads"], s["head_dim_qk"])
        self.v = rand(s["sk"], s["kv_heads"], s["head_dim_v"])


def sdpa_ways(backend, s):
    """Every layout of K and V, and heads that share a KV head as heads or as queries of one head."""
    from torch.nn.attention import sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    group = s["heads"] // s["kv_heads"]
    for layout in ("bshd", "bhsd"):
        for packed in (False, True) if group > 1 else (False,):

            def prepare(i, layout=layout, packed=packed):
                q, k, v = i.q.transpose(1, 2), i.k.transpose(1, 2), i.v.transpose(1, 2)
                if layout == "bhsd":
                    k, v = k.contiguous(), v.contiguous()
                if packed:
                    q = q.reshape(s["batch"], s["kv_heads"], group * s["sq"], s["head_dim_qk"])
                return q, k, v

            def call(data, packed=packed):
                q, k, v = data
                with sdpa_kernel(backend):
                    return scaled_dot_product_attention(q, k, v, enable_gqa=group > 1 and not packed)

            def as_o(o, packed=packed):
                if packed:
                    o = o.reshape(s["batch"], s["heads"], s["sq"], s["head_dim_v"])
                return o.transpose(1, 2)

            yield layout + (" packed" if packed else ""), prepare, call, as_o


def cudnn():
    from torch.nn.attention import SDPBackend

    return f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}", lambda s: sdpa_ways(
        SDPBackend.CUDNN_ATTENTION, s
    )


def flash():
    from torch.nn.attention import SDPBackend

    return f"torch {torch.__version__}", lambda s: sdpa_ways(SDPBackend.FLASH_ATTENTION, s)


def fa3():
    try:
        from flash_attn_interface import flash_attn_func
    except ModuleNotFoundError:
        from flash_attn_3.flash_attn_interface import flash_attn_func

    def ways(s):
        for splits in (0, 1, 4, 8, 11, 16, 32):

            def call(i, splits=splits):
                o = flash_attn_func(i.q, i.k, i.v, causal=False, num_splits=splits)
                return o[0] if isinstance(o, tuple) else o

            yield f"{splits or 'auto'} splits", lambda i: i, call, lambda o: o

    return version_of("flash_attn_3", "flash-attn-3", "tokenspeed-fa3"), ways


def flashinfer():
    import flashinfer as fi

    def single(s):
        for backend in ("fa2", "fa3"):
            yield f"prefill {backend}", lambda i: (i.q[0], i.k[0], i.v[0]), lambda d, b=backend: (
                fi.single_prefill_with_kv_cache(*d, causal=False, backend=b)
            ), lambda o: o.unsqueeze(0)
        if s["sq"] == 1 and s["head_dim_qk"] == s["head_dim_v"]:
            for cores in (True, False):
                yield f"decode{' tc' if cores else ''}", lambda i: (i.q[0, 0], i.k[0], i.v[0]), lambda d, c=cores: (
                    fi.single_decode_with_kv_cache(*d, use_tensor_cores=c)
                ), lambda o: o.unsqueeze(0).unsqueeze(0)

    def paged(s):
        page = next((page for page in (64, 16) if s["sk"] % page == 0), 1)
        for cores in (True, False):
            wrappers = []

            def prepare(i, cores=cores, wrappers=wrappers):
                if not wrappers:
                    wrappers.append(plan(s, page, cores, i.q.dtype))
                return wrappers[0], i.q[:, 0], tuple(x.view(-1, page, *x.shape[2:]) for x in (i.k, i.v))

            yield f"paged{' tc' if cores else ''}", prepare, lambda d: d[0].run(*d[1:]), lambda o: o.unsqueeze(1)

    def plan(s, page, cores, dtype):
        pages, ints = s["sk"] // page, dict(device=device, dtype=torch.int32)
        workspace = torch.zeros(256 << 20, device=device, dtype=torch.uint8)
        wrapper = fi.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=cores)
        wrapper.plan(
            torch.arange(s["batch"] + 1, **ints) * pages,
            torch.arange(s["batch"] * pages, **ints),
            torch.full((s["batch"],), page, **ints),
            s["heads"],
            s["kv_heads"],
            s["head_dim_qk"],
            page,
            q_data_type=dtype,
            kv_data_type=dtype,
        )
        return wrapper

    def ways(s):
        if s["batch"] == 1:
            yield from single(s)
        elif s["sq"] == 1 and s["head_dim_qk"] == s["head_dim_v"]:
            yield from paged(s)

    return version_of("flashinfer-python"), ways


def version_of(*names):
    from importlib.metadata import PackageNotFoundError, version

    for name in names:
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            pass
    return names[0]


def check(o, i):
    """Compares one head of the last sequence with fp32."""
    q, k, v = i.q[-1, :, -1].float(), i.k[-1, :, -1].float(), i.v[-1, :, -1].float()
    expected = torch.softmax(q @ k.T / math.sqrt(q.shape[-1]), dim=-1) @ v
    error = (o[-1, :, -1].float() - expected).abs().max().item()
    tolerance = 0.12 if i.q.dtype == torch.float8_e4m3fn else 0.05
    if not error <= tolerance * expected.abs().max().item():
        raise ValueError(f"its result is off by {error:.1e}")


def replay(graph, count):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    graph.replay()
    start.record()
    for _ in range(count):
        graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3


def capture(prepare, call, as_o, sets):
    data = [prepare(i) for i in sets]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        check(as_o(call(data[0])), sets[0])
        for d in data[:2]:
            call(d)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for d in data:
            call(d)
    # Whoever holds the graph holds what it reads.
    return graph, data


def prepare(ways, s):
    torch.cuda.empty_cache()
    sets = [Inputs(s) for _ in range(s["sets"])]
    best, errors = None, []
    for name, *way in ways(s):
        try:
            graph = capture(*way, sets)
            once = replay(graph[0], 1)
            count = max(1, min(2000, round(MICROS / max(once, 1e-3))))
            micros = sorted(replay(graph[0], count) / count for _ in range(ROUNDS))[ROUNDS // 2]
            if best is None or micros < best[0]:
                best = micros, name, graph
        except Exception as error:
            errors.append(f"{name}: {one_line(error)}")
    if best is None:
        raise RuntimeError(errors[0] if errors else "it has no kernel for this")
    return best[1], best[2]


peer, device = sys.argv[1], sys.argv[2]
try:
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError(f"torch {torch.__version__} sees no GPU")
    torch.cuda.set_device(device)
    version, ways = {"cudnn": cudnn, "flash": flash, "fa3": fa3, "flashinfer": flashinfer}[peer]()
except BaseException as error:
    answer(missing=one_line(error))
    sys.exit()
answer(version=version)

graph = None
for line in sys.stdin:
    request = json.loads(line)
    try:
        with torch.inference_mode():
            if "prepare" in request:
                graph = None
                choice, graph = prepare(ways, request["prepare"])
                answer(choice=choice)
            else:
                answer(micros=replay(graph[0], request["replay"]))
    except BaseException as error:
        answer(error=one_line(error))
