"""Each way of giving a mask, and what it holds."""
# fmt: off

from proofs.programs import END, P, site, timed

D3 = "Please use the following attn mask shapes: 2d or 4d (mask is 3-D)"

# ------------------------------------------------------------------ hides nothing
P("nomask_plain", '''
q, k, v = (torch.randn(2, 8, 768, 64) for _ in range(3))
''' + timed(20, '''
out = F.scaled_dot_product_attention(q, k, v)  #@a
q = q + 0.01 * out
''', "torch.inference_mode()"), [site("a", "flash", "no mask", "hides nothing")], note="the plain case")

P("flag_causal", '''
class SelfAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)  #@a
        return self.proj(y.transpose(1, 2).reshape(b, n, c))

m = SelfAttention(512, 8).eval()
x = torch.randn(1, 1024, 512)
''' + timed(20, '''
out = m(x)
'''), [site("a", "flash", "is_causal flag", "causal")], note="as it should be")

P("bool2d_all_true", '''
q, k, v = (torch.randn(1, 8, 1024, 64) for _ in range(3))
allowed = torch.ones(1024, 1024, dtype=torch.bool)
''' + timed(20, '''
out = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)  #@a
''', "torch.inference_mode()"), [site("a", "flash", "boolean 2-D", "hides nothing", ["drop_mask"])],
  mend=[(", attn_mask=allowed)", ")")])

P("bool4d_heads_all_true", '''
B, H, N = 2, 8, 768
q, k, v = (torch.randn(B, H, N, 64) for _ in range(3))
mask = torch.ones(B, 1, N, N, dtype=torch.bool).expand(B, H, N, N)
''' + timed(15, '''
out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  #@a
'''), [site("a", "flash", "boolean 4-D expanded to heads", "hides nothing", ["drop_mask"])],
  mend=[(", attn_mask=mask)", ")")],
  note="the expanded boolean mask is turned into a dense float one at every call")

P("float2d_zeros", '''
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(512, 512) for _ in range(4))

    def forward(self, x, bias):
        b, n, _ = x.shape
        split = lambda t: t.view(b, n, 8, 64).transpose(1, 2)
        y = F.scaled_dot_product_attention(split(self.q(x)), split(self.k(x)), split(self.v(x)), bias)  #@a
        return self.o(y.transpose(1, 2).flatten(2))

layer = Layer().eval()
x = torch.randn(1, 1280, 512)
bias = torch.zeros(1280, 1280)
''' + timed(15, '''
out = layer(x, bias)
''', "torch.inference_mode()"), [site("a", "flash", "float 2-D", "hides nothing", ["drop_mask"])],
  mend=[("split(self.v(x)), bias)", "split(self.v(x)))")], note="the mask is given by position")

P("padding_without_padding", '''
lengths = torch.tensor([900, 900])
B, N = 2, 900
keep = (torch.arange(N)[None] < lengths[:, None])[:, None, None, :]
q, k, v = (torch.randn(B, 8, N, 64) for _ in range(3))
''' + timed(15, '''
out = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)  #@a
'''), [site("a", "flash", "boolean 4-D broadcast (b,1,1,n)", "hides nothing", [], maybe=["drop_mask"])],
  mend=[(", attn_mask=keep)", ")")],
  note="a padding mask over a batch in which nothing is padded; the row mask is cheap, so the gain may be nothing")

P("mha_key_padding_all_false", '''
m = nn.MultiheadAttention(512, 8, batch_first=True)
x = torch.randn(2, 640, 512)
pad = torch.zeros(2, 640, dtype=torch.bool)
opt = torch.optim.SGD(m.parameters(), lr=1e-3)
for step in range(10):
    t0 = time.perf_counter()
    out, _ = m(x, x, x, key_padding_mask=pad, need_weights=False)  #@a
    loss = out.pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"STEP {time.perf_counter() - t0:.6f}")
''' + END, [site("a", "flash", "key_padding_mask (MultiheadAttention makes it a float 4-D one, expanded to heads)", "hides nothing", [], maybe=["drop_mask"])],
  mend=[("key_padding_mask=pad, ", "")])

