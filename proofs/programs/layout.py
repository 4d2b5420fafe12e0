"""How tensors lie."""
# fmt: off

from proofs.programs import END, P, site, timed

STRIDE = "All fused kernels require the last dimension of the input to have stride 1"
HEADS = "both fused kernels require query, key and value to have the same num_heads"

P("bnhd_transposed", '''
class Attn(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(768, 768) for _ in range(4))

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = (f(x).view(b, n, 12, 64).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v)  #@a
        return self.o(y.transpose(1, 2).reshape(b, n, c))

m = Attn().eval()
x = torch.randn(1, 1024, 768)
''' + timed(12, '''
out = m(x)
''', "torch.inference_mode()"), [site("a", "flash", "no mask", "hides nothing")], note="transposed heads are no fault")

P("packed_slices", '''
x = torch.randn(2, 700, 3, 8, 80)      # heads of 80, slices of one tensor
''' + timed(15, '''
q, k, v = x.permute(2, 0, 3, 1, 4)
out = F.scaled_dot_product_attention(q, k, v, is_causal=True)  #@a
'''), [site("a", "flash", "is_causal flag", "causal")], note="gaps between rows are no fault so long as the last axis is dense")

P("strided_from_conv", '''
class SpatialAttention(nn.Module):
    """A UNet's: q, k and v come of a 1x1 convolution, channels first."""
    def __init__(self, c=256, heads=4):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Conv2d(c, 3 * c, 1, bias=False)
        self.to_out = nn.Conv2d(c, c, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.to_qkv(x).view(b, 3, self.heads, c // self.heads, h * w).transpose(-1, -2).unbind(1)
        y = F.scaled_dot_product_attention(q, k, v)  #@a
        return x + self.to_out(y.transpose(-1, -2).reshape(b, c, h, w))

m = SpatialAttention().eval()
x = torch.randn(1, 256, 32, 32)
''' + timed(15, '''
out = m(x)
'''), [site("a", "math", "no mask", "hides nothing", ["contiguous"], [STRIDE])],
  mend=[(".transpose(-1, -2).unbind(1)", ".transpose(-1, -2).contiguous().unbind(1)")])

P("strided_v_only", '''
N = 1024
q, k = torch.randn(1, 8, N, 64), torch.randn(1, 8, N, 64)
v = torch.randn(1, 8, 64, N).transpose(2, 3)
''' + timed(15, '''
out = F.scaled_dot_product_attention(q, k, v, is_causal=True)  #@a
'''), [site("a", "math", "is_causal flag", "causal", ["contiguous"], [STRIDE])],
  mend=[("q, k, v, is_causal", "q, k, v.contiguous(), is_causal")])

P("strided_k_cache", '''
class CachedKT:
    """Keys held (b, h, d, n), as an old hand-written attention wanted them."""
    def __init__(self, longest):
        self.kt = torch.zeros(1, 8, 64, longest)
        self.v = torch.zeros(1, 8, longest, 64)
        self.n = 0

    def add(self, k, v):
        m = k.shape[2]
        self.kt[..., self.n:self.n + m] = k.transpose(2, 3)
        self.v[:, :, self.n:self.n + m] = v
        self.n += m
        return self.kt[..., :self.n].transpose(2, 3), self.v[:, :, :self.n]

cache = CachedKT(1536)
with torch.inference_mode():
    for step in range(12):
        q, k, v = (torch.randn(1, 8, 128, 64) for _ in range(3))
        t0 = time.perf_counter()
        ks, vs = cache.add(k, v)
        out = F.scaled_dot_product_attention(q, ks, vs)  #@a
        print(f"STEP {time.perf_counter() - t0:.6f}")
''' + END, [site("a", "math", "no mask", "hides nothing", ["contiguous"], [STRIDE])],
  mend=[("self.kt = torch.zeros(1, 8, 64, longest)", "self.kt = torch.zeros(1, 8, longest, 64)"),
        ("self.kt[..., self.n:self.n + m] = k.transpose(2, 3)", "self.kt[:, :, self.n:self.n + m] = k"),
        ("self.kt[..., :self.n].transpose(2, 3)", "self.kt[:, :, :self.n]")],
  note="mended at its source: the cache held (b,h,n,d)")

