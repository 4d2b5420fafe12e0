"""Each way of calling attention."""
# fmt: off

from proofs.programs import END, HEAD, P, site, timed

OFF = "Flash attention has been runtime disabled"
H2 = HEAD.replace("import torch.nn.functional as F\n", "import torch.nn.functional as F\nfrom torch.nn.attention import SDPBackend, sdpa_kernel\n")

# ------------------------------------------------------------------ backends
P("kernel_math_left_in", '''
q, k, v = (torch.randn(1, 8, 1024, 64) for _ in range(3))
''' + timed(12, '''
with sdpa_kernel([SDPBackend.MATH]):
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)  #@a
'''), [site("a", "math", "is_causal flag", "causal", ["backend"], [OFF])],
  mend=[("with sdpa_kernel([SDPBackend.MATH]):", "with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):")], head=H2)

P("kernel_math_whole_program", '''
class Attn(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.o = nn.Linear(512, 1536), nn.Linear(512, 512)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, 8, 64).permute(2, 0, 3, 1, 4)
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))  #@a

torch.backends.cuda.enable_flash_sdp(False)      # "for determinism"
m = Attn().eval()
x = torch.randn(1, 900, 512)
''' + timed(12, "out = m(x)"), [site("a", "math", "no mask", "hides nothing", ["backend"], [OFF])],
  mend=[('torch.backends.cuda.enable_flash_sdp(False)      # "for determinism"\n', "")],
  note="the flag is named for CUDA, and turns the CPU's flash kernel off as well")

P("kernel_efficient_or_math", '''
q, k, v = (torch.randn(2, 8, 640, 64) for _ in range(3))
''' + timed(12, '''
out = F.scaled_dot_product_attention(q, k, v)  #@a
''', "torch.no_grad(), sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])"), [site("a", "math", "no mask", "hides nothing", ["backend"], [OFF])],
  mend=[("[SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]", "[SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]")], head=H2,
  note="meant for a GPU; on a CPU only math is left")

P("kernel_flash", '''
q, k, v = (torch.randn(1, 8, 900, 64) for _ in range(3))
''' + timed(15, '''
out = F.scaled_dot_product_attention(q, k, v, is_causal=True)  #@a
''', "torch.no_grad(), sdpa_kernel(SDPBackend.FLASH_ATTENTION)"), [site("a", "flash", "is_causal flag", "causal")], head=H2)

P("kernel_list_math_flash", '''
q, k, v = (torch.randn(1, 8, 900, 64) for _ in range(3))
''' + timed(15, '''
out = F.scaled_dot_product_attention(q, k, v)  #@a
''', "torch.no_grad(), sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])"), [site("a", "flash", "no mask", "hides nothing")], head=H2, note="MATH is named first, and flash runs all the same: the list has no order")

P("kernel_priority_math_first", '''
q, k, v = (torch.randn(1, 8, 900, 64) for _ in range(3))
''' + timed(12, '''
out = F.scaled_dot_product_attention(q, k, v)  #@a
''', "torch.no_grad(), sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True)"), [site("a", "flash", "no mask", "hides nothing", [])], head=H2, note="set_priority=True with MATH first: the CPU does not heed the order, flash runs")

P("aten_direct_plain", '''
q, k, v = (torch.randn(1, 8, 900, 64) for _ in range(3))
''' + timed(15, "out = torch.ops.aten.scaled_dot_product_attention(q, k, v, None, 0.0, True)  #@a"),
  [site("a", "flash", "is_causal flag", "causal")])

P("aten_direct_causal_mask", '''
N = 1024
q, k, v = (torch.randn(1, 8, N, 64) for _ in range(3))
mask = torch.ones(N, N, dtype=torch.bool).tril()
''' + timed(15, "out = torch.ops.aten.scaled_dot_product_attention(q, k, v, mask)  #@a"),
  [site("a", "flash", "boolean 2-D", "causal", ["is_causal"])],
  mend=[("(q, k, v, mask)", "(q, k, v, is_causal=True)")])

P("imported_by_name", '''
from torch.nn.functional import scaled_dot_product_attention as sdpa
N = 1024
q, k, v = (torch.randn(1, 8, N, 64) for _ in range(3))
mask = torch.ones(N, N, dtype=torch.bool).tril()
''' + timed(15, "out = sdpa(query=q, key=k, value=v, attn_mask=mask)  #@a"),
  [site("a", "flash", "boolean 2-D", "causal", ["is_causal"])],
  mend=[("attn_mask=mask)", "is_causal=True)")], note="imported under another name, arguments by keyword")

