"""Phases, dtypes and the shapes of programs."""
# fmt: off

from proofs.programs import END, P, site, timed

TRAIN = '''
opt = torch.optim.SGD(m.parameters(), lr=1e-3)
for step in range(10):
    t0 = time.perf_counter()
    out = m(x)
    loss = out.pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"STEP {time.perf_counter() - t0:.6f}")
''' + END
STRIDE = "All fused kernels require the last dimension of the input to have stride 1"
DROP = "Both fused kernels do not support non-zero dropout"
BLOCK = '''
class Block(nn.Module):
    def __init__(self, width=512, heads=8, p=0.0):
        super().__init__()
        self.heads, self.p = heads, p
        self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("mask", torch.ones(1024, 1024, dtype=torch.bool).tril())

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = {call}  #@a
        return x + self.o(y.transpose(1, 2).flatten(2))
'''
def block(call):
    return BLOCK.replace("{call}", call)

P("train_causal_mask", block("F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask[:n, :n])") + '''
m = nn.Sequential(Block(), Block())
x = torch.randn(1, 1024, 512)
''' + TRAIN, [site("a", "flash", "boolean 2-D", "causal", ["is_causal"])], mend=[("attn_mask=self.mask[:n, :n])", "is_causal=True)")])

P("train_flag", block("F.scaled_dot_product_attention(q, k, v, dropout_p=self.p, is_causal=True)") + '''
m = nn.Sequential(Block(), Block())
x = torch.randn(1, 768, 512)
''' + TRAIN, [site("a", "flash", "is_causal flag", "causal")], note="trained, dropout 0.0 given by name: as it should be")

P("train_adam_float_mask", block("F.scaled_dot_product_attention(q, k, v, torch.zeros(n, n).masked_fill(~self.mask[:n, :n], float('-inf')))") + '''
m = Block()
x = torch.randn(1, 1024, 512)
opt = torch.optim.AdamW(m.parameters(), lr=1e-5)
for step in range(10):
    t0 = time.perf_counter()
    out = m(x)
    loss = out.pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"STEP {time.perf_counter() - t0:.6f}")
''' + END, [site("a", "flash", "float 2-D of 0 and -inf, made anew at every call", "causal", ["is_causal"])],
  mend=[("torch.zeros(n, n).masked_fill(~self.mask[:n, :n], float('-inf')))", "is_causal=True)")])

P("train_dropout", block("F.scaled_dot_product_attention(q, k, v, dropout_p=self.p if self.training else 0.0, is_causal=True)") + '''
m = nn.Sequential(Block(p=0.1), Block(p=0.1))
x = torch.randn(1, 640, 512)
''' + TRAIN, [site("a", "math", "is_causal flag", "causal", [], [DROP])], note="dropout in training is meant; nothing to gain on a CPU")

P("train_dropout_causal_mask", block("F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask[:n, :n], dropout_p=self.p)") + '''
m = Block(p=0.1)
x = torch.randn(1, 640, 512)
''' + TRAIN, [site("a", "math", "boolean 2-D", "causal", [], [DROP], maybe=["is_causal"])], mend=[("attn_mask=self.mask[:n, :n],", "is_causal=True,")],
  note="math makes a mask of is_causal, so nothing much to gain; same random numbers, so the outputs are equal")

P("eval_dropout_forgotten", block("F.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)") + '''
m = Block().eval()
x = torch.randn(1, 768, 512)
''' + timed(12, '''
out = m(x)
'''), [site("a", "math", "is_causal flag", "causal", [], [DROP])],
  note="a bug: dropout outside training. A tool may point at it, but must not call the outputs equal")

P("eval_dropout_gated", block("F.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0.0, is_causal=True)") + '''
m = Block().eval()
x = torch.randn(1, 900, 512)
''' + timed(12, '''
out = m(x)
''', "torch.inference_mode()"), [site("a", "flash", "is_causal flag", "causal")])

P("grads_on_never_used", block("F.scaled_dot_product_attention(q, k, v, is_causal=True)") + '''
m = nn.Sequential(*[Block() for _ in range(4)]).eval()
x = torch.randn(1, 512, 512)
for step in range(12):
    t0 = time.perf_counter()
    out = m(x)
    print(f"STEP {time.perf_counter() - t0:.6f}")
out = out.detach()
''' + END, [site("a", "flash", "is_causal flag", "causal", [], maybe=["no_grad"])],
  mend=[("for step in range(12):\n", "torch.set_grad_enabled(False)\nfor step in range(12):\n")], note="flash keeps only q, k, v, the output and a row of sums, so the gain is likely small")