P("strided_interleaved_qkv", '''
proj = nn.Linear(512, 1536).eval()
x = torch.randn(1, 1024, 512)
''' + timed(15, '''
q, k, v = proj(x).view(1, 1024, 8, 64, 3).transpose(1, 2).unbind(-1)
out = F.scaled_dot_product_attention(q, k, v, is_causal=True)  #@a
'''), [site("a", "math", "is_causal flag", "causal", ["contiguous"], [STRIDE])],
  mend=[("q, k, v, is_causal", "q.contiguous(), k.contiguous(), v.contiguous(), is_causal")])

P("strided_training", '''
class Channels(nn.Module):
    def __init__(self, c=256, heads=4):
        super().__init__()
        self.heads, self.qkv, self.o = heads, nn.Conv1d(c, 3 * c, 1), nn.Conv1d(c, c, 1)

    def forward(self, x):
        b, c, n = x.shape
        q, k, v = self.qkv(x).view(b, 3, self.heads, c // self.heads, n).unbind(1)
        q, k, v = q.transpose(2, 3), k.transpose(2, 3), v.transpose(2, 3)
        y = F.scaled_dot_product_attention(q, k, v)  #@a
        return x + self.o(y.transpose(2, 3).reshape(b, c, n))

m = Channels()
opt = torch.optim.SGD(m.parameters(), lr=1e-3)
x = torch.randn(1, 256, 1408)
for step in range(10):
    t0 = time.perf_counter()
    out = m(x)
    loss = out.pow(2).mean()
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    print(f"STEP {time.perf_counter() - t0:.6f}")
''' + END, [site("a", "math", "no mask", "hides nothing", ["contiguous"], [STRIDE])],
  mend=[("q, k, v = q.transpose(2, 3), k.transpose(2, 3), v.transpose(2, 3)", "q, k, v = (t.transpose(2, 3).contiguous() for t in (q, k, v))")])

P("strided_and_masked", '''
N = 900
mask = torch.ones(N, N, dtype=torch.bool).tril()
qkv = torch.randn(3, 1, 8, 64, N)
''' + timed(12, '''
q, k, v = qkv.transpose(-1, -2)
out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  #@a
'''), [site("a", "math", "boolean 2-D", "causal", ["contiguous", "is_causal"], [STRIDE])],
  mend=[("qkv.transpose(-1, -2)", "qkv.transpose(-1, -2).contiguous()"), ("attn_mask=mask)", "is_causal=True)")],
  note="two faults at one call: both mends are needed for the whole gain; is_causal alone leaves math (which makes a mask of it)")

P("repeat_interleave_prefill", '''
q = torch.randn(1, 12, 900, 64)
k, v = (torch.randn(1, 4, 900, 64) for _ in range(2))
''' + timed(15, '''
kk = k.repeat_interleave(3, dim=1)
vv = v.repeat_interleave(3, dim=1)
out = F.scaled_dot_product_attention(q, kk, vv, is_causal=True)  #@a
''', "torch.inference_mode()"), [site("a", "flash", "is_causal flag", "causal", [], maybe=["enable_gqa"])],
  mend=[("        kk = k.repeat_interleave(3, dim=1)\n        vv = v.repeat_interleave(3, dim=1)\n", ""), ("q, kk, vv, is_causal=True)", "q, k, v, is_causal=True, enable_gqa=True)")],
  note="over a long prefill the copying is little beside the work")

P("repeat_interleave_decode", '''
LONG = 1400
keys, values = torch.randn(2, 2, LONG, 64), torch.randn(2, 2, LONG, 64)
with torch.inference_mode():
    for step in range(30):
        q = torch.randn(2, 8, 1, 64)
        t0 = time.perf_counter()
        k, v = keys[:, :, :LONG - 30 + step], values[:, :, :LONG - 30 + step]
        for layer in range(8):
            k8, v8 = k.repeat_interleave(4, dim=1), v.repeat_interleave(4, dim=1)
            out = F.scaled_dot_product_attention(q, k8, v8)  #@a
            q = q + 0.1 * out
        print(f"STEP {time.perf_counter() - t0:.6f}")
''' + END, [site("a", "flash", "no mask", "hides nothing", ["enable_gqa"])],
  mend=[("            k8, v8 = k.repeat_interleave(4, dim=1), v.repeat_interleave(4, dim=1)\n", ""), ("(q, k8, v8)", "(q, k, v, enable_gqa=True)")],
  note="each step copies the whole cache four times over")

