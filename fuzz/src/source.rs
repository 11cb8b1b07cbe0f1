//! Problems made of a seed.

use householder::method::Method;
use householder::number::Real;
use householder::scalar::Scalar;

/// The choices of one problem.
#[derive(Clone)]
pub struct Source(u64);

/// How wild numbers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wildness {
    /// Uniform in [-1, 1).
    Tame,
    /// Half of them zeros, ones, and the smallest numbers that there are.
    Sparse,
    /// Columns of `U` of any magnitude.
    Scaled,
    /// NaN, infinities and the largest numbers as well: no result is expected, only that there is one.
    Anything,
}

/// How much there is of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Little: edges of registers and panels are met by chance.
    Small,
    /// More vectors or steps than are handled at a time, of few numbers each.
    Many,
    /// Work for several threads.
    Large,
}

impl Source {
    /// The same choices for the same seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Choices of its own for a part of the problem.
    pub fn fork(&mut self) -> Self {
        Self(self.bits())
    }

    /// Splitmix64: neighbouring seeds have nothing in common.
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..below`.
    pub fn below(&mut self, below: usize) -> usize {
        (self.bits() >> 33) as usize % below
    }

    /// Now and then.
    pub fn one_in(&mut self, many: usize) -> bool {
        self.below(many) == 0
    }

    /// A size: mostly small, now and then beyond a register, a tile or a panel of rows.
    pub fn size(&mut self) -> usize {
        let bounds = [3, 4, 5, 6, 6, 8, 10, 12, 18, 18];
        let bound = if self.one_in(100) { 70 } else { bounds[self.below(bounds.len())] };
        self.below(bound)
    }

    /// Mostly small: the others take up to ten thousand times as long.
    pub fn extent(&mut self) -> Extent {
        match self.below(4096) {
            0 => Extent::Large,
            1..=32 => Extent::Many,
            _ => Extent::Small,
        }
    }

    /// One of the three methods, or none.
    pub fn method(&mut self) -> Option<Method> {
        Method::ALL.get(self.below(1 + Method::ALL.len())).copied()
    }

    /// How wild a problem's numbers are.
    pub fn wildness(&mut self) -> Wildness {
        [Wildness::Tame, Wildness::Sparse, Wildness::Scaled, Wildness::Anything][self.below(4)]
    }

    fn real<R: Real>(&mut self, wildness: Wildness) -> R {
        let bits = self.bits();
        let tame = (bits >> 11) as f64 / (1_u64 << 52) as f64 - 1.0;
        let choice = (bits & 0xff) as usize;
        let smallest = R::MIN_POSITIVE.to_f64();
        let odd = [0.0, -0.0, 0.0, 1.0, -1.0, smallest, smallest / 8.0];
        let wild = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, smallest.recip(), f64::MAX];
        R::of(match wildness {
            Wildness::Sparse if choice < 128 => odd[choice % odd.len()],
            Wildness::Anything if choice < 100 => odd[choice % odd.len()],
            Wildness::Anything if choice < 110 => wild[choice % wild.len()],
            _ => tame,
        })
    }

    /// `len` numbers.
    pub fn numbers<T: Scalar>(&mut self, len: usize, wildness: Wildness) -> Vec<T> {
        (0..len).map(|_| T::from_parts(self.real(wildness), self.real(wildness))).collect()
    }

    /// Where `len` numbers go, mostly: none of their values shall remain.
    pub fn wanted<T: Scalar>(&mut self, len: usize) -> Option<Vec<T>> {
        (!self.one_in(8)).then(|| vec![T::ONE; len])
    }

    /// `U (n, m)`: each column has a magnitude of its own where numbers are [`Wildness::Scaled`].
    pub fn reflections<T: Scalar>(&mut self, n: usize, m: usize, wildness: Wildness) -> Vec<T> {
        let mut u = self.numbers::<T>(n * m, wildness);
        if wildness == Wildness::Scaled {
            let largest = if size_of::<T::Real>() == 4 { 36.0 } else { 300.0 };
            for j in 0..if m == n { m.saturating_sub(1) } else { m } {
                let exponent = (self.below(2001) as f64 / 1000.0 - 1.0) * largest;
                (0..n).for_each(|i| u[i * m + j] = u[i * m + j].scale(T::Real::of(10_f64.powf(exponent))));
            }
        }
        u
    }
}