P("grads_on_never_used_by_hand", '''
class Attn(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(512, 1536)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, 8, 64).permute(2, 0, 3, 1, 4)
        w = torch.softmax(q @ k.transpose(-2, -1) / 8, dim=-1)  #@a
        return (w @ v).transpose(1, 2).flatten(2)

m = nn.Sequential(Attn(), Attn()).eval()
x = torch.randn(1, 768, 512)
for step in range(10):
    t0 = time.perf_counter()
    out = m(x)
    print(f"STEP {time.perf_counter() - t0:.6f}")
out = out.detach()
''' + END, [site("a", "by hand", "no mask", "hides nothing", ["sdpa"], ["attention written out"], maybe=["no_grad"])],
  mend=[("        w = torch.softmax(q @ k.transpose(-2, -1) / 8, dim=-1)  #@a\n        return (w @ v).", "        y = F.scaled_dot_product_attention(q, k, v)  #@a\n        return y.")],
  note="two faults: by hand, and gradients nobody asks for")

P("grads_on_strided", '''
m = nn.Conv1d(512, 1536, 1).eval()
x = torch.randn(1, 512, 900)
for step in range(10):
    t0 = time.perf_counter()
    q, k, v = m(x).view(3, 1, 8, 64, 900).transpose(-1, -2)
    out = F.scaled_dot_product_attention(q, k, v)  #@a
    print(f"STEP {time.perf_counter() - t0:.6f}")
out = out.detach()
''' + END, [site("a", "math", "no mask", "hides nothing", ["contiguous"], [STRIDE], maybe=["no_grad"])],
  mend=[(".transpose(-1, -2)\n", ".transpose(-1, -2).contiguous()\n")])

P("autocast_plain", block("F.scaled_dot_product_attention(q, k, v, is_causal=True)") + '''
m = Block().eval()
x = torch.randn(1, 900, 512)
''' + timed(12, '''
out = m(x)
''', 'torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16)'), [site("a", "flash", "is_causal flag", "causal")])

P("autocast_float_mask", '''
N = 1024
lin = nn.Linear(512, 1536).eval()
mask = torch.full((N, N), float("-inf")).triu(1)
x = torch.randn(1, N, 512)
''' + timed(12, '''
q, k, v = lin(x).view(1, N, 3, 8, 64).permute(2, 0, 3, 1, 4)
out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  #@a
''', 'torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16)'), [site("a", "flash", "float 2-D of 0 and -inf", "causal", ["is_causal"])],
  mend=[("attn_mask=mask)", "is_causal=True)")])

P("bfloat16_math_left_in", '''
from torch.nn.attention import SDPBackend, sdpa_kernel
q, k, v = (torch.randn(1, 8, 640, 64, dtype=torch.bfloat16) for _ in range(3))
with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
    for step in range(10):
        t0 = time.perf_counter()
        out = F.scaled_dot_product_attention(q, k, v)  #@a
        print(f"STEP {time.perf_counter() - t0:.6f}")
out = out.float()
''' + END, [site("a", "math", "no mask", "hides nothing", ["backend"], ["Flash attention has been runtime disabled"], equal_to=1e-2)],
  mend=[("sdpa_kernel(SDPBackend.MATH)", "sdpa_kernel(SDPBackend.FLASH_ATTENTION)")], note="bfloat16: the two kernels differ by its rounding, so CHECK may differ past 1e-4 (entries by 0.3 % of the greatest)")

P("float64_causal_mask", '''
N = 640
q, k, v = (torch.randn(1, 8, N, 64, dtype=torch.float64) for _ in range(3))
mask = torch.zeros(N, N, dtype=torch.float64).masked_fill(torch.ones(N, N, dtype=torch.bool).triu(1), -torch.inf)
''' + timed(12, '''
out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  #@a
'''), [site("a", "flash", "float 2-D of 0 and -inf", "causal", ["is_causal"])], mend=[("attn_mask=mask)", "is_causal=True)")])

P("float64_plain", '''
q, k, v = (torch.randn(1, 8, 640, 64, dtype=torch.float64) for _ in range(3))
''' + timed(12, '''
out = F.scaled_dot_product_attention(q, k, v)  #@a
'''), [site("a", "flash", "no mask", "hides nothing")])

