"""Which kernels there are and how each is launched: the one table that launcher, tests and documentation share.

The contract of the kernels (arguments, layouts) is ``cuda/README.md``. Nothing here needs a GPU, CuPy or torch.

A *tile* is a kernel template with its sizes filled in; it serves every ``n <= tile.n`` and ``m <= tile.m``, since a
state that is padded with zeros stays zero there. An *instance* is a tile together with what else is compiled in: the
direction, the type of the arrays and the nonlinearity.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from householder._base.spec import COMPLEX, DTYPES, NONLINEARITIES, REAL

Kernel = Literal["lowrank", "dense"]
Direction = Literal["forward", "backward"]

SCALAR_BYTES = {"float": 4, "double": 8}
"""Types of arithmetic."""

STORED = {"float32": "float", "float64": "double", "bfloat16": "householder::bf16", "float16": "householder::f16"}
"""Types of the arrays of states in C++."""

SCALAR_OF = {name: STORED[DTYPES[name].compute] for name in STORED}
"""Type of arithmetic for each type of the arrays of states. Complex arrays are real ones with twice as many rows."""

NEIGHBOURS = "modrelu_complex"
"""modReLU of pairs ``(2i, 2i + 1)``, which complex numbers are in memory."""

PHI = {name: f"householder::{name.upper()}" for name in (*NONLINEARITIES, NEIGHBOURS)}
"""Template arguments PHI in C++."""

SOURCES: dict[str, tuple[str, ...]] = {
    "lowrank": (
        "prims.cuh",
        "numbers.cuh",
        "activation.cuh",
        "rows.cuh",
        "recurrence.cuh",
        "cluster.cuh",
        "lowrank.cu",
    ),
    "dense": ("prims.cuh", "numbers.cuh", "activation.cuh", "rows.cuh", "recurrence.cuh", "cluster.cuh", "dense.cu"),
    "fallback": ("prims.cuh", "numbers.cuh", "activation.cuh", "rows.cuh", "fallback.cu"),
    "factors": ("prims.cuh", "numbers.cuh", "squares.cuh", "factors.cu"),
    "gradients": ("prims.cuh", "numbers.cuh", "squares.cuh", "gradients.cu"),
    "application": ("prims.cuh", "numbers.cuh", "application.cu"),
    "packing": ("prims.cuh", "rows.cuh", "packing.cu"),
    "probe": ("prims.cuh", "probe.cu"),
}
"""Files of ``cuda/`` that make up each module: joined in this order they are one translation unit without includes."""

OPTIONS = ("-std=c++17",)
"""Compiler options that every module needs, besides the architecture."""

CLUSTERS: tuple[str, ...] = ("-DHOUSEHOLDER_CLUSTERS",)
"""Options of kernels whose blocks form clusters; any device launches the other kernels."""

NUMBERS = {
    **{name: STORED[name] for name in REAL},
    **{name: f"householder::Complex<{STORED[DTYPES[name].real]}>" for name in COMPLEX},
}
"""Types of the numbers of applications in C++."""

FALLBACK_THREADS = 256
FALLBACK_REGISTERS = 128
DEFAULT_SHARED_BYTES = 48 << 10
"""Dynamic shared memory that every device provides by default."""
OPT_IN_SHARED_BYTES = 99 << 10
"""Dynamic shared memory that devices of ``OPT_IN_CAPABILITY`` and later provide to a kernel that asks for it."""
OPT_IN_CAPABILITY = 80

CLUSTER_CAPABILITY = 90
"""Compute capability (major * 10 + minor) from which on blocks form clusters."""

GROUP = 16
"""Multiprocessors of a GPC, or a few fewer. A cluster lies within one GPC."""

_BARRIER_BYTES = 128
_REGISTERS = 65536  # of a multiprocessor


class Launch(NamedTuple):
    """Grid and block (x only; y = z = 1), bytes of dynamic shared memory, and how many blocks form a cluster."""

    grid: int
    block: int
    shared_bytes: int
    cluster: int = 1


PROBE = ("probe", "householder::probe_clusters", Launch(8, 32, 0, 8))
"""A launch that fails where clusters cannot be launched."""


@dataclass(frozen=True)
class Tile:
    """A kernel template with its sizes: states of up to ``n`` numbers, up to ``m`` columns (dense: m = n)."""

    kernel: Kernel
    scalar: str
    n: int
    m: int
    threads: int
    cluster: int
    shared_columns: int = 0
    """Columns of Q that shared memory holds because registers do not."""

    @property
    def factor_registers(self) -> int:
        """Registers of each thread that hold its part of the factors (or of W) for the whole sequence."""
        numbers = self.n * (self.n if self.kernel == "dense" else 2 * self.m - self.shared_columns)
        return numbers // (self.threads * self.cluster) * SCALAR_BYTES[self.scalar] // 4

    @property
    def register_budget(self) -> int:
        """Registers reserved for a thread: 128 if they suffice, because two blocks of 256 threads then share an SM."""
        return min(128 if self.factor_registers <= 64 else 256, _REGISTERS // self.threads)

    @property
    def blocks_per_multiprocessor(self) -> int:
        """The least number of blocks that the registers of a multiprocessor hold."""
        return max(1, _REGISTERS // (self.threads * self.register_budget))

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        size = SCALAR_BYTES[self.scalar]
        if self.kernel == "dense":
            return _BARRIER_BYTES + 2 * self.n * size
        exchanged = self.m if self.cluster == 1 else (2 * self.cluster + 1) * self.m
        return _BARRIER_BYTES + (self.n // self.cluster * (1 + self.shared_columns) + exchanged) * size

    def runs_on(self, capability: int) -> bool:
        """Return whether a device of that compute capability (as 75, 80, 90, 100) can run it."""
        if self.cluster > 1:
            return capability >= CLUSTER_CAPABILITY
        return self.shared_bytes <= DEFAULT_SHARED_BYTES or capability >= OPT_IN_CAPABILITY

    def launch(self, batch: int, multiprocessors: int) -> Launch:
        """Return the launch for ``batch`` sequences; a block or cluster takes one after the other."""
        together = multiprocessors // self.cluster
        if self.cluster > 2:
            together = multiprocessors // GROUP * (GROUP // self.cluster)
        resident = max(1, together * self.blocks_per_multiprocessor)
        return Launch(min(batch, resident) * self.cluster, self.threads, self.shared_bytes, self.cluster)

    def name(self, direction: Direction, dtype: str, nonlinearity: str) -> str:
        """Return the C++ name expression of an instance; ``dtype`` is that of the arrays of states."""
        low_rank = [self.m, self.shared_columns] if self.kernel == "lowrank" else []
        sizes = [self.n, *low_rank, self.threads, self.cluster]
        return _name(self.kernel, direction, dtype, sizes, nonlinearity)


def _name(kernel: str, direction: str, dtype: str, sizes: list[int], nonlinearity: str) -> str:
    arguments = [SCALAR_OF[dtype], STORED[dtype], *map(str, sizes), PHI[nonlinearity]]
    return f"householder::{kernel}_{direction}<{', '.join(arguments)}>"


def fallback_name(direction: Direction, dtype: str, nonlinearity: str) -> str:
    """Return the name expression of the kernel for every other shape."""
    return _name("fallback", direction, dtype, [], nonlinearity)


def fallback_launch(n: int, m: int, dtype: str, batch: int, multiprocessors: int) -> tuple[Launch, int]:
    """Return the launch of the fallback and the elements of its ``scratch`` array, 0 where it fits into shared memory.

    ``m`` is 0 where W is given.
    """
    numbers = 2 * n + m + FALLBACK_THREADS
    size = SCALAR_BYTES[SCALAR_OF[dtype]]
    grid = min(batch, multiprocessors * 4)
    if numbers * size <= DEFAULT_SHARED_BYTES:
        return Launch(grid, FALLBACK_THREADS, numbers * size), 0
    return Launch(grid, FALLBACK_THREADS, 0), grid * numbers


STEPWISE_FROM = {"float": 1 << 17, "double": 1 << 16}
"""Matrix elements that a step of the fallback reads, from which torch operations count as faster.

