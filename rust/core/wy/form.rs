//! `V` and `N` from `U`.

use super::gram::Gram;
use super::inverse::{minus_inverse, narrow};
use super::tau::UserTau;
use super::{CompactWy, Factors};
use crate::arrays::lengths::flops;
use crate::arrays::view::{Shared, View};
use crate::error::Result;
use crate::memory::{Buffer, collected, filled};
use crate::numbers::number::Number;
use crate::numbers::scalar::Scalar;
use crate::operator::Reflections;
use crate::simd::isa::simd;
use crate::threads::Context;
use crate::wy::layout::{Strip, Trapezoid};

/// Per-row work overlapped with inverting `T`.
pub struct Overlap<'a, T: Scalar> {
    /// Number of tasks.
    pub tasks: usize,
    /// Their work.
    pub flops: usize,
    /// What a task does with `V` alone, while `N` is formed.
    pub with_v: &'a (dyn Fn(usize, Factors<'_, T>) + Sync),
    /// What it does with both.
    pub with_both: &'a (dyn Fn(usize, Factors<'_, T>) + Sync),
}

/// What the tasks of a team do, one after the other.
#[derive(Clone, Copy)]
enum FormationStage {
    /// Each takes a strip of rows of `U`, and the sums of their squares.
    Take,
    /// One finds the columns' norms.
    Normalise,
    /// Each lays out its strip of `V`, and adds up its part of the Gram matrix if there is memory for it.
    LayOut,
    /// Each adds up some rows of the Gram matrix otherwise.
    Gram,
    /// One inverts `T`; the others do the work that needs only `V`.
    Invert,
    /// The work that needs both `V` and `N`.
    After,
}

const STAGES: [FormationStage; 6] = [
    FormationStage::Take,
    FormationStage::Normalise,
    FormationStage::LayOut,
    FormationStage::Gram,
    FormationStage::Invert,
    FormationStage::After,
];

simd! {
    /// Takes rows of `U`, and the sums of their squares.
    ///
    /// # Safety
    /// The caller owns the strip.
    unsafe fn take<T: Scalar>(s, strip: Strip<T>, u: Reflections<'_, T>, squares: &mut [f64]) -> () {
        // SAFETY: as said.
        unsafe {
            strip.fill(s, u);
            strip.squares(u.form(), squares);
        }
    }

    /// Lays out rows of unit columns, conjugated row by row, and of columns `X`.
    ///
    /// # Safety
    /// The caller owns the strip.
    unsafe fn lay_out<T: Scalar>(s, strip: Strip<T>, inverse_norms: &[f64], delta: Option<&[f64]>) -> () {
        // SAFETY: as said.
        unsafe {
            strip.multiply(inverse_norms);
            strip.transpose(s);
            if let Some(delta) = delta {
                strip.multiply_columns(delta);
            }
            if T::COMPLEX {
                strip.conjugate();
            }
        }
    }
}