# ------------------------------------------------------------------ MultiheadAttention
M = "m = nn.MultiheadAttention(512, 8, batch_first=True){e}\nx = torch.randn(2, 1024, 512)"
TRAIN = '''
opt = torch.optim.SGD(m.parameters(), lr=1e-3)
for step in range(10):
    t0 = time.perf_counter()
    {call}
    loss = {loss}
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"STEP {{time.perf_counter() - t0:.6f}}")
''' + END.replace('{', '{{').replace('}', '}}')
SMALLER = "need_weights=True makes the whole matrix of weights, so scaled_dot_product_attention is never asked"

P("mha_weights_used", M.format(e="") + TRAIN.format(call="out, w = m(x, x, x)  #@a", loss="out.pow(2).mean() - 1e-3 * (w + 1e-9).log().mean()"),
  [site("a", "by hand (bmm, softmax, bmm inside nn.MultiheadAttention)", "no mask", "hides nothing", [], [SMALLER])], note="the weights are in the loss: TRAP")

P("mha_weights_thrown_away", M.format(e="") + TRAIN.format(call="out, _ = m(x, x, x)  #@a", loss="out.pow(2).mean()"),
  [site("a", "by hand (bmm, softmax, bmm inside nn.MultiheadAttention)", "no mask", "hides nothing", ["need_weights"], [SMALLER])],
  mend=[("m(x, x, x)", "m(x, x, x, need_weights=False)")])

P("mha_index_zero", M.format(e="") + TRAIN.format(call="out = x + m(x, x, x)[0]  #@a", loss="out.pow(2).mean()"),
  [site("a", "by hand (bmm, softmax, bmm inside nn.MultiheadAttention)", "no mask", "hides nothing", ["need_weights"], [SMALLER])],
  mend=[("m(x, x, x)[0]", "m(x, x, x, need_weights=False)[0]")], note="[0] throws the weights away")

P("mha_need_weights_false", M.format(e="") + TRAIN.format(call="out, _ = m(x, x, x, need_weights=False)  #@a", loss="out.pow(2).mean()"),
  [site("a", "flash", "no mask", "hides nothing")])

P("mha_causal_mask_no_flag", M.format(e="") + "\nmask = torch.ones(1024, 1024, dtype=torch.bool).triu(1)" + TRAIN.format(call="out, _ = m(x, x, x, attn_mask=mask, need_weights=False)  #@a", loss="out.pow(2).mean()"),
  [site("a", "flash", "boolean 2-D (MultiheadAttention makes it float, 4-D)", "causal", ["is_causal"])],
  mend=[("attn_mask=mask, ", "attn_mask=mask, is_causal=True, ")], note="in MultiheadAttention True means hidden; is_causal=True still needs the mask beside it")

P("mha_causal_flag", M.format(e="") + "\nmask = torch.ones(1024, 1024, dtype=torch.bool).triu(1)" + TRAIN.format(call="out, _ = m(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)  #@a", loss="out.pow(2).mean()"),
  [site("a", "flash", "is_causal flag", "causal")])

P("mha_padding_train", M.format(e="") + "\npad = torch.arange(1024)[None] >= torch.tensor([1024, 700])[:, None]" + TRAIN.format(call="out, _ = m(x, x, x, key_padding_mask=pad, need_weights=False)  #@a", loss="out.pow(2).mean()"),
  [site("a", "flash", "key_padding_mask", "padding (right)")])

P("mha_causal_and_padding_weights_thrown", M.format(e="") + "\npad = torch.arange(1024)[None] >= torch.tensor([1024, 700])[:, None]\nmask = torch.ones(1024, 1024, dtype=torch.bool).triu(1)" + TRAIN.format(call="out, _ = m(x, x, x, key_padding_mask=pad, attn_mask=mask)  #@a", loss="out.pow(2).mean()"),
  [site("a", "by hand (bmm, softmax, bmm inside nn.MultiheadAttention)", "key_padding_mask and boolean 2-D", "padding (right) and causal", [], [SMALLER], maybe=["need_weights"])],
  mend=[("attn_mask=mask)", "attn_mask=mask, need_weights=False)")])

P("mha_dropout_train", M.format(e="").replace("batch_first", "dropout=0.1, batch_first") + TRAIN.format(call="out, _ = m(x, x, x, need_weights=False)  #@a", loss="out.pow(2).mean()"),
  [site("a", "math", "no mask", "hides nothing", [], ["Both fused kernels do not support non-zero dropout"])], note="dropout in training keeps flash away on a CPU; it is meant")