# ------------------------------------------------------------------ causal
def causal_script(name, make, given, n=1024, iters=20, call="attn_mask=mask", why=(), kernel="flash", note="", new="is_causal=True", **kw):
    P(name, f'''
N = {n}
q, k, v = (torch.randn(1, 8, N, 64) for _ in range(3))
{make}
with torch.inference_mode():
    for step in range({iters}):
        t0 = time.perf_counter()
        out = F.scaled_dot_product_attention(q, k, v, {call})  #@a
        print(f"STEP {{time.perf_counter() - t0:.6f}}")
print(f"CHECK {{out.double().pow(2).mean().item():.10g}}")
''', [site("a", kernel, given, "causal", ["is_causal"], why, **kw)], mend=[(call + ")", new + ")")], note=note)

causal_script("bool2d_causal", "mask = torch.ones(N, N, dtype=torch.bool).tril()", "boolean 2-D")
causal_script("bool4d_bcast_causal", "mask = torch.tril(torch.ones(N, N)).view(1, 1, N, N) == 1", "boolean 4-D broadcast")
causal_script("bool4d_heads_causal", "mask = torch.ones(N, N, dtype=torch.bool).tril()[None, None].repeat(1, 8, 1, 1)", "boolean 4-D expanded to heads (a real copy for each)")
causal_script("float_inf_causal", "mask = nn.Transformer.generate_square_subsequent_mask(N)", "float 2-D of 0 and -inf")
causal_script("float_finfo_causal", "mask = torch.full((N, N), torch.finfo(torch.float32).min).triu(1)[None, None]", "float 4-D broadcast of 0 and finfo.min")
causal_script("float_1e9_causal", "mask = (1.0 - torch.ones(N, N).tril()) * -1e9", "float 2-D of 0 and -1e9", note="-1e9 underflows to a weight of exactly 0")
causal_script("float_1e4_causal", "mask = (1.0 - torch.ones(N, N).tril()) * -10000.0", "float 2-D of 0 and -1e4", note="BERT-style -10000: at these score sizes the weight is exactly 0 all the same, so it is causal in effect; a tool may well refuse to call it so", maybe=["is_causal"])
causal_script("bool3d_causal", "mask = torch.ones(N, N, dtype=torch.bool).tril()[None]", "boolean 3-D (1,n,n)", kernel="math", why=[D3], iters=12, note="a 3-D mask keeps the flash kernel away")
causal_script("float_mask_transposed_causal", "mask = torch.full((N, N), float('-inf')).tril(-1).t()", "float 2-D of 0 and -inf, last axis strided", note="the mask's own strides do not matter to the flash kernel's being taken")

P("causal_window_wider_than_text", '''
N, WINDOW = 1024, 4096
i = torch.arange(N)
mask = (i[None, :] <= i[:, None]) & (i[:, None] - i[None, :] < WINDOW)
q, k, v = (torch.randn(1, 8, N, 64) for _ in range(3))
''' + timed(20, '''
out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  #@a
'''), [site("a", "flash", "boolean 2-D", "causal", ["is_causal"])],
  mend=[("attn_mask=mask)", "is_causal=True)")], note="a sliding window that never bites")

P("documents_only_one", '''
N = 1100
doc = torch.zeros(1, N, dtype=torch.long)
mask = (doc[:, :, None] == doc[:, None, :])[:, None] & torch.ones(N, N, dtype=torch.bool).tril()
q, k, v = (torch.randn(1, 8, N, 64) for _ in range(3))
''' + timed(15, '''
out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  #@a
'''), [site("a", "flash", "boolean 4-D broadcast", "causal", ["is_causal"])],
  mend=[("attn_mask=mask)", "is_causal=True)")])