impl<T: Scalar> CompactWy<T> {
    /// Forms `V` and `N`.
    pub fn new(context: &mut Context<'_>, u: Reflections<'_, T>) -> Result<Self> {
        let nothing: &(dyn Fn(usize, Factors<'_, T>) + Sync) = &|_, _| {};
        Self::with(context, u, &Overlap { tasks: 0, flops: 0, with_v: nothing, with_both: nothing })
    }

    /// [`CompactWy::new`], together with the work in `along`.
    pub fn with(context: &mut Context<'_>, u: Reflections<'_, T>, along: &Overlap<'_, T>) -> Result<Self> {
        let (isa, n, k) = (context.isa, u.n(), u.count());
        let mut v = Trapezoid::new(n, k)?;
        let ld = v.ld_k;
        let (mut minus_s, mut minus_s_adjoint) = (Buffer::zeroed(k * ld)?, Buffer::zeroed(k * ld)?);
        // SAFETY: these buffers live longer than the tasks. They are not borrowed, because tasks write them first, and read
        // what the stages before have written.
        let factors = unsafe {
            Factors {
                v: View::from_raw(v.columns.ptr(), v.ld, k),
                v_adjoint: View::from_raw(v.rows.ptr(), ld, n),
                minus_s: View::from_raw(minus_s.ptr(), ld, k),
                minus_s_adjoint: View::from_raw(minus_s_adjoint.ptr(), ld, k),
            }
        };
        let gram = Gram::new::<T>(isa, u.form(), n, k);
        let strips: Vec<Strip<T>> = gram.bounds().windows(2).map(|bounds| v.strip(bounds[0], bounds[1])).collect();
        let (parts, len) = (strips.len(), k * ld);
        let mut squares = filled(parts * ld, 0.0)?;
        let (mut inverse_norms, mut given) = (Vec::new(), None);
        let mut t = Buffer::<T::Wide>::scratch(gram.matrices() * len)?;
        let (shared_v, shared_norms) = (Shared(&raw mut v), Shared(&raw mut inverse_norms));
        let shared_given = Shared(&raw mut given);
        let (shared_squares, shared_t) = (Shared(squares.as_mut_ptr()), Shared(t.ptr_mut()));
        let rows = Shared(v.rows.ptr_mut());
        let shared_n = (Shared(minus_s.ptr_mut()), Shared(minus_s_adjoint.ptr_mut()));
        let tasks = [parts, 1, parts, if gram.by_strips { 0 } else { gram.tasks() }, 1 + along.tasks, along.tasks];
        let tasks = &tasks[..if along.tasks == 0 { 5 } else { 6 }];
        // A number takes as long to lay out as a hundred flops of a product.
        context.run_stages(tasks, flops(&[4, n, k, k + 24]).saturating_add(along.flops), &|stage, i, cancel| {
            cancel.check()?;
            // SAFETY: tasks own their strips and what they add to sums; the one between them owns everything, and the one
            // that inverts T owns the sums and N, which the other tasks do not use.
            unsafe {
                let sums = |i: usize| std::slice::from_raw_parts_mut(shared_squares.get().add(i * ld), ld);
                match STAGES[stage] {
                    FormationStage::Take => take(isa, strips[i], u, sums(i)),
                    FormationStage::Normalise => {
                        let v = &mut *shared_v.get();
                        v.squares.fill(0.0);
                        (0..parts)
                            .for_each(|i| v.squares.iter_mut().zip(sums(i)).for_each(|(sum, part)| *sum += *part));
                        v.scale();
                        *shared_norms.get() = v.inverse_norms()?;
                        *shared_given.get() = u.tau().map(|tau| UserTau::new(tau, &v.scale)).transpose()?;
                    }
                    FormationStage::LayOut => {
                        let delta = (*shared_given.get()).as_ref().map(|given| &given.delta[..]);
                        lay_out(isa, strips[i], &*shared_norms.get(), delta);
                        if gram.by_strips {
                            gram.run(i, rows.get(), shared_t)?;
                        }
                    }
                    FormationStage::Gram => gram.run(i, rows.get(), shared_t)?,
                    FormationStage::Invert if i == 0 => {
                        let t = std::slice::from_raw_parts_mut(shared_t.get(), gram.matrices() * len);
                        gram.finish(ld, t);
                        let t = &mut t[..len];
                        let n = |shared: Shared<T>| std::slice::from_raw_parts_mut(shared.get(), len);
                        let (n, adjoint) = (n(shared_n.0), n(shared_n.1));
                        if let Some(given) = &*shared_given.get() {
                            given.factors(isa, ld, t, [n, adjoint])?;
                        } else {
                            let tau = collected((0..k).map(|j| T::Wide::from_real(1.0 / t[j * ld + j].re())))?;
                            narrow(isa, k, ld, &minus_inverse(isa, k, t, &tau, ld)?, n, adjoint);
                        }
                    }
                    FormationStage::Invert => (along.with_v)(i - 1, factors),
                    FormationStage::After => (along.with_both)(i, factors),
                }
            }
            Ok(())
        })?;
        let Trapezoid { rows: v_adjoint, columns: v, scale, .. } = v;
        Ok(Self { n, k, v, v_adjoint, minus_s, minus_s_adjoint, form: u.form(), scale, given })
    }
}