P("mha_eval_fastpath_weights_thrown", M.format(e=".eval()") + '''
''' + timed(12, '''
out, _ = m(x, x, x)  #@a
'''), [site("a", "by hand (the fast path, aten::_native_multi_head_attention: bmm, softmax, bmm)", "no mask", "hides nothing", [], ["the fast path never asks scaled_dot_product_attention on a CPU"], maybe=["need_weights"])],
  mend=[("import torch.nn as nn\n", "import torch.nn as nn\ntorch.backends.mha.set_fastpath_enabled(False)\n"), ("m(x, x, x)", "m(x, x, x, need_weights=False)")],
  note="need_weights=False alone stays in the fast path, which makes the matrix of weights either way")

P("mha_eval_fastpath_no_weights", M.format(e=".eval()") + '''
''' + timed(12, '''
out, _ = m(x, x, x, need_weights=False)  #@a
''', "torch.inference_mode()"), [site("a", "by hand (the fast path, aten::_native_multi_head_attention: bmm, softmax, bmm)", "no mask", "hides nothing", [], ["the fast path never asks scaled_dot_product_attention on a CPU"])],
  mend=[("import torch.nn as nn\n", "import torch.nn as nn\ntorch.backends.mha.set_fastpath_enabled(False)\n")], note="SURPRISE: the fast path is not flash on a CPU; by rough CPU time no slower at 640 tokens, 1.3 times slower at 1,024")

P("mha_eval_cross_weights_thrown", M.format(e=".eval()") + '''
memory = torch.randn(2, 900, 512)
''' + timed(12, '''
out, _ = m(x, memory, memory)  #@a
'''), [site("a", "by hand (bmm, softmax, bmm inside nn.MultiheadAttention)", "no mask", "hides nothing", ["need_weights"], [SMALLER])],
  mend=[("m(x, memory, memory)", "m(x, memory, memory, need_weights=False)")], note="cross-attention takes no fast path")

P("mha_eval_grad_on", M.format(e=".eval()") + '''
for step in range(12):
    t0 = time.perf_counter()
    out, _ = m(x, x, x, need_weights=False)  #@a
    out = out.detach()
    print(f"STEP {time.perf_counter() - t0:.6f}")
''' + END, [site("a", "flash", "no mask", "hides nothing", [])],
  note="TRAP: nobody asks for gradients, but torch.no_grad() would send it down the fast path (bmm and softmax), which is no faster at 640 tokens and was 1.36 times slower at 1,024 by rough CPU time")

# ------------------------------------------------------------------ TransformerEncoder
ENC = '''
layer = nn.TransformerEncoderLayer(384, 6, 768, dropout={p}, batch_first=True)
m = nn.TransformerEncoder(layer, 2, enable_nested_tensor={nest}){e}
x = torch.randn(2, 512, 384)
'''
P("encoder_train_plain", ENC.format(p="0.0", nest=False, e="") + TRAIN.format(call="out = m(x)  #@a", loss="out.pow(2).mean()").replace("range(10)", "range(8)").replace("x)  #@a", "x)  #@a"),
  [site("a", "flash", "no mask", "hides nothing")])

P("encoder_train_causal_mask", ENC.format(p="0.0", nest=False, e="") + "mask = nn.Transformer.generate_square_subsequent_mask(512)" + TRAIN.format(call="out = m(x, mask=mask)  #@a", loss="out.pow(2).mean()").replace("range(10)", "range(8)"),
  [site("a", "flash", "float 2-D of 0 and -inf, which TransformerEncoder itself finds causal and turns into the flag", "causal")],
  note="nothing to gain: the encoder sees for itself that the mask is causal")

P("encoder_train_padding", ENC.format(p="0.0", nest=False, e="") + "pad = torch.arange(512)[None] >= torch.tensor([512, 300])[:, None]" + TRAIN.format(call="out = m(x, src_key_padding_mask=pad)  #@a", loss="out.pow(2).mean()").replace("range(10)", "range(8)"),
  [site("a", "flash", "key_padding_mask", "padding (right)")])

P("encoder_train_dropout", ENC.format(p="0.1", nest=False, e="") + TRAIN.format(call="out = m(x)  #@a", loss="out.pow(2).mean()").replace("range(10)", "range(8)"),
  [site("a", "math", "no mask", "hides nothing", [], ["Both fused kernels do not support non-zero dropout"])], note="torch's default dropout of 0.1")

P("encoder_eval_fastpath", ENC.format(p="0.1", nest=False, e=".eval()") + '''
''' + timed(10, '''
out = m(x)  #@a
'''), [site("a", "by hand (the fast path, aten::_transformer_encoder_layer_fwd: bmm, softmax, bmm)", "no mask", "hides nothing", [], ["the fast path never asks scaled_dot_product_attention on a CPU"])],
  mend=[("import torch.nn as nn\n", "import torch.nn as nn\ntorch.backends.mha.set_fastpath_enabled(False)\n")])