P("threads_causal_mask", '''
from concurrent.futures import ThreadPoolExecutor
N = 768
mask = torch.ones(N, N, dtype=torch.bool).tril()

def work(seed):
    g = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, 8, N, 64, generator=g) for _ in range(3))
    with torch.no_grad():
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  #@a

with ThreadPoolExecutor(2) as pool:
    for step in range(12):
        t0 = time.perf_counter()
        out = torch.stack(list(pool.map(work, (step, 100 + step))))
        print(f"STEP {time.perf_counter() - t0:.6f}")
''' + END, [site("a", "flash", "boolean 2-D", "causal", ["is_causal"])], mend=[("attn_mask=mask)", "is_causal=True)")], note="two Python threads")

P("threads_two_sites", '''
import threading
from torch.nn.attention import SDPBackend, sdpa_kernel
done = {}

def encoder(steps):
    q, k, v = (torch.randn(1, 4, 512, 64, generator=torch.Generator().manual_seed(i)) for i in range(3))
    with torch.no_grad():
        for _ in range(steps):
            done["a"] = F.scaled_dot_product_attention(q, k, v)  #@a

def decoder(steps):
    q, k, v = (torch.randn(1, 4, 640, 64, generator=torch.Generator().manual_seed(9 + i)) for i in range(3))
    with torch.no_grad():
        for _ in range(steps):
            done["b"] = F.scaled_dot_product_attention(q, k, v.mT.contiguous().mT)  #@b

for step in range(6):
    t0 = time.perf_counter()
    ts = [threading.Thread(target=encoder, args=(4,)), threading.Thread(target=decoder, args=(4,))]
    [t.start() for t in ts]
    [t.join() for t in ts]
    print(f"STEP {time.perf_counter() - t0:.6f}")
print(f"CHECK {sum(t.double().pow(2).mean().item() for t in (done['a'], done['b'])):.10g}")
''', [site("a", "flash", "no mask", "hides nothing"), site("b", "math", "no mask", "hides nothing", ["contiguous"], [STRIDE])],
  mend=[("v.mT.contiguous().mT)", "v)")], note="two sites, each in a thread of its own; only one is at fault")

P("two_sites_two_faults", '''
class Encoder(nn.Module):
    def __init__(self, c=256):
        super().__init__()
        self.qkv = nn.Conv1d(c, 3 * c, 1)

    def forward(self, x):
        b, c, n = x.shape
        q, k, v = self.qkv(x).view(b, 3, 4, c // 4, n).transpose(-1, -2).unbind(1)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)  #@enc

class Decoder(nn.Module):
    def __init__(self, c=256):
        super().__init__()
        self.qkv = nn.Linear(c, 3 * c)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, 4, c // 4).permute(2, 0, 3, 1, 4)
        causal = torch.ones(n, n, dtype=torch.bool).tril()
        return F.scaled_dot_product_attention(q, k, v, attn_mask=causal).transpose(1, 2).flatten(2)  #@dec

enc, dec = Encoder().eval(), Decoder().eval()
x = torch.randn(1, 256, 1024)
''' + timed(12, '''
out = dec(enc(x))
'''), [site("enc", "math", "no mask", "hides nothing", ["contiguous"], [STRIDE]), site("dec", "flash", "boolean 2-D, made anew at every call", "causal", ["is_causal"])],
  mend=[(".transpose(-1, -2).unbind(1)", ".transpose(-1, -2).contiguous().unbind(1)"), ("attn_mask=causal)", "is_causal=True)"), ("        causal = torch.ones(n, n, dtype=torch.bool).tril()\n", "")])

P("two_sites_one_fault", '''
N, M = 640, 200
x, text = torch.randn(2, N, 512), torch.randn(2, M, 512)
heads = lambda t: t.unflatten(-1, (8, 64)).transpose(1, 2)
whole = torch.ones(2, 8, N, N, dtype=torch.bool)
keep = (torch.arange(M)[None] < torch.tensor([200, 77])[:, None])[:, None, None]
''' + timed(12, '''
y = F.scaled_dot_product_attention(heads(x), heads(x), heads(x), attn_mask=whole)  #@own
out = F.scaled_dot_product_attention(y, heads(text), heads(text), attn_mask=keep)  #@other
'''), [site("own", "flash", "boolean 4-D, one for each head", "hides nothing", ["drop_mask"]), site("other", "flash", "boolean 4-D broadcast (b,1,1,n)", "padding (right)", [])],
  mend=[(", attn_mask=whole)", ")")])