P("padding_and_causal_without_padding", '''
B, N = 2, 800
ids = torch.randint(1, 1000, (B, N))
emb = nn.Embedding(1000, 512, padding_idx=0)
proj = nn.Linear(512, 1536)

def attend(ids):
    x = emb(ids)
    q, k, v = proj(x).view(B, N, 3, 8, 64).permute(2, 0, 3, 1, 4)
    keep = (ids != 0)[:, None, None, :] & torch.ones(N, N, dtype=torch.bool).tril()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep)  #@a

''' + timed(12, '''
out = attend(ids)
'''), [site("a", "flash", "boolean 4-D broadcast (b,1,n,n), made anew", "causal", ["is_causal"])],
  mend=[("attn_mask=keep)", "is_causal=True)")],
  note="true of the data seen; another batch might be padded. Mended keeps the making of the mask")

P("bias_upper_left_square", '''
from torch.nn.attention.bias import causal_upper_left
N = 1024
q, k, v = (torch.randn(1, 8, N, 64) for _ in range(3))
bias = causal_upper_left(N, N)
''' + timed(20, '''
out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)  #@a
'''), [site("a", "flash", "bias object", "causal")], note="torch itself turns it into is_causal=True")

P("bias_lower_right_square", '''
from torch.nn.attention.bias import causal_lower_right
N = 900
q, k, v = (torch.randn(1, 8, N, 64) for _ in range(3))
''' + timed(20, '''
out = F.scaled_dot_product_attention(q, k, v, attn_mask=causal_lower_right(N, N))  #@a
'''), [site("a", "flash", "bias object", "causal")], note="square, so both corners are one; torch turns it into is_causal=True")

P("bias_lower_right_more_keys", '''
from torch.nn.attention.bias import causal_lower_right
NQ, NK = 256, 1280
q = torch.randn(1, 8, NQ, 64)
k, v = (torch.randn(1, 8, NK, 64) for _ in range(2))
bias = causal_lower_right(NQ, NK)
''' + timed(20, '''
out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)  #@a
'''), [site("a", "flash", "bias object", "causal, more keys than queries, lower right corner")],
  note="on a CPU torch makes a boolean tensor of it at every call; is_causal=True would be WRONG (upper left)")

P("bias_upper_left_more_keys", '''
from torch.nn.attention.bias import causal_upper_left
NQ, NK = 512, 1024
q = torch.randn(1, 8, NQ, 64)
k, v = (torch.randn(1, 8, NK, 64) for _ in range(2))
bias = causal_upper_left(NQ, NK)
''' + timed(20, '''
out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)  #@a
'''), [site("a", "flash", "bias object", "causal, more keys than queries, upper left corner")])

P("bool_lower_right_more_keys", '''
NQ, NK = 320, 1200
q = torch.randn(1, 8, NQ, 64)
k, v = (torch.randn(1, 8, NK, 64) for _ in range(2))
mask = torch.ones(NQ, NK, dtype=torch.bool).tril(NK - NQ)
''' + timed(20, '''
out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  #@a
'''), [site("a", "flash", "boolean 2-D", "causal, more keys than queries, lower right corner")],
  note="TRAP: is_causal=True would be the upper left corner, another answer")

P("bool_upper_left_more_keys", '''
NQ, NK = 640, 1400
q = torch.randn(1, 8, NQ, 64)
k, v = (torch.randn(1, 8, NK, 64) for _ in range(2))
mask = torch.ones(NQ, NK, dtype=torch.bool).tril()
''' + timed(20, '''
out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  #@a
'''), [site("a", "flash", "boolean 2-D", "causal, more keys than queries, upper left corner", ["is_causal"])],
  mend=[("attn_mask=mask)", "is_causal=True)")], note="keys past the 640th are never seen; is_causal=True skips them all")

P("flag_causal_more_keys", '''
q = torch.randn(2, 4, 400, 64)
k, v = (torch.randn(2, 4, 1000, 64) for _ in range(2))
''' + timed(20, '''
out = F.scaled_dot_product_attention(q, k, v, is_causal=True)  #@a
'''), [site("a", "flash", "is_causal flag", "causal, more keys than queries, upper left corner")])