P("encoder_eval_padding_nested", ENC.format(p="0.1", nest=True, e=".eval()") + '''
pad = torch.arange(512)[None] >= torch.tensor([512, 200])[:, None]
''' + timed(10, '''
out = m(x, src_key_padding_mask=pad)  #@a
'''), [site("a", "by hand (the fast path over nested tensors)", "key_padding_mask", "padding (right)", [])],
  note="nested tensors leave the padding out of the work, at the price of the fast path's bmm and softmax")

P("decoder_train_weights", '''
m = nn.TransformerDecoderLayer(384, 6, 768, dropout=0.0, batch_first=True)
x, memory = torch.randn(2, 400, 384), torch.randn(2, 500, 384)
mask = nn.Transformer.generate_square_subsequent_mask(400)
''' + TRAIN.format(call="out = m(x, memory, tgt_mask=mask)  #@a", loss="out.pow(2).mean()"),
  [site("a", "flash", "float 2-D of 0 and -inf for the self-attention, no mask for the other", "causal / hides nothing", [], maybe=["is_causal"])],
  mend=[("tgt_mask=mask)", "tgt_mask=mask, tgt_is_causal=True)")], note="the LAYER does not look at its mask, as the whole Decoder does; one line, two attention calls")

# ------------------------------------------------------------------ flex
FLEX = HEAD.replace("import torch.nn.functional as F\n", "import torch.nn.functional as F\nfrom torch.nn.attention.flex_attention import create_block_mask, flex_attention\n")
P("flex_eager_causal", '''
def causal(b, h, i, j):
    return i >= j

N = 768
bm = create_block_mask(causal, None, None, N, N, device="cpu")
q, k, v = (torch.randn(1, 8, N, 64) for _ in range(3))
with torch.no_grad():
    flex_attention(q, k, v, block_mask=bm)     # once, to be warm
    for step in range(10):
        t0 = time.perf_counter()
        out = flex_attention(q, k, v, block_mask=bm)  #@a
        print(f"STEP {time.perf_counter() - t0:.6f}")
''' + END, [site("a", "flex uncompiled", "block mask", "causal", ["compile_flex"])],
  mend=[("N = 768\n", "N = 768\nflex_attention = torch.compile(flex_attention)\n")], head=FLEX,
  note="compiled, or F.sdpa with is_causal=True: either is right. The warm-up call is a site of its own on another line")

P("flex_eager_alibi", '''
slopes = 2.0 ** -torch.arange(1, 9).float()

def alibi(score, b, h, i, j):
    return score - slopes[h] * (i - j).abs()

q, k, v = (torch.randn(1, 8, 640, 64) for _ in range(3))
''' + timed(10, '''
out = flex_attention(q, k, v, score_mod=alibi)  #@a
'''), [site("a", "flex uncompiled", "score_mod", "alibi", ["compile_flex"])],
  mend=[("\nq, k, v = (", "\nflex_attention = torch.compile(flex_attention)\nq, k, v = (")], head=FLEX,
  note="the first step of the mended program pays for compiling; compare medians")

P("flex_eager_nothing", '''
q, k, v = (torch.randn(1, 8, 768, 64) for _ in range(3))
''' + timed(10, '''
out = flex_attention(q, k, v)  #@a
'''), [site("a", "flex uncompiled", "no mask", "hides nothing", ["compile_flex"])],
  mend=[("out = flex_attention(q, k, v)", "out = F.scaled_dot_product_attention(q, k, v)")], head=FLEX)

P("flex_compiled_window", '''
def window(b, h, i, j):
    return (i >= j) & (i - j < 128)

N = 1280
flex = torch.compile(flex_attention)
bm = create_block_mask(window, None, None, N, N, device="cpu")
q, k, v = (torch.randn(1, 8, N, 64) for _ in range(3))
''' + timed(15, '''
out = flex(q, k, v, block_mask=bm)  #@a
'''), [site("a", "flex compiled", "block mask", "window")], head=FLEX)

# ------------------------------------------------------------------ written out by hand
HAND = "attention written out: the whole matrix of weights is made"
P("hand_at_script", '''
q, k, v = (torch.randn(1, 8, 1024, 64) for _ in range(3))
''' + timed(12, '''
scores = q @ k.transpose(-2, -1) / 64 ** 0.5  #@a
out = scores.softmax(-1) @ v
''', "torch.inference_mode()"), [site("a", "by hand", "no mask", "hides nothing", ["sdpa"], [HAND])],
  mend=[("        scores = q @ k.transpose(-2, -1) / 64 ** 0.5  #@a\n        out = scores.softmax(-1) @ v\n", "        out = F.scaled_dot_product_attention(q, k, v)  #@a\n")])

