"""Which recurrences the emulated kernels run."""

from itertools import cycle

from householder._base.spec import COMPLEX, DTYPES, NONLINEARITIES, OF_COMPLEX
from householder._cuda.instances import SCALAR_OF, TILES, Tile
from tests.cuda import applications
from tests.cuda.sequences import Case

STORED = {"float": "float32", "double": "float64"}


def tile(kernel: str, scalar: str, n: int, m: int | None = None) -> Tile:
    """The tile of exactly this size; that of a cluster where there are two."""
    return next(t for t in TILES if (t.kernel, t.scalar, t.n, t.m) == (kernel, scalar, n, m or n))


def one_block() -> Tile:
    """A tile of one block that has a part of Q in shared memory."""
    return next(t for t in TILES if t.shared_columns)


def at_edges(tile: Tile, nonlinearity: str) -> list[Case]:
    """The largest shape of a tile, one just below it, and the smallest that no smaller tile takes."""
    dense, dtype = tile.kernel == "dense", STORED[tile.scalar]
    smaller = [t for t in TILES if t.kernel == tile.kernel and t.scalar == tile.scalar]
    n = max((t.n for t in smaller if t.n < tile.n), default=0)
    m = max((t.m for t in smaller if t.m < tile.m and t.n == tile.n), default=0)
    step = 2 if NONLINEARITIES[nonlinearity].is_paired else 1
    columns = [tile.n // 2, 3, 2] if dense else [tile.m, tile.m - 1, min(m + 1, n + step)]
    rows = [tile.n, tile.n - step, n + step]
    sizes = (3, 3, 2, 1, 1) if tile.cluster < 8 else (2, 2, 1)  # 4096 threads take their time
    return [Case(tile, *shape, dtype, nonlinearity, sizes, dense=dense) for shape in zip(rows, columns, strict=True)]


def every_tile() -> list[Case]:
    """Each tile with one nonlinearity; each nonlinearity with several tiles."""
    return [case for t, phi in zip(TILES, cycle(NONLINEARITIES), strict=False) for case in at_edges(t, phi)]


def every_nonlinearity() -> list[Case]:
    """Small shapes with every nonlinearity and type of the arrays, by every kernel."""
    cases = []
    for dtype, scalar in SCALAR_OF.items():
        low, dense = tile("lowrank", scalar, 64, 8), tile("dense", scalar, 64)
        for phi in NONLINEARITIES:
            cases += [
                Case(low, 50, 5, dtype, phi),
                Case(dense, 50, 7, dtype, phi, dense=True),
                Case(None, 50, 5, dtype, phi),
            ]
    for dtype in COMPLEX:
        scalar = SCALAR_OF[DTYPES[dtype].real]
        low, dense = tile("lowrank", scalar, 64, 8), tile("dense", scalar, 64)
        for phi in OF_COMPLEX:
            cases += [
                Case(low, 30, 3, dtype, phi),
                Case(dense, 30, 7, dtype, phi, dense=True),
                Case(None, 30, 3, dtype, phi),
            ]
    return cases


def special() -> list[Case]:
    """Absent arguments, u_1, one row, shapes beyond one warp or block, scratch memory."""
    low, dense = tile("lowrank", "float", 64, 8), tile("dense", "float", 64)
    unpacked = {"batch_sizes": (3, 3, 3), "packed": False}
    return [
        *(Case(t, 40, 6, dense=t is dense, sparse=True, **unpacked) for t in (low, dense, None)),
        *(Case(t, 8, 8, dense=t is dense, batch_sizes=(2,)) for t in (low, dense, None)),
        *(Case(t, 1, 1, dense=t is dense) for t in (low, dense, None)),
        *(
            Case(None, n, m, dense=in_memory, scratch=in_memory)
            for n, m in ((257, 33), (300, 70))
            for in_memory in (False, True)
        ),
        Case(None, 70, 33, "float64", "oplu", scratch=True),
    ]


def with_sanitizers() -> list[Case]:
    """A few that touch all code: every kernel, one block and several, pairs, packed numbers, both precisions."""
    return [
        *at_edges(tile("lowrank", "float", 128, 16), "tanh"),
        *at_edges(tile("lowrank", "float", 256, 128), "oplu"),
        *at_edges(tile("lowrank", "double", 64, 8), "modrelu"),
        *at_edges(one_block(), "tanh")[1:2],
        *at_edges(tile("dense", "float", 64), "relu"),
        *at_edges(tile("dense", "float", 256), "modrelu")[1:2],
        Case(None, 70, 33, "bfloat16", "oplu"),
        Case(None, 70, 33, "float16", "tanh", dense=True, scratch=True),
    ]


def factors() -> list[applications.Case]:
    """Around the edges of what a kernel holds, in every number type: full, one less, one column, m = n."""
    sizes = {"float32": 8, "float64": 16, "complex64": 32, "complex128": 8}
    cases = [
        applications.Case(n, m, dtype)
        for dtype, columns in sizes.items()
        for n, m in ((columns + 1, columns), (70, columns), (columns, columns - 1), (columns + 9, columns // 2 + 1))
    ]
    tall = [applications.Case(300, 64, count=2), applications.Case(64, 64, count=2)]
    return [*cases, *tall, *(applications.Case(m, m, d) for m, d in ((9, "float32"), (17, "float64"), (2, "float64")))]


def applied() -> list[applications.Case]:
    """Around the edges of what lanes hold, in every number type; more matrices than fit into whole warps."""
    lanes = {"float32": (4, 8), "float64": (16,), "complex64": (32,), "complex128": (8,)}
    sizes = [(4 * k, d, 4 * k // (2 if d == "float32" else 9)) for d, every in lanes.items() for k in every]
    cases = []
    for n, dtype, m in sizes:
        cases += [applications.Case(*shape, dtype, 2, t) for shape in ((n, m), (n - 1, 3)) for t in (False, True)]
    square = [applications.Case(n, n, "float32", 3, t) for n in (16, 9, 32) for t in (False, True)]
    return [*cases, *square, *(applications.Case(1, 1, "float32", 2, t) for t in (False, True))]