P("two_calls_one_line", '''
N = 768
q, k, v = (torch.randn(1, 8, N, 64) for _ in range(3))
tri = torch.ones(N, N, dtype=torch.bool).tril()
sdpa = F.scaled_dot_product_attention
''' + timed(12, '''
out = sdpa(q, k, v) + sdpa(q, k, v, attn_mask=tri)  #@a
'''), [site("a", "flash", "two calls on one line: no mask / boolean 2-D", "hides nothing / causal", maybe=["is_causal"])],
  mend=[("attn_mask=tri)", "is_causal=True)")], note="two calls on one line; only the second is at fault")

P("decode_growing_cache", '''
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.o = nn.Linear(512, 1536), nn.Linear(512, 512)

    def forward(self, x, past):
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, 8, 64).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)  #@a
        return x + self.o(y.transpose(1, 2).flatten(2)), (k, v)

m = Layer().eval()
x, past = torch.randn(1, 512, 512), None
''' + timed(30, '''
out, past = m(x, past)
x = out[:, -1:] / out[:, -1:].norm(dim=-1, keepdim=True) * 20
''', "torch.inference_mode()"), [site("a", "flash", "is_causal flag at the first call, then no mask", "causal, then hides nothing")], note="as it should be: prefill and then one token at a time")

P("decode_all_true_mask", '''
keys, values = torch.randn(4, 8, 1300, 64), torch.randn(4, 8, 1300, 64)
with torch.inference_mode():
    for step in range(30):
        q = torch.randn(4, 8, 1, 64)
        n = 1200 + step
        t0 = time.perf_counter()
        mask = torch.ones(4, 1, 1, n, dtype=torch.bool)
        for layer in range(4):
            out = F.scaled_dot_product_attention(q, keys[:, :, :n], values[:, :, :n], attn_mask=mask)  #@a
            q = q + 0.1 * out
        print(f"STEP {time.perf_counter() - t0:.6f}")
''' + END, [site("a", "flash", "boolean 4-D broadcast (b,1,1,n), longer at every step", "hides nothing", [], maybe=["drop_mask"])],
  mend=[(", attn_mask=mask)", ")")], note="a row mask over one query costs little")

P("decode_static_cache_padding", '''
LONG = 1024
keys, values = torch.zeros(1, 8, LONG, 64), torch.zeros(1, 8, LONG, 64)
keys[:, :, :300], values[:, :, :300] = torch.randn(1, 8, 300, 64), torch.randn(1, 8, 300, 64)
with torch.inference_mode():
    for step in range(30):
        q, k, v = (torch.randn(1, 8, 1, 64) for _ in range(3))
        at = 300 + step
        t0 = time.perf_counter()
        keys[:, :, at:at + 1], values[:, :, at:at + 1] = k, v
        mask = (torch.arange(LONG) <= at)[None, None, None]
        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)  #@a
        print(f"STEP {time.perf_counter() - t0:.6f}")
''' + END, [site("a", "flash", "boolean 4-D broadcast (1,1,1,n)", "padding (right); one query, so also causal in the lower right corner for its place", [])], note="TRAP: is_causal=True would show the query only key 0")

P("chunked_prefill", '''
keys, values = torch.randn(1, 8, 1280, 64), torch.randn(1, 8, 1280, 64)
queries = torch.randn(1, 8, 1280, 64)
parts = []
with torch.no_grad():
    for step in range(10):
        t0 = time.perf_counter()
        lo, hi = 128 * step, 128 * (step + 1)
        mask = torch.ones(128, hi, dtype=torch.bool).tril(lo)
        parts.append(F.scaled_dot_product_attention(queries[:, :, lo:hi], keys[:, :, :hi], values[:, :, :hi], attn_mask=mask))  #@a
        print(f"STEP {time.perf_counter() - t0:.6f}")
out = torch.cat(parts, 2)
''' + END, [site("a", "flash", "boolean 2-D, another at every call", "causal in the lower right corner (square at the first call)", [])], note="TRAP: square and causal at the first call only")