P("hand_matmul_module_causal", '''
class CausalSelfAttention(nn.Module):
    """As minGPT writes it."""
    def __init__(self, width=512, heads=8, longest=1024):
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("bias", torch.tril(torch.ones(longest, longest)).view(1, 1, longest, longest))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        k = k.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        q = q.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        v = v.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        att = torch.matmul(q, k.transpose(-2, -1)) * (1.0 / k.size(-1) ** 0.5)  #@a
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        y = torch.matmul(att, v)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))

m = CausalSelfAttention().eval()
x = torch.randn(1, 1000, 512)
''' + timed(10, "out = m(x)"), [site("a", "by hand", "boolean 4-D broadcast (masked_fill)", "causal", ["sdpa", "is_causal"], [HAND])],
  mend=[('''        att = torch.matmul(q, k.transpose(-2, -1)) * (1.0 / k.size(-1) ** 0.5)  #@a
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        y = torch.matmul(att, v)
''', "        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)  #@a\n")])

P("hand_einsum_module", '''
class Attention(nn.Module):
    def __init__(self, dim=512, heads=8):
        super().__init__()
        self.h = heads
        self.to_qkv, self.to_out = nn.Linear(dim, dim * 3, bias=False), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.h, -1)) for t in self.to_qkv(x).chunk(3, dim=-1))
        sim = torch.einsum("b i h d, b j h d -> b h i j", q, k) * 64 ** -0.5  #@a
        attn = sim.softmax(dim=-1)
        out = torch.einsum("b h i j, b j h d -> b i h d", attn, v)
        return self.to_out(out.flatten(2))

m = Attention().eval()
x = torch.randn(2, 640, 512)
''' + timed(12, "out = m(x)"), [site("a", "by hand", "no mask", "hides nothing", ["sdpa"], [HAND])],
  mend=[('''        sim = torch.einsum("b i h d, b j h d -> b h i j", q, k) * 64 ** -0.5  #@a
        attn = sim.softmax(dim=-1)
        out = torch.einsum("b h i j, b j h d -> b i h d", attn, v)
''', '''        out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2)  #@a
''')], note="heads are the third axis, not the second")

P("hand_bmm_script", '''
B, H, N, D = 1, 8, 900, 64
q, k, v = (torch.randn(B * H, N, D) for _ in range(3))
scale = D ** -0.5
''' + timed(12, '''
w = torch.bmm(q * scale, k.transpose(1, 2))  #@a
w = torch.softmax(w, dim=-1)
out = torch.bmm(w, v)
'''), [site("a", "by hand", "no mask", "hides nothing", ["sdpa"], [HAND])],
  mend=[('''        w = torch.bmm(q * scale, k.transpose(1, 2))  #@a
        w = torch.softmax(w, dim=-1)
        out = torch.bmm(w, v)
''', "        out = F.scaled_dot_product_attention(q[None], k[None], v[None])[0]  #@a\n")],
  note="three dimensions: given to F.sdpa as they are they would run in math, with no gain")

P("hand_baddbmm_alibi", '''
class BloomAttention(nn.Module):
    def __init__(self, width=512, heads=8):
        super().__init__()
        self.heads, self.hd = heads, width // heads
        self.qkv, self.dense = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, alibi, mask):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, self.heads, 3, self.hd).unbind(3)
        q = q.transpose(1, 2).reshape(b * self.heads, n, self.hd)
        k = k.permute(0, 2, 3, 1).reshape(b * self.heads, self.hd, n)
        v = v.transpose(1, 2).reshape(b * self.heads, n, self.hd)
        scores = alibi.baddbmm(batch1=q, batch2=k, beta=1.0, alpha=self.hd ** -0.5)  #@a
        scores = scores.view(b, self.heads, n, n) + mask
        probs = F.softmax(scores, dim=-1, dtype=torch.float32)
        y = torch.bmm(probs.view(b * self.heads, n, n), v)
        return self.dense(y.view(b, self.heads, n, self.hd).transpose(1, 2).reshape(b, n, c))

N = 768
slopes = 2.0 ** -torch.arange(1, 9).float()
alibi = (slopes[:, None] * torch.arange(N)[None].float())[:, None]        # (heads, 1, n)
mask = torch.full((N, N), torch.finfo(torch.float32).min).triu(1)[None, None]
m = BloomAttention().eval()
x = torch.randn(1, N, 512)
''' + timed(12, "out = m(x, alibi, mask)"), [site("a", "by hand", "float added (baddbmm) and a causal float added", "alibi (and causal)", ["sdpa"], [HAND])],
  mend=[("        k = k.permute(0, 2, 3, 1).reshape(b * self.heads, self.hd, n)\n", "        k = k.transpose(1, 2).reshape(b * self.heads, n, self.hd)\n"), ('''        scores = alibi.baddbmm(batch1=q, batch2=k, beta=1.0, alpha=self.hd ** -0.5)  #@a
        scores = scores.view(b, self.heads, n, n) + mask
        probs = F.softmax(scores, dim=-1, dtype=torch.float32)
        y = torch.bmm(probs.view(b * self.heads, n, n), v)
''', '''        four = lambda t: t.view(b, self.heads, n, self.hd)
        y = F.scaled_dot_product_attention(four(q), four(k), four(v), attn_mask=(alibi + mask).to(q.dtype))  #@a
''')])

