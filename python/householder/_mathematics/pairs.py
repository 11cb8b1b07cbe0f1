r"""Products of the rows of pairs of steps of a chunk, with the decays between them, and their gradients.

The rows :math:`r_t` of a step that read, its query and its key, meet the keys of earlier steps s in
:math:`r_t^T \Gamma_{ts} k_s`, with the decays :math:`\Gamma_{ts} = \exp(\sum_{s<j\le t} g_j)`. Decays are sums of
gates, never differences, and so is the gradient of a gate: a sum over the pairs that it decays.

Rows are ``(.., 2, steps, K)``: queries, then keys, of which the first ``readers`` read. Products are
``(.., readers, steps, steps)``. A query reads its own step, a key does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from householder._mathematics import chunks

if TYPE_CHECKING:
    from householder._base.types import AnyArray
    from householder._mathematics.library import Library


class PairGradients(NamedTuple):
    """Gradients of the rows that read, of the keys that they read, and of the gates."""

    reading: AnyArray
    keys: AnyArray
    gates: AnyArray


class Pairs:
    """The pairs of chunks, given rows and gates ``g (.., steps, 1 or K)``."""

    products: AnyArray
    """Products of the rows that read and of the keys; zero where a step is not read."""
    from_start: AnyArray
    """Decays from the start of a chunk to each step, in the shape of the gates."""
    to_end: AnyArray
    """Decays from each step to the end of its chunk."""

    def __init__(self, lib: Library, rows: AnyArray, readers: int) -> None:
        steps = rows.shape[-2]
        every = lib.zeros((steps, steps), rows) + 1
        self._lib, self._rows, self._readers = lib, rows, readers
        self._reads = lib.xp.stack([lib.xp.tril(every), lib.xp.tril(every, k=-1)])[:readers, ...] > 0
        self.queries, self.keys, self.reading = rows[..., 0, :, :], rows[..., 1, :, :], self._of_readers(rows)

    def gradients(self, grads: AnyArray) -> PairGradients:
        """Return the gradients, given those of the products."""
        raise NotImplementedError

    def products_of(self, reading: AnyArray, read: AnyArray) -> AnyArray:
        """Return the products of rows that read, ``(.., readers, steps, width)``, and rows; zero where not read."""
        products = _below(self._lib, reading) @ self._lib.xp.matrix_transpose(read)
        return self._where_read(_apart(self._lib, products, self._readers))

    def through_states(self, of_read: AnyArray, states: AnyArray) -> AnyArray:
        """Return the gradients of the rows that read, given those of what they read of states."""
        of_reading = _apart(
            self._lib, _below(self._lib, of_read) @ self._lib.xp.matrix_transpose(states), self._readers
        )
        return of_reading * self.from_start[..., None, :, :]

    def _of_readers(self, rows: AnyArray) -> AnyArray:
        return rows[..., : self._readers, :, :]

    def _where_read(self, products: AnyArray) -> AnyArray:
        return self._lib.xp.where(self._reads, products, 0.0)


class PairsByHead(Pairs):
    """One gate a step: decays are factors of the products."""

    def __init__(self, lib: Library, rows: AnyArray, g: AnyArray, readers: int) -> None:
        super().__init__(lib, rows, readers)
        xp, steps = lib.xp, g.shape[-2]
        later = xp.tril(xp.broadcast_to(g, (*g.shape[:-1], steps)), k=-1)
        self._decays = xp.exp(xp.cumulative_sum(later, axis=-2))
        self.from_start, self.to_end = xp.exp(xp.cumulative_sum(g, axis=-2)), self._decays[..., -1, :, None]
        self.products = self._decayed(self.products_of(self.reading, self.keys))

    def gradients(self, grads: AnyArray) -> PairGradients:
        lib, xp = self._lib, self._lib.xp
        of_gates = xp.tril(sums_to_end(lib, xp.sum(grads * self.products, axis=-3)), k=-1)
        of_gates = xp.sum(of_gates, axis=-1, keepdims=True)
        finite, others = finite_and_others(lib, self._rows)
        others = xp.sum(others, axis=-1, keepdims=True)
        of_rows = _below(lib, self._decayed(grads))
        of_reading = _apart(lib, of_rows @ finite[..., 1, :, :], self._readers)
        of_reading = of_reading + xp.cumulative_sum(others[..., 1:, :, :], axis=-2)
        of_keys = xp.matrix_transpose(of_rows) @ _below(lib, self._of_readers(finite))
        of_keys = of_keys + sums_to_end(lib, xp.sum(self._of_readers(others), axis=-3))
        return PairGradients(of_reading, of_keys, of_gates)

    def _decayed(self, products: AnyArray) -> AnyArray:
        return self._where_read(products * self._decays[..., None, :, :])


class PairsByChannel(Pairs):
    """A gate for each channel: products from the first to the second halves of blocks of 2, 4, .. steps.

    Rows decay to the middle of a block, or from there. No product has terms of later steps.
    """

    def __init__(self, lib: Library, rows: AnyArray, g: AnyArray, readers: int) -> None:
        super().__init__(lib, rows, readers)
        xp, size, steps = lib.xp, 1, g.shape[-2]
        since, after = g, xp.zeros_like(g)
        self._decays: list[tuple[AnyArray, AnyArray]] = []
        while size < steps:
            (since1, since2), (after1, after2) = chunks.halves(lib, since, size), chunks.halves(lib, after, size)
            self._decays.append((xp.exp(after1), xp.exp(since2)))
            after = chunks.from_halves(lib, after1 + since2[..., -1:, :], after2, g.shape)
            since = chunks.from_halves(lib, since1, since1[..., -1:, :] + since2, g.shape)
            size *= 2
        self.from_start, self.to_end = xp.exp(since), xp.exp(after)
        self.products = self._all_products()

    def gradients(self, grads: AnyArray) -> PairGradients:
        lib, xp = self._lib, self._lib.xp
        diagonal = xp.linalg.diagonal(grads[..., 0, :, :])[..., None]
        of_reading, of_keys = self._of_queries(diagonal * self.keys), diagonal * self.queries
        of_gates = xp.zeros_like(of_keys)
        for i, (to_middle, from_middle) in enumerate(self._decays):
            later, earlier = self._halves(i)
            between = _below(lib, xp.moveaxis(chunks.between_halves(lib, grads, 2**i), -4, -3))
            of_later = _apart(lib, between @ earlier, self._readers)
            of_earlier = xp.matrix_transpose(between) @ _below(lib, later)
            first = xp.cumulative_sum(of_earlier * earlier, axis=-2, include_initial=True)[..., :-1, :]
            second = sums_to_end(lib, xp.sum(of_later * later, axis=-3))
            of_gates = _plus(lib, of_gates, 2**i, first, second)
            of_later = xp.moveaxis(of_later * from_middle[..., None, :, :], -3, -4)
            of_reading = _plus(lib, of_reading, 2**i, None, of_later)
            of_keys = _plus(lib, of_keys, 2**i, of_earlier * to_middle, None)
        return PairGradients(of_reading, of_keys, of_gates)

    def _all_products(self) -> AnyArray:
        """Return the products, from those of single steps to those of blocks of twice as many."""
        lib, xp = self._lib, self._lib.xp
        products = self._of_queries(xp.sum(self.queries * self.keys, axis=-1, keepdims=True))[..., None]
        for i in range(len(self._decays)):
            later, earlier = self._halves(i)
            between = _apart(lib, _below(lib, later) @ xp.matrix_transpose(earlier), self._readers)
            *batch, blocks, size, _ = products.shape
            first, second = lib.unstack(xp.reshape(products, (*batch, blocks // 2, 2, size, size)), -3)
            first = xp.concat([first, xp.zeros_like(first)], axis=-1)
            second = xp.concat([xp.moveaxis(between, -3, -4), second], axis=-1)
            products = xp.concat([first, second], axis=-2)
        return products[..., 0, :, :]

    def _of_queries(self, rows: AnyArray) -> AnyArray:
        """Return rows of queries as those of all readers: a key does not read its own step."""
        return self._lib.xp.stack([rows, self._lib.xp.zeros_like(rows)][: self._readers], axis=-3)

    def _halves(self, i: int) -> tuple[AnyArray, AnyArray]:
        """Return the rows that read in second halves, ``(.., blocks, readers, 2^i, K)``, and the keys in first ones."""
        (to_middle, from_middle), lib = self._decays[i], self._lib
        later = lib.xp.moveaxis(chunks.half(lib, self.reading, 1, 2**i), -4, -3)
        return later * from_middle[..., None, :, :], chunks.half(lib, self.keys, 0, 2**i) * to_middle


def product_with_later(lib: Library, products: AnyArray, rows: AnyArray) -> AnyArray:
    """Add to each step the rows of the steps that read it, times the products ``(.., steps, steps)``.

    Rows that are not finite reach no later step.
    """
    finite, others = finite_and_others(lib, rows)
    return lib.add_product(sums_to_end(lib, others), lib.xp.matrix_transpose(products), finite)


def finite_and_others(lib: Library, rows: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Return rows with zeros in the place of infinity and NaN, and zeros with NaN in those places.

    In a product, a zero does not remove a number that is not finite.
    """
    others = rows - rows
    return lib.xp.where(others == 0, rows, 0.0), others


def sums_to_end(lib: Library, rows: AnyArray) -> AnyArray:
    """Sum the rows from each step on."""
    xp = lib.xp
    return xp.flip(xp.cumulative_sum(xp.flip(rows, axis=-2), axis=-2), axis=-2)


def _below(lib: Library, rows: AnyArray) -> AnyArray:
    """Put the rows of all readers below each other, ``(.., readers * steps, width)``."""
    *batch, readers, steps, width = rows.shape
    return lib.xp.reshape(rows, (*batch, readers * steps, width))


def _apart(lib: Library, rows: AnyArray, readers: int) -> AnyArray:
    """Invert ``_below``: ``(.., readers, steps, width)``."""
    *batch, steps, width = rows.shape
    return lib.xp.reshape(rows, (*batch, readers, steps // readers, width))


def _plus(lib: Library, rows: AnyArray, size: int, first: AnyArray | None, second: AnyArray | None) -> AnyArray:
    """Add to the first and to the second halves of blocks of ``2 size`` rows."""
    first_rows, second_rows = chunks.halves(lib, rows, size)
    first = first_rows if first is None else first_rows + first
    second = second_rows if second is None else second_rows + second
    return chunks.from_halves(lib, first, second, rows.shape)