# ------------------------------------------------------------------ traps close to causal / to nothing
P("trap_causal_but_one", '''
N = 1024
q, k, v = (torch.randn(1, 8, N, 64) for _ in range(3))
mask = torch.ones(N, N, dtype=torch.bool).tril()
mask[0, N - 1] = True            # the first token also sees the last one
''' + timed(20, '''
out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  #@a
'''), [site("a", "flash", "boolean 2-D", "none of these (causal but for one place)")], note="TRAP: is_causal=True is wrong in row 0")

P("trap_hides_one_key", '''
N = 1024
q, k, v = (torch.randn(1, 8, N, 64) for _ in range(3))
mask = torch.ones(1, 1, N, N, dtype=torch.bool)
mask[0, 0, 517, 311] = False
''' + timed(20, '''
out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  #@a
'''), [site("a", "flash", "boolean 4-D broadcast", "none of these (one place hidden)")], note="TRAP: drop_mask is wrong in one row")

P("trap_float_small_bias", '''
N = 900
q, k, v = (torch.randn(1, 8, N, 64) for _ in range(3))
bias = torch.zeros(N, N)
bias[:, 0] = 1.0                 # the first token is favoured
''' + timed(20, '''
out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)  #@a
'''), [site("a", "flash", "float 2-D", "none of these (hides nothing but adds)")], note="TRAP: hides nothing, yet is not nothing; neither drop_mask nor boolean_mask")

P("trap_constant_float", '''
N = 1024
q, k, v = (torch.randn(1, 8, N, 64) for _ in range(3))
bias = torch.full((N, N), 2.5)   # the same number everywhere: softmax does not see it
''' + timed(20, '''
out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)  #@a
'''), [site("a", "flash", "float 2-D", "hides nothing (a constant)", [], maybe=["drop_mask"])],
  mend=[(", attn_mask=bias)", ")")], note="a constant has no effect; a tool may or may not see it")

P("trap_strictly_causal", '''
N = 1024
q, k, v = (torch.randn(1, 8, N, 64) for _ in range(3))
mask = torch.ones(N, N, dtype=torch.bool).tril(-1)
mask[0, 0] = True
''' + timed(20, '''
out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  #@a
'''), [site("a", "flash", "boolean 2-D", "none of these (causal without the diagonal)")], note="TRAP: one off from causal")

P("trap_anticausal", '''
N = 1024
q, k, v = (torch.randn(1, 8, N, 64) for _ in range(3))
mask = torch.ones(N, N, dtype=torch.bool).triu()
''' + timed(20, '''
out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  #@a
'''), [site("a", "flash", "boolean 2-D", "none of these (upper triangle)")], note="TRAP: the mask turned over")

P("trap_causal_in_one_head_only", '''
N, H = 768, 8
q, k, v = (torch.randn(1, H, N, 64) for _ in range(3))
mask = torch.ones(1, H, N, N, dtype=torch.bool).tril()
mask[:, 5] = True                # head 5 looks both ways
''' + timed(15, '''
out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  #@a
'''), [site("a", "flash", "boolean 4-D, one for each head", "none of these (causal in all heads but one)")], note="TRAP: the first head is causal")

# ------------------------------------------------------------------ window, padding, documents, random, alibi
P("bool_window", '''
N, WINDOW = 1400, 128
i = torch.arange(N)
mask = (i[None] <= i[:, None]) & (i[:, None] - i[None] < WINDOW)
q, k, v = (torch.randn(1, 8, N, 64) for _ in range(3))
''' + timed(12, '''
out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  #@a
'''), [site("a", "flash", "boolean 2-D", "window (causal, 128)", [], maybe=["compile_flex"])],
  note="no flag says it; a compiled flex_attention with a block mask might skip nine tenths of it")