P("repeat_kv_expand_reshape_decode", '''
def repeat_kv(x, times):
    b, h, n, d = x.shape
    return x[:, :, None].expand(b, h, times, n, d).reshape(b, h * times, n, d)

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.kv, self.o = nn.Linear(512, 512), nn.Linear(512, 256), nn.Linear(512, 512)

    def forward(self, x, past):
        b = x.shape[0]
        q = self.q(x).view(b, 1, 8, 64).transpose(1, 2)
        k, v = self.kv(x).view(b, 1, 2, 2, 64).permute(2, 0, 3, 1, 4)
        k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        y = F.scaled_dot_product_attention(q, repeat_kv(k, 4), repeat_kv(v, 4))  #@a
        return x + self.o(y.transpose(1, 2).flatten(2)), (k, v)

layer = Layer().eval()
past = (torch.randn(4, 2, 1000, 64), torch.randn(4, 2, 1000, 64))
x = torch.randn(4, 1, 512)
''' + timed(30, '''
for again in range(4):
    out, past = layer(x, past)
    x = out / out.norm(dim=-1, keepdim=True) * 20
'''), [site("a", "flash", "no mask", "hides nothing", ["enable_gqa"])],
  mend=[("repeat_kv(k, 4), repeat_kv(v, 4))", "k, v, enable_gqa=True)")])

P("repeat_kv_then_causal_mask", '''
def repeat_kv(x, times):
    b, h, n, d = x.shape
    return x[:, :, None].expand(b, h, times, n, d).reshape(b, h * times, n, d)

N = 768
q = torch.randn(1, 8, N, 64)
k, v = (torch.randn(1, 2, N, 64) for _ in range(2))
mask = torch.full((N, N), torch.finfo(torch.float32).min).triu(1)[None, None]
''' + timed(20, '''
out = F.scaled_dot_product_attention(q, repeat_kv(k, 4), repeat_kv(v, 4), attn_mask=mask)  #@a
'''), [site("a", "flash", "float 4-D broadcast of 0 and finfo.min", "causal", ["is_causal"], maybe=["enable_gqa"])],
  mend=[("attn_mask=mask)", "is_causal=True)")])

P("mqa_expand", '''
q = torch.randn(1, 8, 900, 64)
k, v = (torch.randn(1, 1, 900, 64) for _ in range(2))
''' + timed(15, '''
out = F.scaled_dot_product_attention(q, k.expand(1, 8, 900, 64), v.expand(1, 8, 900, 64), is_causal=True)  #@a
'''), [site("a", "flash", "is_causal flag", "causal", [], maybe=["enable_gqa"])],
  mend=[("k.expand(1, 8, 900, 64), v.expand(1, 8, 900, 64), is_causal=True)", "k, v, is_causal=True, enable_gqa=True)")],
  note="one head for keys, expanded and not copied: flash runs on it as it is")

P("mqa_broadcast_one_head", '''
q = torch.randn(1, 8, 900, 64)
k, v = (torch.randn(1, 1, 900, 64) for _ in range(2))
''' + timed(12, '''
out = F.scaled_dot_product_attention(q, k, v, is_causal=True)  #@a
'''), [site("a", "math", "is_causal flag", "causal", ["enable_gqa"], [HEADS])],
  mend=[("is_causal=True)", "is_causal=True, enable_gqa=True)")],
  note="one key head given without enable_gqa: only math will broadcast it")

P("gqa_flag", '''
q = torch.randn(2, 12, 640, 64)
k, v = (torch.randn(2, 4, 640, 64) for _ in range(2))
''' + timed(15, '''
out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)  #@a
'''), [site("a", "flash", "is_causal flag", "causal")], note="as it should be")

P("gqa_flag_with_causal_mask", '''
N = 900
q = torch.randn(1, 12, N, 64)
k, v = (torch.randn(1, 3, N, 64) for _ in range(2))
mask = torch.ones(N, N, dtype=torch.bool).tril()
''' + timed(15, '''
out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)  #@a
'''), [site("a", "flash", "boolean 2-D", "causal", ["is_causal"])],
  mend=[("attn_mask=mask,", "is_causal=True,")])