Estimates: on an H100 the kernel loses to cuDNN by a factor of 5 at 180,000 numbers, and nothing smaller was measured.
"""


def numbers_of_step(n: int, m: int, *, dense: bool) -> int:
    """Count the matrix elements that a step of the fallback reads."""
    return n * n if dense else 2 * n * m


def prefers_steps(n: int, m: int, dtype: str, *, dense: bool) -> bool:
    """Return whether torch operations, step by step, are preferred to the fallback."""
    return numbers_of_step(n, m, dense=dense) >= STEPWISE_FROM[SCALAR_OF[dtype]]


def _lowrank(scalar: str, *rows: tuple[int, ...]) -> tuple[Tile, ...]:
    return tuple(Tile("lowrank", scalar, *sizes) for sizes in rows)


def _dense(scalar: str, *rows: tuple[int, int, int]) -> tuple[Tile, ...]:
    return tuple(Tile("dense", scalar, n, n, threads, cluster) for n, threads, cluster in rows)


TILES: tuple[Tile, ...] = (
    # n, m, threads, blocks of a cluster, columns of Q in shared memory
    *_lowrank(
        "float",
        (64, 8, 64, 1),
        (64, 16, 64, 1),
        (64, 32, 64, 1),
        (128, 8, 128, 1),
        (128, 16, 128, 1),
        (128, 32, 128, 1),
        (128, 64, 256, 1),
        (256, 16, 256, 1),
        (256, 32, 256, 1),
        (256, 64, 256, 1),
        (256, 128, 512, 2),
        (256, 128, 512, 1, 96),
        (512, 16, 512, 1),
        (512, 32, 512, 1),
        (512, 64, 512, 2),
        (512, 64, 512, 1, 48),
        (512, 128, 512, 4),
        (512, 256, 512, 8),
        (1024, 32, 512, 2),
        (1024, 64, 512, 4),
        (1024, 128, 512, 8),
        (2048, 32, 512, 4),
        (2048, 64, 512, 8),
    ),
    *_lowrank(
        "double",
        (64, 8, 64, 1),
        (64, 16, 64, 1),
        (64, 32, 128, 1),
        (128, 8, 128, 1),
        (128, 16, 128, 1),
        (128, 32, 256, 1),
        (256, 16, 256, 1),
        (256, 32, 256, 1),
        (256, 64, 512, 2),
        (512, 16, 512, 1),
        (512, 32, 512, 2),
        (512, 64, 512, 4),
        (512, 128, 512, 8),
        (1024, 32, 512, 4),
        (1024, 64, 512, 8),
    ),
    *_dense("float", (64, 128, 1), (128, 512, 1), (256, 512, 2), (512, 512, 8)),
    *_dense("double", (64, 256, 1), (128, 512, 1), (256, 512, 4)),
)
"""Every compiled-in shape; for each kernel and scalar the cheapest first.

