"""A module of Gluon kernels, run on the CPU from its own source: Gluon has no interpreter.

The partitions of a kernel are threads of which one runs at a time; a seed decides which goes on at
each operation, and when a copy lands: at the latest when nothing else can go on. Shared memory
holds NaN until it is written, and again from the moment a copy into it begins; a product reads its
operands when it is waited for. Barriers count arrivals and bytes by phases; where all partitions
wait, that is a deadlock. Layouts mean nothing here: the compiler checks them. Values are torch's
tensors, scalars Python's numbers.
"""

import builtins
import math
import random
import threading
from types import SimpleNamespace

import torch

NAN = math.nan


class Ended(BaseException):
    """Thrown into the partitions that are left when one has failed."""


class Barrier:
    """An mbarrier: a phase ends when all have arrived and all bytes have come."""

    def start(self, count):
        self.count = self.missing = count
        self.phase = self.bytes = 0

    def change(self, arrivals, more_bytes):
        self.missing -= arrivals
        self.bytes += more_bytes
        assert self.missing >= 0, "more have arrived at a barrier than it counts"
        if self.missing == self.bytes == 0:
            self.phase ^= 1
            self.missing = self.count


class Shared:
    """A tile of shared memory, or several."""

    def __init__(self, data):
        self.data, self.shape = data, list(data.shape)

    def index(self, i):
        return Shared(self.data[i])

    def reshape(self, shape):
        return Shared(self.data.view(shape))

    def permute(self, order):
        return Shared(self.data.permute(order))

    def load(self, layout):
        yield_()
        return self.data.clone()

    def store(self, value):
        yield_()
        assert value.shape == self.data.shape and value.dtype == self.data.dtype
        self.data.copy_(value)


class Barriers:
    def __init__(self, count):
        self.all = [Barrier() for _ in range(count)]

    def index(self, i):
        return self.all[i]


class Pointer:
    """Into a tensor's numbers."""

    def __init__(self, flat, at=0):
        self.flat, self.at = flat, at
        self.dtype = SimpleNamespace(element_ty=flat.dtype)

    def __add__(self, offset):
        return Pointer(self.flat, self.at + offset)


class Descriptor:
    """A tensor as TMA reads and writes it: zeros beyond its ends."""

    def __init__(self, base, shape, strides, block_shape, layout):
        assert base.data_ptr() % 16 == 0 and strides[-1] == 1
        assert all(s * base.element_size() % 16 == 0 and s > 0 for s in strides[:-1])
        self.base, self.dtype, self.layout = base, base.dtype, layout
        nbytes = math.prod(block_shape) * base.element_size()
        self.block_type = SimpleNamespace(shape=list(block_shape), nbytes=nbytes)

    def part(self, coord):
        """The part that lies inside, and its place in the block."""
        ends = zip(coord, self.block_type.shape, self.base.shape, strict=True)
        inside = [(max(c, 0), max(min(c + b, n), max(c, 0))) for c, b, n in ends]
        here = tuple(slice(*ends) for ends in inside)
        there = tuple(slice(lo - c, hi - c) for (lo, hi), c in zip(inside, coord, strict=True))
        return here, there


class Product:
    """A product in flight."""

    def __init__(self, a, b, acc):
        self.a, self.b, self.acc, self.value = a, b, acc, None
        self.shape = torch.Size((a.shape[0], b.shape[1]))

    def end(self):
        a, b = (x.data if isinstance(x, Shared) else x for x in (self.a, self.b))
        acc = self.acc.value if isinstance(self.acc, Product) else self.acc
        self.value = a.float() @ b.float() + (0 if acc is None else acc)