P("hand_weights_returned", '''
class Attn(nn.Module):
    def forward(self, q, k, v):
        w = torch.softmax(q @ k.mT / 8.0, dim=-1)  #@a
        return w @ v, w

m = Attn()
q, k, v = (torch.randn(1, 8, 700, 64) for _ in range(3))
with torch.no_grad():
    for step in range(12):
        t0 = time.perf_counter()
        out, w = m(q, k, v)
        top = w.mean(1).topk(5, -1).values.mean()
        print(f"STEP {time.perf_counter() - t0:.6f}")
print(f"CHECK {out.double().pow(2).mean().item() + top.item():.10g}")
''', [site("a", "by hand", "no mask", "hides nothing", [], [HAND])], note="TRAP: the weights are used")

P("hand_softcap", '''
q, k, v = (torch.randn(1, 8, 768, 64) for _ in range(3))
mask = torch.ones(768, 768, dtype=torch.bool).triu(1)
''' + timed(12, '''
s = torch.matmul(q, k.transpose(2, 3)) * 0.125  #@a
s = 30.0 * torch.tanh(s / 30.0)
s = s.masked_fill(mask, -1e9)
out = torch.matmul(s.softmax(-1), v)
'''), [site("a", "by hand", "boolean 2-D (masked_fill)", "causal", [], [HAND], maybe=["compile_flex"])], note="TRAP: the scores are capped by tanh, which F.sdpa cannot do")

P("hand_sigmoid_not_softmax", '''
q, k, v = (torch.randn(1, 8, 640, 64) for _ in range(3))
''' + timed(12, '''
out = torch.sigmoid(q @ k.transpose(-1, -2) * 0.125 - 6.0) @ v  #@a
'''), [site("a", "no attention", "no mask", "hides nothing", [])], note="TRAP: not softmax attention; a tool may well not see it at all")

P("hand_softmax_wrong_axis", '''
q, k, v = (torch.randn(1, 8, 640, 64) for _ in range(3))
''' + timed(12, '''
out = torch.softmax(q @ k.transpose(-1, -2) * 0.125, dim=-2) @ v  #@a
'''), [site("a", "by hand (softmax over the queries)", "no mask", "hides nothing", [])], note="TRAP: softmax over the other axis (slot attention's way); F.sdpa gives another answer")

P("not_attention_gate", '''
class Mixture(nn.Module):
    """A gate over experts: a softmax between two products, and no attention."""
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(256, 8)
        self.experts = nn.Parameter(torch.randn(8, 256, 256) / 16)

    def forward(self, x):
        w = torch.softmax(self.gate(x), dim=-1)
        return torch.einsum("ne,nec->nc", w, torch.einsum("nd,edc->nec", x, self.experts))

m = Mixture().eval()
x = torch.randn(2048, 256)
''' + timed(10, "out = m(x)"), [], note="no site at all")

P("not_attention_linear", '''
q, k, v = (torch.randn(1, 8, 1024, 64) for _ in range(3))
''' + timed(20, '''
out = q.softmax(-1) @ (k.softmax(-2).transpose(-2, -1) @ v)
'''), [], note="linear attention: softmax before the products; no site, or at most one with nothing to say")