P("float_window_two_sided", '''
N, R = 1024, 64
i = torch.arange(N)
near = (i[None] - i[:, None]).abs() <= R
mask = torch.zeros(N, N).masked_fill(~near, float("-inf"))
q, k, v = (torch.randn(1, 8, N, 64) for _ in range(3))
''' + timed(15, '''
out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  #@a
'''), [site("a", "flash", "float 2-D of 0 and -inf", "window (two-sided, 64)", [], maybe=["boolean_mask", "compile_flex"])],
  mend=[("attn_mask=mask)", "attn_mask=near)")], note="the CPU kernel makes a float mask of a boolean one, so boolean_mask is likely to lose a little here")

P("bool_right_padding", '''
B, N = 4, 512
lengths = torch.tensor([512, 301, 420, 77])
keep = (torch.arange(N)[None] < lengths[:, None])[:, None, None]
q, k, v = (torch.randn(B, 8, N, 64) for _ in range(3))
''' + timed(15, '''
out = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)  #@a
'''), [site("a", "flash", "boolean 4-D broadcast (b,1,1,n)", "padding (right)")])

P("float_right_padding_full", '''
B, H, N = 2, 8, 700
lengths = torch.tensor([700, 433])
keep = (torch.arange(N)[None] < lengths[:, None])[:, None, None].expand(B, 1, N, N)
mask = torch.where(keep, 0.0, torch.finfo(torch.float32).min)
q, k, v = (torch.randn(B, H, N, 64) for _ in range(3))
''' + timed(15, '''
out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  #@a
'''), [site("a", "flash", "float 4-D broadcast to heads, of 0 and finfo.min", "padding (right)", [], maybe=["boolean_mask"])],
  mend=[("attn_mask=mask)", "attn_mask=keep)")])

P("bool_left_padding_causal", '''
B, N = 2, 768
start = torch.tensor([0, 200])
real = torch.arange(N)[None] >= start[:, None]
mask = real[:, None, None] & torch.ones(N, N, dtype=torch.bool).tril()
mask = mask | torch.eye(N, dtype=torch.bool)     # a padded row sees itself, so that no row is empty
q, k, v = (torch.randn(B, 8, N, 64) for _ in range(3))
''' + timed(15, '''
out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  #@a
'''), [site("a", "flash", "boolean 4-D broadcast (b,1,n,n)", "none of these: padding (left) and causal, but for the diagonal")])

P("bool_left_padding", '''
B, N = 3, 512
start = torch.tensor([0, 130, 301])
keep = (torch.arange(N)[None] >= start[:, None])[:, None, None]
q, k, v = (torch.randn(B, 8, N, 64) for _ in range(3))
''' + timed(15, '''
out = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)  #@a
'''), [site("a", "flash", "boolean 4-D broadcast (b,1,1,n)", "padding (left)")])

P("bool_right_padding_causal", '''
B, N = 2, 768
lengths = torch.tensor([768, 500])
real = torch.arange(N)[None] < lengths[:, None]
mask = real[:, None, None] & torch.ones(N, N, dtype=torch.bool).tril()
q, k, v = (torch.randn(B, 8, N, 64) for _ in range(3))
with torch.no_grad():
    for step in range(15):
        t0 = time.perf_counter()
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  #@a
        print(f"STEP {time.perf_counter() - t0:.6f}")
real_rows = out[0].double().pow(2).mean() + out[1, :, :500].double().pow(2).mean()
print(f"CHECK {real_rows.item():.10g}")
''', [site("a", "flash", "boolean 4-D broadcast (b,1,n,n)", "padding (right) and causal", [], maybe=["is_causal"])],
  mend=[("attn_mask=mask)", "is_causal=True)")],
  note="with right padding is_causal alone gives the same real rows, but other padded rows: the call's output differs, the program's does not. A tool that compares the call's output must not advise it")

P("bool_documents", '''
N = 1280
doc = torch.repeat_interleave(torch.arange(5), torch.tensor([300, 180, 420, 80, 300]))
mask = (doc[:, None] == doc[None]) & torch.ones(N, N, dtype=torch.bool).tril()
q, k, v = (torch.randn(1, 8, N, 64) for _ in range(3))
''' + timed(15, '''
out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  #@a
'''), [site("a", "flash", "boolean 2-D", "documents (and causal)", [], maybe=["compile_flex"])])