Two shapes come twice: one block with shared columns of Q serves devices without clusters.
"""


def prefers_dense(n: int, m: int) -> bool:
    """Return whether a step with W, n^2 products and one exchange, is cheaper than 2 n m products and two exchanges."""
    return 2 * m >= n


def tile_for(kernel: Kernel, n: int, m: int, dtype: str, capability: int) -> Tile | None:
    """Find the smallest tile of that kernel for real shapes ``(n, m)``; None where only the fallback will do."""
    for tile in TILES:
        fits = tile.n >= n and (kernel == "dense" or tile.m >= m)
        if tile.kernel == kernel and tile.scalar == SCALAR_OF[dtype] and fits and tile.runs_on(capability):
            return tile
    return None


def plan(n: int, m: int, dtype: str, capability: int, *, method: str = "auto") -> tuple[bool, Tile | None]:
    """Return whether to form W, and the tile; None: the fallback.

    ``n`` and ``m`` are real sizes: twice those of complex arrays. ``method`` is ``"auto"``, ``"wy"`` or ``"dense"``.
    """
    dense = prefers_dense(n, m) if method == "auto" else method == "dense"
    tile = tile_for("dense" if dense else "lowrank", n, m, dtype, capability)
    if tile is None and method == "auto":
        other = tile_for("lowrank" if dense else "dense", n, m, dtype, capability)
        if other is not None:
            return not dense, other
    return dense, tile


FACTOR_COLUMNS = dict.fromkeys(REAL, (8, 16, 32, 64)) | dict.fromkeys(COMPLEX, (8, 16, 32))
"""Columns for which there is a kernel that forms V, S and A: S and partial sums fill 32 KB of shared memory."""

FAST_DOUBLES = (80, 90, 100)
"""Compute capabilities of devices that are built for double precision; others have a thirtieth of its speed."""


SquareKernel = Literal["factors", "gradients"]
"""The kernels that form V, S and A, and the gradient of u from sums over vectors."""


def square_name(kernel: SquareKernel, columns: int, dtype: str) -> str:
    """Return the name expression of the kernel for up to ``columns`` columns."""
    return f"householder::{kernel}_form<{NUMBERS[dtype]}, {columns}, {_factor_threads(dtype)}>"


def _factor_threads(dtype: str) -> int:
    return 128 if dtype in COMPLEX else 256


def square(kernel: SquareKernel, n: int, k: int, count: int, dtype: str, capability: int) -> tuple[str, Launch] | None:
    """Return the name and launch of such a kernel for ``count`` matrices with k reflections, if it is to be used."""
    columns = next((c for c in FACTOR_COLUMNS[dtype] if c >= k), None)
    most = 1 << 22 if capability in FAST_DOUBLES else 1 << 16  # products of doubles for one multiprocessor
    if not count or not k or columns is None or n * k * k > most:
        return None
    threads = _factor_threads(dtype)
    wide = 16 if dtype in COMPLEX else 8
    return square_name(kernel, columns, dtype), Launch(count, threads, 16 * threads * wide + 8 * columns)


APPLICATION_LANES = (4, 8, 16, 32)
"""Lanes of a warp that share a matrix, four rows each."""

LONGEST_APPLICATION = 256
"""Most reflections, over all rows of a matrix, to apply one after the other; matrix products serve larger numbers."""

_WARP = 32


def application_name(direction: Direction, lanes: int, dtype: str) -> str:
    """Return the name expression of the kernel that applies many small matrices."""
    return f"householder::application_{direction}<{NUMBERS[dtype]}, {lanes}>"


def application(
    direction: Direction, n: int, m: int, matrices: int, rows: int, dtype: str
) -> tuple[str, Launch] | None:
    """Return name and launch of the kernel for ``rows`` vectors of each of many ``u (n, m)``, if it is to be used."""
    lanes = next((lanes for lanes in APPLICATION_LANES if 4 * lanes >= n), None)
    if lanes is None or not 0 < rows * m <= LONGEST_APPLICATION or not matrices:
        return None
    real = SCALAR_BYTES[STORED[DTYPES[dtype].real]]
    size = 2 * real if dtype in COMPLEX else real
    arrays, together = 1 if direction == "forward" else 2, _WARP // lanes
    shared = together * m * (arrays * 4 * (lanes + 1) * size + real)
    if shared > DEFAULT_SHARED_BYTES:
        return None
    return application_name(direction, lanes, dtype), Launch(-(-matrices // together), _WARP, shared)


PACKING_NAMES = {"offsets": "householder::packing_offsets", "rows": "householder::packing_rows"}
PACKING_THREADS = 256