class Partition:
    """A thread that goes on when the machine says so."""

    def __init__(self, machine, work, args):
        self.machine, self.may, self.until = machine, threading.Semaphore(0), None
        self.products, self.error, self.over = [], None, False
        self.thread = threading.Thread(target=self.run, args=(work, args), daemon=True)
        self.thread.start()

    def run(self, work, args):
        self.may.acquire()
        try:
            if not self.machine.ended:
                with torch.no_grad():  # which each thread is told anew
                    work(*args)
        except Ended:
            pass
        except BaseException as error:
            self.error = error
        self.over = True
        self.machine.turn.release()

    def pause(self, until=None):
        self.until = until
        self.machine.turn.release()
        self.may.acquire()
        if self.machine.ended:
            raise Ended
        self.until = None


class Machine:
    """One program of a grid, with its shared memory and its copies."""

    def __init__(self, program, programs, seed):
        self.program, self.programs = program, programs
        self.chance = random.Random(f"{seed} {program}")
        self.copies = []
        self.turn, self.ended, self.now = threading.Semaphore(0), False, None

    def specialize(self, works):
        parts = [Partition(self, *work) for work in works]
        pace = {p: self.chance.random() ** 3 + 0.01 for p in parts}  # some are slow
        try:
            while not all(p.over for p in parts):
                able = [p for p in parts if not p.over and (p.until is None or p.until())]
                if self.copies and (not able or self.chance.random() < 0.3):
                    self.copies.pop(self.chance.randrange(len(self.copies)))()
                    continue
                assert able, "all partitions wait: a deadlock"
                (self.now,) = self.chance.choices(able, [pace[p] for p in able])
                self.now.may.release()
                self.turn.acquire()
                if self.now.error is not None:
                    raise self.now.error
        finally:
            self.ended, self.now = True, None
            for p in parts:
                p.may.release()
            for p in parts:
                p.thread.join()


machine = None


def yield_(until=None):
    """Let another partition go on."""
    if machine.now is not None:
        machine.now.pause(until)


# ---- the language --------------------------------------------------------------------------------


def _wait(barrier, phase, pred=True, deps=()):
    yield_(lambda: barrier.phase != phase)


def _arrive(barrier, *, count=1, pred=True):
    yield_()
    barrier.change(count, 0)


def _expect(barrier, nbytes, pred=True):
    yield_()
    barrier.change(1, nbytes)


def _load_tile(descriptor, coord, barrier, result, pred=True):
    yield_()
    assert result.shape == descriptor.block_type.shape and result.data.dtype == descriptor.dtype
    result.data.fill_(NAN)
    here, there = descriptor.part(coord)

    def land():
        result.data.zero_()  # beyond the tensor's ends
        result.data[there] = descriptor.base[here]
        barrier.change(0, -descriptor.block_type.nbytes)

    machine.copies.append(land)


def _store_tile(descriptor, coord, source):
    yield_()
    here, there = descriptor.part(coord)
    descriptor.base[here] = source.data[there]


def _store_wait(pendings):
    yield_()


def _mma(a, b, acc, *, use_acc=True, is_async=False):
    yield_()
    product = Product(a, b, acc if use_acc else None)
    machine.now.products.append(product)
    return product if is_async else _mma_wait(0, (product,))


def _mma_wait(num_outstanding=0, deps=None):
    yield_()
    flying = machine.now.products
    while len(flying) > num_outstanding:
        flying.pop(0).end()
    done = [d if isinstance(d, torch.Tensor) or d.value is None else d.value for d in deps]
    return done[0] if len(done) == 1 else tuple(done)


def _store(pointer, value, mask=None):
    yield_()
    at, value = torch.broadcast_tensors(pointer.at, torch.as_tensor(value))
    keep = torch.ones_like(at, dtype=torch.bool) if mask is None else mask.expand(at.shape)
    pointer.flat[at[keep]] = value[keep].to(pointer.flat.dtype)


def _load(pointer, mask=None, other=None):
    at = pointer.at
    keep = torch.ones_like(at, dtype=torch.bool) if mask is None else mask.expand(at.shape)
    values = torch.full(at.shape, NAN if other is None else other, dtype=pointer.flat.dtype)
    values[keep] = pointer.flat[at[keep]]
    return values