P("float_documents_both_ways", '''
N = 1024
doc = torch.arange(N) // 256
mask = torch.zeros(1, 1, N, N).masked_fill(doc[:, None] != doc[None], torch.finfo(torch.float32).min)
q, k, v = (torch.randn(1, 8, N, 64) for _ in range(3))
''' + timed(15, '''
out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  #@a
'''), [site("a", "flash", "float 4-D broadcast of 0 and finfo.min", "documents (both ways)", [], maybe=["boolean_mask", "compile_flex"])],
  note="equal documents: folding them into the batch would be four times less work, which no mend in the list says")

P("bool_random", '''
N = 1024
mask = torch.rand(N, N) < 0.5
mask.fill_diagonal_(True)
q, k, v = (torch.randn(1, 8, N, 64) for _ in range(3))
''' + timed(20, '''
out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  #@a
'''), [site("a", "flash", "boolean 2-D", "none of these (random)")])

P("bool_random_heads_expanded", '''
B, H, N = 2, 8, 640
mask = torch.rand(B, 1, N, N) < 0.7
mask |= torch.eye(N, dtype=torch.bool)
wide = mask.expand(B, H, N, N)
q, k, v = (torch.randn(B, H, N, 64) for _ in range(3))
''' + timed(15, '''
out = F.scaled_dot_product_attention(q, k, v, attn_mask=wide)  #@a
'''), [site("a", "flash", "boolean 4-D expanded to heads", "none of these (random)", [])],
  mend=[("attn_mask=wide)", "attn_mask=mask)")], note="no key in the list says it")

P("float_random_heads", '''
H, N = 8, 768
bias = torch.randn(1, H, N, N)
q, k, v = (torch.randn(1, H, N, 64) for _ in range(3))
''' + timed(20, '''
out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)  #@a
'''), [site("a", "flash", "float 4-D, one for each head", "none of these (random)")])

P("float_alibi", '''
H, N = 8, 900
slopes = 2.0 ** -torch.arange(1, H + 1).float()
i = torch.arange(N).float()
bias = (-(i[:, None] - i[None]).abs() * slopes[:, None, None])[None]
q, k, v = (torch.randn(1, H, N, 64) for _ in range(3))
''' + timed(15, '''
out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)  #@a
'''), [site("a", "flash", "float 4-D, one for each head", "alibi (two-sided)", [], maybe=["compile_flex"])])

P("float_alibi_causal_module", '''
class AlibiAttention(nn.Module):
    def __init__(self, width=512, heads=8, longest=1024):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)
        i = torch.arange(longest)
        bias = (i[None] - i[:, None]).clamp(max=0)[None] * slopes[:, None, None]
        bias = bias.masked_fill(torch.ones(longest, longest, dtype=torch.bool).triu(1), float("-inf"))
        self.register_buffer("bias", bias[None])

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias[..., :n, :n])  #@a
        return self.out(y.transpose(1, 2).flatten(-2))

m = AlibiAttention().eval()
x = torch.randn(1, 960, 512)
''' + timed(15, '''
out = m(x)
''', "torch.inference_mode()"), [site("a", "flash", "float 4-D, one for each head", "alibi (and causal)", [], maybe=["compile_flex"])])

P("alibi_3d_no_batch", '''
H, N = 8, 800
slopes = 2.0 ** -torch.arange(1, H + 1).float()
i = torch.arange(N).float()
bias = -(i[:, None] - i[None]).abs() * slopes[:, None, None]      # (heads, n, n)
q, k, v = (torch.randn(1, H, N, 64) for _ in range(3))
''' + timed(12, '''
out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)  #@a
'''), [site("a", "math", "float 3-D (h,n,n)", "alibi (two-sided)", ["mask_axes"], [D3])],
  mend=[("attn_mask=bias)", "attn_mask=bias[None])")], note="no key in the list says it, but flash can run with the same bias in four dimensions")

