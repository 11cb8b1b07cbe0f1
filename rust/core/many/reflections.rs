//! The reflections of all problems.

use super::Stack;
use crate::error::{Error, Result};
use crate::lengths::require;
use crate::reflections::{Form, Reflections};
use crate::scalar::Scalar;
use crate::view::Shape;

/// `U (count, n, m)`, row-major, and `tau (count, m)` where it is given.
#[derive(Clone, Copy)]
pub struct ManyReflections<'a, T: Scalar> {
    count: usize,
    n: usize,
    m: usize,
    form: Form,
    u: Stack<'a, T>,
    tau: Option<Stack<'a, T>>,
}

impl<'a, T: Scalar> ManyReflections<'a, T> {
    /// Views `u (count, n, m)` and `tau (count, m)`.
    pub fn new([count, n, m]: [usize; 3], form: Form, u: &'a [T], tau: Option<&'a [T]>) -> Result<Self> {
        let fits = |len: usize, each: usize| count.checked_mul(each) == Some(len);
        if !n.checked_mul(m).is_some_and(|each| fits(u.len(), each)) || tau.is_some_and(|tau| !fits(tau.len(), m)) {
            return Err(Error::InvalidArgument(format!("u: expected {count} x {n} x {m} entries, got {}", u.len())));
        }
        Ok(Self { count, n, m, form, u: Stack::new(u, count), tau: tau.map(|tau| Stack::new(tau, count)) })
    }

    /// The reflections of problem `i`.
    pub fn at(&self, i: usize) -> Result<Reflections<'a, T>> {
        Reflections::with_form(self.n, self.m, self.u.at(i), self.form, self.tau.map(|tau| tau.at(i)))
    }

    /// How many problems there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Size of the vectors.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Columns of `U`.
    pub fn m(&self) -> usize {
        self.m
    }

    /// Which entries of `U` its columns consist of.
    pub fn form(&self) -> Form {
        self.form
    }

    /// How many reflections each problem has.
    pub fn each(&self) -> usize {
        self.form.reflections(self.n, self.m)
    }

    /// Refuses arrays that are not one of these sizes for each problem.
    pub(super) fn require(&self, arrays: &[(&str, Option<Shape>)], sizes: &[usize]) -> Result<()> {
        for &(name, shape) in arrays {
            let Some((count, len)) = shape else { continue };
            if count != self.count {
                let text = format!("{name}: expected arrays of {} problems, got {count}", self.count);
                return Err(Error::InvalidArgument(text));
            }
            require(&[(name, Some(len), &[&[count], sizes].concat())])?;
        }
        Ok(())
    }

    /// Whether each reflection is its own inverse, because no `tau` is given.
    pub fn are_involutions(&self) -> bool {
        self.tau.is_none()
    }
}