def _least(a, b, pick=torch.minimum, plain=min):
    if not isinstance(a, torch.Tensor) and not isinstance(b, torch.Tensor):
        return plain(a, b)
    like = a if isinstance(a, torch.Tensor) else b
    return pick(*(torch.as_tensor(x, dtype=like.dtype) for x in (a, b)))


def _allocate(dtype, shape, layout):
    if layout == "barriers":
        return Barriers(shape[0])
    return Shared(torch.full(shape, NAN, dtype=dtype))


def _layout(*args, **options):
    return "layout"


_layout.get_default_for = _layout
GL = SimpleNamespace(
    constexpr=lambda x: x, static_range=range, int32=torch.int32, int64=torch.int64,
    float32=torch.float32, bfloat16=torch.bfloat16, float16=torch.float16,
    program_id=lambda axis: machine.program, num_programs=lambda axis: machine.programs,
    minimum=_least, maximum=lambda a, b: _least(a, b, torch.maximum, max),
    cdiv=lambda a, b: -(-a // b), cast=lambda x, dtype: x, where=torch.where, exp2=torch.exp2,
    log2=torch.log2, arange=lambda start, end, layout: torch.arange(start, end),
    zeros=lambda shape, dtype, layout: torch.zeros(shape, dtype=dtype),
    full=lambda shape, value, dtype, layout: torch.full(shape, value, dtype=dtype),
    max=lambda x, axis: x.amax(axis), sum=lambda x, axis: x.sum(axis),
    convert_layout=lambda x, layout: x, load=_load, store=_store,
    allocate_shared_memory=_allocate, NVMMADistributedLayout=_layout, NVMMASharedLayout=_layout,
    DotOperandLayout=_layout, SliceLayout=_layout,
    warp_specialize=lambda works, warps, registers: machine.specialize(works),
)  # fmt: skip
HOPPER = SimpleNamespace(
    mbarrier=SimpleNamespace(
        MBarrierLayout=lambda: "barriers", init=lambda b, count: b.start(count), wait=_wait,
        arrive=_arrive, expect=_expect,
    ),
    tma=SimpleNamespace(async_load=_load_tile, async_store=_store_tile, store_wait=_store_wait),
    fence_async_shared=lambda cluster=False: None, warpgroup_mma=_mma, warpgroup_mma_wait=_mma_wait,
    TensorDescriptor=Descriptor,
)  # fmt: skip


class Kernel:
    """A function of the module; as ``kernel[grid](…)`` all its programs, one after the other."""

    seed = 0

    def __init__(self, function):
        self.function = function

    def __call__(self, *args):
        return self.function(*args)

    def __getitem__(self, grid):
        return lambda *args, **options: self.launch(grid[0], args, options)

    def launch(self, programs, args, options):
        global machine
        options = {k: v for k, v in options.items() if k not in ("num_warps", "maxnreg")}
        args = [Pointer(x.view(-1)) if isinstance(x, torch.Tensor) else x for x in args]
        for program in range(programs):
            machine = Machine(program, programs, Kernel.seed)
            self.function(*args, **options)


def jit(function=None, do_not_specialize=()):
    return Kernel(function) if function else Kernel


def module(path):
    """The module at a path, emulated."""
    text = path.read_text(encoding="utf-8")
    gluon = SimpleNamespace(jit=jit, constexpr_function=lambda function: function, language=GL)
    ours = {
        "triton.experimental": SimpleNamespace(gluon=gluon),
        "triton.experimental.gluon": gluon,
        "triton.experimental.gluon.language.nvidia.hopper": HOPPER,
        "triton.experimental.gluon.nvidia.hopper": HOPPER,
    }

    def load(name, *args):
        if name.startswith("impls.dense.gluon_"):
            ours[name] = module(path.with_name(f"{name.rpartition('.')[2]}.py"))
        return ours[name] if name in ours else __import__(name, *args)

    space = {"__builtins__": {**vars(builtins), "__import__": load}, "__name__": path.stem}
    exec(compile(text, str(path), "exec"), space)
    return SimpleNamespace(**space)