P("t5_bias_train", '''
class RelativeBias(nn.Module):
    def __init__(self, buckets, heads):
        super().__init__()
        self.table = nn.Embedding(buckets, heads)
        self.buckets = buckets

    def forward(self, n):
        i = torch.arange(n)
        rel = (i[None] - i[:, None]).clamp(-self.buckets // 2, self.buckets // 2 - 1) + self.buckets // 2
        return self.table(rel).permute(2, 0, 1)[None]

class Block(nn.Module):
    def __init__(self, width=384, heads=6):
        super().__init__()
        self.heads = heads
        self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.rel = RelativeBias(64, heads)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.rel(n), scale=1.0)  #@a
        return x + self.o(y.transpose(1, 2).flatten(2))

m = Block()
opt = torch.optim.SGD(m.parameters(), lr=1e-2)
x = torch.randn(2, 384, 384)
for step in range(10):
    t0 = time.perf_counter()
    out = m(x)
    loss = out.pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"STEP {time.perf_counter() - t0:.6f}")
''' + END, [site("a", "math", "float 4-D, one for each head, wants gradient", "none of these (learned)", [], ["attn_mask requires a gradient (torch says no word of it on a CPU)"])],
  note="the bias learns, so nothing to gain; torch gives no reason when asked")

P("learned_bias_eval_no_grad", '''
class Attn(nn.Module):
    def __init__(self, n=768, heads=8):
        super().__init__()
        self.bias = nn.Parameter(0.1 * torch.randn(1, heads, n, n))

    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias)  #@a

m = Attn().eval()
q, k, v = (torch.randn(1, 8, 768, 64) for _ in range(3))
''' + timed(12, '''
out = m(q, k, v)
'''), [site("a", "math", "float 4-D, one for each head, an nn.Parameter", "none of these (learned)", ["detach_mask"], ["attn_mask.requires_grad is True: torch looks at the flag even under no_grad (and says no word of it)"])],
  mend=[("attn_mask=self.bias)", "attn_mask=self.bias.detach())")], note="SURPRISE: under torch.no_grad() a Parameter given as the mask still keeps flash away")

# ------------------------------------------------------------------ masks over time
P("mask_alternates", '''
N = 900
q, k, v = (torch.randn(1, 8, N, 64) for _ in range(3))
causal = torch.ones(N, N, dtype=torch.bool).tril()
everything = torch.ones(N, N, dtype=torch.bool)
''' + timed(20, '''
out = F.scaled_dot_product_attention(q, k, v, attn_mask=causal if step % 2 else everything)  #@a
q = q + 0.1 * out
'''), [site("a", "flash", "boolean 2-D", "changes: hides nothing, then causal", [])],
  note="TRAP: neither drop_mask nor is_causal holds for all calls of the site")

P("mask_changes_late", '''
N = 768
q, k, v = (torch.randn(1, 8, N, 64) for _ in range(3))
mask = torch.ones(N, N, dtype=torch.bool)
''' + timed(24, '''
if step == 23:
    mask[:, 100:] = False          # in place, at the very last call
out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  #@a
q = q + 0.1 * out
'''), [site("a", "flash", "boolean 2-D", "changes: hides nothing 23 times, then padding (right), written in place in the same tensor", [])],
  note="TRAP: the same tensor object changes its contents at the last call")

P("mask_anew_each_step", '''
def attend(x, w):
    b, n, _ = x.shape
    q, k, v = (x @ w).view(b, n, 3, 8, 64).permute(2, 0, 3, 1, 4)
    mask = torch.triu(torch.full((n, n), float("-inf")), diagonal=1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)  #@a

w = torch.randn(512, 1536) / 512 ** 0.5
x = torch.randn(1, 1024, 512)
''' + timed(15, '''
out = attend(x, w)
''', "torch.inference_mode()"), [site("a", "flash", "float 2-D of 0 and -inf, made anew at every call", "causal", ["is_causal"])],
  mend=[('    mask = torch.triu(torch.full((n, n), float("-inf")), diagonal=1)\n', ""), ("attn_mask=mask)", "is_causal=True)")])