P("hand_train_module", '''
class Attn(nn.Module):
    def __init__(self, width=384, heads=6):
        super().__init__()
        self.heads, self.qkv, self.o = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        attn = (q @ k.transpose(-2, -1)) * 8 ** -1  #@a
        attn = attn.softmax(dim=-1)
        return self.o((attn @ v).transpose(1, 2).reshape(b, n, c))

m = nn.Sequential(Attn(), Attn())
x = torch.randn(1, 1024, 384)
''' + TRAIN.format(call="out = m(x)", loss="out.pow(2).mean()"), [site("a", "by hand", "no mask", "hides nothing", ["sdpa"], [HAND])],
  mend=[('''        attn = (q @ k.transpose(-2, -1)) * 8 ** -1  #@a
        attn = attn.softmax(dim=-1)
        return self.o((attn @ v).''', '''        y = F.scaled_dot_product_attention(q, k, v)  #@a
        return self.o(y.''')], note="as timm's old ViT writes it, trained")

P("hand_dropout_train", '''
class Attn(nn.Module):
    def __init__(self, width=384, heads=6):
        super().__init__()
        self.heads, self.qkv, self.o, self.drop = heads, nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Dropout(0.1)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        attn = self.drop(((q @ k.transpose(-2, -1)) / 8).softmax(dim=-1))  #@a
        return self.o((attn @ v).transpose(1, 2).reshape(b, n, c))

m = Attn()
x = torch.randn(2, 512, 384)
''' + TRAIN.format(call="out = m(x)", loss="out.pow(2).mean()"), [site("a", "by hand", "no mask", "hides nothing", [], [HAND, "Both fused kernels do not support non-zero dropout"], maybe=["sdpa"])],
  note="F.sdpa with dropout runs in math on a CPU: little or nothing to gain")

P("hand_float64", '''
q, k, v = (torch.randn(1, 8, 640, 64, dtype=torch.float64) for _ in range(3))
''' + timed(12, '''
out = torch.softmax(torch.matmul(q, k.transpose(-1, -2)) / 8.0, dim=-1).matmul(v)  #@a
'''), [site("a", "by hand", "no mask", "hides nothing", ["sdpa"], [HAND])],
  mend=[("torch.softmax(torch.matmul(q, k.transpose(-1, -2)) / 8.0, dim=-1).matmul(v)", "F.scaled_dot_product_attention(q, k, v)")])

P("hand_decode", '''
keys, values = torch.randn(1, 8, 1500, 64), torch.randn(1, 8, 1500, 64)
with torch.no_grad():
    for step in range(30):
        q = torch.randn(1, 8, 1, 64)
        t0 = time.perf_counter()
        k, v = keys[:, :, :1470 + step], values[:, :, :1470 + step]
        for layer in range(4):
            out = (q @ k.transpose(-1, -2) * 0.125).softmax(-1) @ v  #@a
            q = q + 0.1 * out
        print(f"STEP {time.perf_counter() - t0:.6f}")
''' + END, [site("a", "by hand", "no mask", "hides nothing", [], [HAND], maybe=["sdpa"])],
  mend=[("(q @ k.transpose(-1, -2) * 0.125).softmax(-1) @ v", "F.scaled_dot_product_attention(q, k, v)")], note="one query: the matrix of weights is a row, so little to gain")

P("hand_scale_missing", '''
q, k, v = (torch.randn(1, 8, 900, 64) * 0.4 for _ in range(3))
''' + timed(12, '''
out = torch.softmax(torch.matmul(q, k.transpose(-1, -2)), dim=-1) @ v  #@a
'''), [site("a", "by hand", "no mask", "hides nothing", ["sdpa"], [HAND])],
  mend=[("torch.softmax(torch.matmul(q, k.transpose(-1, -2)), dim=-1) @ v", "F.scaled_dot_product_attention(q, k, v, scale=1.0)")], note="no scale (T5's way): the advice must say scale=1.0")

# ------------------------------------------------------------------ torch.compile of the whole
P("compiled_whole_sdpa", '''
class Attn(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.o = nn.Linear(512, 1536), nn.Linear(512, 512)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, 8, 64).permute(2, 0, 3, 1, 4)
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))  #@a

m = torch.compile(Attn().eval())
x = torch.randn(1, 900, 512)
''' + timed(12, "out = m(x)"), [site("a", "flash", "is_causal flag", "causal")])

P("compiled_whole_causal_mask", '''
class Attn(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.o = nn.Linear(512, 1536), nn.Linear(512, 512)
        self.register_buffer("mask", torch.ones(1024, 1024, dtype=torch.bool).tril())

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, 8, 64).permute(2, 0, 3, 1, 4)
        return self.o(F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask).transpose(1, 2).flatten(2))  #@a

m = torch.compile(Attn().eval())
x = torch.randn(1, 1024, 512)
''' + timed(12, "out = m(x)"), [site("a", "flash", "boolean 2-D", "causal", ["is_causal"])],
  mend=[("attn_mask=self.mask)", "is_causal=True)")])

