//! Which entries of `U` count.

members! {
    /// Which entries of `U` its columns consist of.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub enum Form {
        /// Column `j` (from 0) begins on the diagonal, behind `j` zeros: `m <= n`.
        Trapezoidal,
        /// Below the diagonal, which has implied ones, as in LAPACK.
        UnitTrapezoidal,
        /// All of them: any `m`.
        Full,
    }
}

impl Form {
    /// The coordinate with which column `j` begins.
    #[inline(always)]
    pub fn first(self, j: usize) -> usize {
        if self == Self::Full { 0 } else { j }
    }

    /// How many of `k` columns have entries of their own in row `i`: these are read and have gradients.
    #[inline(always)]
    pub fn stored(self, i: usize, k: usize) -> usize {
        match self {
            Self::Trapezoidal => k.min(i + 1),
            Self::UnitTrapezoidal => k.min(i),
            Self::Full => k,
        }
    }

    /// The number of reflections of `m` columns. The last of `m == n` trapezoidal columns is a number, not a reflection.
    #[inline(always)]
    pub fn reflections(self, n: usize, m: usize) -> usize {
        m - usize::from(self == Self::Trapezoidal && m == n)
    }

    /// Whether all columns have a one on the diagonal.
    #[inline(always)]
    pub fn has_ones(self) -> bool {
        self == Self::UnitTrapezoidal
    }
}