P("lengths_change_causal", '''
class Attn(nn.Module):
    def __init__(self, width=512, heads=8, longest=1300):
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("tri", torch.ones(longest, longest, dtype=torch.bool).tril()[None, None])

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in self.c_attn(x).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.tri[:, :, :n, :n])  #@a
        return self.c_proj(y.transpose(1, 2).reshape(b, n, c))

m = Attn().eval()
total = 0.0
with torch.no_grad():
    for n in (300, 1250, 640, 1024, 777, 1300, 512, 900, 450, 1100, 820, 1000):
        x = torch.randn(1, n, 512)
        t0 = time.perf_counter()
        out = m(x)
        print(f"STEP {time.perf_counter() - t0:.6f}")
        total += out.double().pow(2).mean().item()
print(f"CHECK {total:.10g}")
''', [site("a", "flash", "boolean 4-D broadcast (a slice of a buffer)", "causal", ["is_causal"])],
  mend=[("attn_mask=self.tri[:, :, :n, :n])", "is_causal=True)")])

P("lengths_change_padding", '''
total = 0.0
with torch.no_grad():
    for n in (300, 700, 640, 512, 777, 256, 500, 600, 450, 720, 333, 650):
        q, k, v = (torch.randn(3, 8, n, 64) for _ in range(3))
        lengths = torch.tensor([n, n // 2, n - 17])
        keep = (torch.arange(n)[None] < lengths[:, None])[:, None, None]
        t0 = time.perf_counter()
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)  #@a
        print(f"STEP {time.perf_counter() - t0:.6f}")
        total += out.double().pow(2).mean().item()
print(f"CHECK {total:.10g}")
''', [site("a", "flash", "boolean 4-D broadcast (b,1,1,n)", "padding (right)")])

P("two_windows_one_site", '''
N = 1024
i = torch.arange(N)
far = i[:, None] - i[None]
full = far >= 0
local = full & (far < 96)

def attend(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  #@a

q, k, v = (torch.randn(1, 4, N, 64) for _ in range(3))
''' + timed(12, '''
out = attend(q, k, v, local)
out = attend(out, k, v, full)
'''), [site("a", "flash", "boolean 2-D", "changes: window, then causal", [])], note="TRAP: layers by turns local and full (Gemma's way) through one line; at most the full half could be a flag")

P("one_helper_two_callers", '''
def attention(q, k, v, keep):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None, None])  #@a

q, k, v = (torch.randn(2, 8, 640, 64) for _ in range(3))
padded = torch.arange(640)[None] < torch.tensor([640, 300])[:, None]
whole = torch.ones(2, 640, dtype=torch.bool)
''' + timed(10, '''
a = attention(q, k, v, whole)
out = attention(a, k, v, padded)
'''), [site("a", "flash", "boolean 4-D broadcast (b,1,1,n)", "changes: hides nothing, then padding (right)", [])], note="TRAP: one caller pads, the other does not")

P("tiny_causal", '''
q, k, v = (torch.randn(1, 4, 16, 64) for _ in range(3))
mask = torch.ones(16, 16, dtype=torch.bool).tril()
w1, w2 = torch.randn(2048, 2048) / 45, torch.randn(2048, 2048) / 45
x = torch.randn(512, 2048)
with torch.no_grad():
    for step in range(10):
        t0 = time.perf_counter()
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  #@a
        y = (x @ w1).relu() @ w2
        print(f"STEP {time.perf_counter() - t0:.6f}")
print(f"CHECK {out.double().pow(2).mean().item() + y.double().pow(2).mean().item():.10g}")
''', [site("a", "flash", "boolean 2-D", "causal", [], maybe=["is_causal"])],
  mend=[("attn_mask=mask)", "is_causal=True)")], note="16 tokens beside a great matrix product: the whole program gains nothing")