P("three_dims", '''
B, H, N = 1, 8, 1024
q, k, v = (torch.randn(B * H, N, 64) for _ in range(3))
''' + timed(12, '''
out = F.scaled_dot_product_attention(q, k, v)  #@a
'''), [site("a", "math", "no mask", "hides nothing", ["four_axes"], ["All fused kernels requires query, key and value to be 4 dimensional"])],
  mend=[("F.scaled_dot_product_attention(q, k, v)", "F.scaled_dot_product_attention(q[None], k[None], v[None])[0]")],
  note="no key in the list says it, but there is much to gain")

P("three_dims_causal_mask", '''
H, N = 8, 900
q, k, v = (torch.randn(H, N, 64) for _ in range(3))
mask = torch.ones(N, N, dtype=torch.bool).tril()
''' + timed(12, '''
out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  #@a
'''), [site("a", "math", "boolean 2-D", "causal", ["four_axes"], ["All fused kernels requires query, key and value to be 4 dimensional"], maybe=["is_causal"])],
  mend=[("F.scaled_dot_product_attention(q, k, v, attn_mask=mask)", "F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]")],
  note="is_causal=True alone stays in math, which makes a mask of it: little or nothing gained")

P("value_width_differs", '''
N = 900
q, k = torch.randn(1, 8, N, 64), torch.randn(1, 8, N, 64)
v = torch.randn(1, 8, N, 48)
''' + timed(12, '''
out = F.scaled_dot_product_attention(q, k, v, is_causal=True)  #@a
'''), [site("a", "math", "is_causal flag", "causal", [], ["Flash attention requires q,k,v to have the same last dimension"])],
  mend=[("F.scaled_dot_product_attention(q, k, v, is_causal=True)", "F.scaled_dot_product_attention(q, k, F.pad(v, (0, 16)), is_causal=True)[..., :48]")],
  note="DeepSeek's way (wider keys than values); no key in the list says it")

P("value_wider", '''
N = 640
q, k = torch.randn(2, 4, N, 32), torch.randn(2, 4, N, 32)
v = torch.randn(2, 4, N, 128)
''' + timed(12, '''
out = F.scaled_dot_product_attention(q, k, v)  #@a
'''), [site("a", "math", "no mask", "hides nothing", [], ["Flash attention requires q,k,v to have the same last dimension"])],
  note="padding would cost about as much as it saves; count neither way")

P("batch_broadcast", '''
q = torch.randn(4, 8, 400, 64)
k, v = (torch.randn(1, 8, 640, 64) for _ in range(2))      # one memory for the whole batch
''' + timed(12, '''
out = F.scaled_dot_product_attention(q, k, v)  #@a
'''), [site("a", "math", "no mask", "hides nothing", [], ["both fused kernels require query, key and value to have the same batch_size"])],
  mend=[("(q, k, v)  #@a", "(q, k.expand(4, -1, -1, -1), v.expand(4, -1, -1, -1))  #@a")], note="no key in the list says it")

P("cross_attention_plain", '''
class Cross(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.kv, self.o = nn.Linear(320, 512), nn.Linear(768, 1024), nn.Linear(512, 320)

    def forward(self, x, text):
        q = self.q(x).unflatten(-1, (8, 64)).transpose(1, 2)
        k, v = self.kv(text).unflatten(-1, (2, 8, 64)).permute(2, 0, 3, 1, 4)
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))  #@a

m = Cross().eval()
x, text = torch.randn(1, 1024, 320), torch.randn(1, 77, 768)
''' + timed(20, '''
out = m(x, text)
'''), [site("a", "flash", "no mask", "hides nothing")], note="1,024 queries over 77 keys; as it should be")

P("no_size_one_stride_fault", '''
# The projection gives (b, d, h, n) and is put right by permute + contiguous: no fault
w = torch.randn(3, 512, 512) / 23
x = torch.randn(1, 512, 900)
''' + timed(12, '''
q, k, v = torch.matmul(w, x).view(3, 1, 8, 64, 900).permute(0, 1, 2, 4, 3).contiguous()
out = F.scaled_dot_product_attention(q, k, v, is_causal=True)  #@a
'''), [site("a", "flash", "is_causal flag", "causal")], note="the copy is already made by the program")