P("compiled_whole_by_hand", '''
def attend(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) / 8.0, dim=-1) @ v  #@a

attend = torch.compile(attend)
q, k, v = (torch.randn(1, 8, 900, 64) for _ in range(3))
''' + timed(12, "out = attend(q, k, v)"), [site("a", "flash (inductor's pattern makes it so)", "no mask", "hides nothing", [])],
  note="SURPRISE: inductor knows the pattern and calls the flash kernel; nothing to gain")

P("compiled_whole_strided", '''
def attend(qkv):
    q, k, v = qkv.transpose(-1, -2).unbind(0)
    return F.scaled_dot_product_attention(q, k, v)  #@a

attend = torch.compile(attend)
qkv = torch.randn(3, 1, 8, 64, 900)
''' + timed(12, "out = attend(qkv)"), [site("a", "part of compiled code", "no mask", "hides nothing", [], maybe=["contiguous"])],
  mend=[("qkv.transpose(-1, -2).unbind(0)", "qkv.transpose(-1, -2).contiguous().unbind(0)")])

# ------------------------------------------------------------------ transformers
TF = HEAD.replace("import torch.nn.functional as F\n", "import torch.nn.functional as F\nimport transformers\n")
P("hf_llama_eager", '''
config = transformers.LlamaConfig(vocab_size=1000, hidden_size=512, intermediate_size=1024, num_hidden_layers=2,
                                  num_attention_heads=8, num_key_value_heads=8, attn_implementation="eager")
m = transformers.LlamaForCausalLM(config).eval()
ids = torch.randint(0, 1000, (1, 768))
''' + timed(8, "out = m(ids, use_cache=False).logits  #@a"), [site("a", "by hand", "float 4-D broadcast of 0 and finfo.min", "causal", ["sdpa"], [HAND], maybe=["is_causal"])],
  mend=[('attn_implementation="eager"', 'attn_implementation="sdpa"')], head=TF)

P("hf_llama_sdpa", '''
config = transformers.LlamaConfig(vocab_size=1000, hidden_size=512, intermediate_size=1024, num_hidden_layers=2,
                                  num_attention_heads=8, num_key_value_heads=2, attn_implementation="sdpa")
m = transformers.LlamaForCausalLM(config).eval()
ids = torch.randint(0, 1000, (1, 768))
''' + timed(8, "out = m(ids, use_cache=False).logits  #@a"), [site("a", "flash", "is_causal flag", "causal", [])], head=TF)

P("hf_bert_eager_padding", '''
config = transformers.BertConfig(vocab_size=1000, hidden_size=512, num_hidden_layers=2, num_attention_heads=8,
                                 intermediate_size=1024, attn_implementation="eager")
m = transformers.BertModel(config).eval()
ids = torch.randint(0, 1000, (2, 512))
keep = (torch.arange(512)[None] < torch.tensor([512, 300])[:, None]).long()
''' + timed(8, "out = m(ids, attention_mask=keep).last_hidden_state  #@a"), [site("a", "by hand", "float 4-D broadcast of 0 and finfo.min", "padding (right)", ["sdpa"], [HAND])],
  mend=[('attn_implementation="eager"', 'attn_implementation="sdpa"')], head=TF)

P("hf_bert_sdpa_whole_mask", '''
config = transformers.BertConfig(vocab_size=1000, hidden_size=512, num_hidden_layers=2, num_attention_heads=8,
                                 intermediate_size=1024, attn_implementation="sdpa")
m = transformers.BertModel(config).eval()
ids = torch.randint(0, 1000, (2, 512))
''' + timed(8, "out = m(ids, attention_mask=torch.ones_like(ids)).last_hidden_state  #@a"), [site("a", "flash", "no mask (transformers leaves an all-ones mask out)", "hides nothing", [])], head=TF)

P("hf_gpt2_eager_attentions_wanted", '''
config = transformers.GPT2Config(vocab_size=1000, n_embd=512, n_layer=2, n_head=8, n_positions=768, attn_implementation="eager")
m = transformers.GPT2LMHeadModel(config).eval()
ids = torch.randint(0, 1000, (1, 640))
with torch.no_grad():
    for step in range(8):
        t0 = time.perf_counter()
        r = m(ids, output_attentions=True, use_cache=False)  #@a
        out, seen = r.logits, r.attentions[-1].mean(1)[0, -1].topk(3).values.sum()
        print(f"STEP {time.perf_counter() - t0:.6f}")
print(f"CHECK {out.double().pow(2).mean().item() + seen.item():.10g}")
''', [site("a", "by hand", "float 4-D broadcast of 0 and finfo.min", "causal", [], [HAND])], head=TF, note="TRAP: the attention maps are used, so eager is needed")