P("small_share_by_hand", '''
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.qkv = nn.Linear(768, 3072), nn.Linear(3072, 768), nn.Linear(768, 2304)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, 12, 64).permute(2, 0, 3, 1, 4)
        y = torch.softmax(q @ k.transpose(-2, -1) * 0.125, -1) @ v  #@a
        x = x + y.transpose(1, 2).flatten(2)
        return x + self.down(F.gelu(self.up(x)))

m = Block().eval()
x = torch.randn(8, 32, 768)
''' + timed(12, '''
out = m(x)
'''), [site("a", "by hand", "no mask", "hides nothing", [], ["attention written out"], maybe=["sdpa"])],
  mend=[("torch.softmax(q @ k.transpose(-2, -1) * 0.125, -1) @ v", "F.scaled_dot_product_attention(q, k, v)")], note="32 tokens beside a wide MLP: the program as a whole gains nothing to speak of")

P("many_shapes_vit_like", '''
class Attn(nn.Module):
    def __init__(self, c=384):
        super().__init__()
        self.qkv, self.o = nn.Linear(c, 3 * c), nn.Linear(c, c)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, 6, c // 6).permute(2, 0, 3, 1, 4).unbind(0)
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c))  #@a

m = nn.Sequential(*[Attn() for _ in range(3)]).eval()
total = 0.0
with torch.inference_mode():
    for side in (14, 16, 20, 24, 28, 30, 16, 24, 28, 20, 14, 30):
        x = torch.randn(2, side * side + 1, 384)
        t0 = time.perf_counter()
        out = m(x)
        print(f"STEP {time.perf_counter() - t0:.6f}")
        total += out.double().pow(2).mean().item()
print(f"CHECK {total:.10g}")
''', [site("a", "flash", "no mask", "hides nothing")], note="timm's ViT; odd lengths")

P("checkpointed_training", block("F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask[None, None, :n, :n])") + '''
from torch.utils.checkpoint import checkpoint
blocks = nn.ModuleList([Block(), Block()])
opt = torch.optim.SGD(blocks.parameters(), lr=1e-3)
x = torch.randn(1, 1024, 512)
for step in range(8):
    t0 = time.perf_counter()
    out = x
    for b in blocks:
        out = checkpoint(b, out, use_reentrant=False)
    loss = out.pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"STEP {time.perf_counter() - t0:.6f}")
''' + END, [site("a", "flash", "boolean 4-D broadcast", "causal", ["is_causal"])], mend=[("attn_mask=self.mask[None, None, :n, :n])", "is_causal=True)")], note="activation checkpointing calls each site twice a step, the second time from the backward pass")

P("called_by_exec", '''
SOURCE = """
def attend(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
"""
exec(compile(SOURCE, "<generated>", "exec"))
N = 900
q, k, v = (torch.randn(1, 8, N, 64) for _ in range(3))
mask = torch.ones(N, N, dtype=torch.bool).tril()
''' + timed(12, '''
out = attend(q, k, v, mask)  #@a
'''), [site("a", "flash", "boolean 2-D", "causal", ["is_causal"])], mend=[("attn_mask=mask)", "is_causal=True)")], note="the call's own file does not exist")

P("through_a_class_attribute", '''
import functools

class Attn(nn.Module):
    kernel = staticmethod(functools.partial(F.scaled_dot_product_attention, dropout_p=0.0, scale=0.125))

    def forward(self, q, k, v, m):
        return self.kernel(q, k, v, attn_mask=m)  #@a

N = 900
q, k, v = (torch.randn(1, 8, N, 64) for _ in range(3))
m = torch.zeros(1, 1, N, N).expand(1, 8, N, N)
attn = Attn()
''' + timed(12, '''
out = attn(q, k, v, m)
'''), [site("a", "flash", "float 4-D expanded to heads", "hides nothing", ["drop_mask"])], mend=[("(q, k, v, attn_mask=m)", "(q, k, v)")], note="functools.partial, bound at import")

P("no_attention_at_all", '''
m = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).eval()
x = torch.randn(512, 512)
''' + timed(10, '''
out = m(x)
'''), [], note="no site")

P("fails_midway", '''
q, k, v = (torch.randn(1, 8, 640, 64) for _ in range(3))
mask = torch.ones(640, 640, dtype=torch.bool).tril()
''' + timed(10, '''
try:
    out = F.scaled_dot_product_attention(q, k, v[:, :, :, :64], attn_mask=mask if step != 4 else mask[:639])  #@a
except RuntimeError:
    pass                                  # one bad batch, skipped
'''), [site("a", "flash", "boolean 2-D", "causal", ["is_causal"])], mend=[("attn_mask=mask if step != 4 else mask[:639])", "is_causal=True)")],
  note="one call of ten raises and is caught: the program must behave the same under capture")
