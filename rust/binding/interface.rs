//! What the extension module calls of the library that has the kernels.
//!
//! Both come from one run of cargo and share this crate, so types and functions of Rust have one layout and one convention in
//! both: a table of functions is enough, and [`Interface::load`] refuses that of another build. Each has a copy of the standard
//! library, through which a panic of the other must not pass: the functions here return it as an error.

#[cfg(unix)]
use std::path::Path;

use householder::convolution::Sizes;
use householder::error::catch_panic;

use crate::apply::{self, ApplyCall};
use crate::array::AnyArray;
use crate::columns::Columns;
use crate::constrain;
use crate::convolution;
use crate::delta::{self, DeltaCall};
use crate::dtype::DType;
use crate::factor;
use crate::gated_norm::{self, NormOptions};
#[cfg(unix)]
use crate::loaded::Library;
use crate::matrix;
use crate::operands::{Arrays, Named};
use crate::process;
use crate::recurrence::{self, Stepper};
use crate::refusal::Reading;
use crate::rnn::{self, Call, Described};
use crate::saved::{AnySaved, Held};

/// Tells builds apart: what was compiled, and by what. See `build.rs`.
const BUILD: u64 = match u64::from_str_radix(env!("HOUSEHOLDER_BUILD"), 16) {
    Ok(number) => number,
    Err(_) => panic!("a number"),
};

/// Declares the table: functions that return an error or a panic, and functions that have neither.
macro_rules! interface {
    (
        fallible { $($name:ident($($argument:ident: $type:ty),*) -> $output:ty = $function:path;)* }
        others { $($other:ident($($given:ident: $of:ty),*) -> $result:ty = $simple:path;)* }
    ) => {
        /// The functions, of which each is described where it is defined.
        #[repr(C)] // the build stands first in every version
        pub struct Interface {
            build: u64,
            $(pub $name: fn($($type),*) -> Reading<$output>,)*
            $(pub $other: fn($($of),*) -> $result,)*
        }

        impl Interface {
            /// Those of this crate.
            pub const HERE: Self = Self {
                build: BUILD,
                $($name: |$($argument),*| catch_panic(|| $function($($argument),*)),)*
                $($other: $simple,)*
            };
        }
    };
}

interface! {
    fallible {
        apply(arrays: &Arrays<'_>, call: &ApplyCall, save: bool) -> Option<AnySaved> = apply::forward;
        apply_backward(arrays: &Arrays<'_>, call: &ApplyCall, saved: Option<&Held>) -> () = apply::backward;
        apply_backward_in_place(arrays: &Arrays<'_>, call: &ApplyCall, saved: Option<&Held>) -> ()
            = apply::backward_in_place;
        apply_tape(arrays: &Arrays<'_>, call: &ApplyCall) -> () = apply::forward_tape;
        apply_tape_backward(arrays: &Arrays<'_>, call: &ApplyCall) -> () = apply::backward_tape;
        matrix(arrays: &Arrays<'_>, columns: &Columns, save: bool) -> Option<AnySaved> = matrix::forward;
        matrix_backward(arrays: &Arrays<'_>, columns: &Columns, saved: Option<&Held>) -> () = matrix::backward;
        compact_wy(arrays: &Arrays<'_>, columns: &Columns) -> () = factor::compact_wy;
        departure(arrays: &Arrays<'_>, n: usize) -> f64 = factor::departure;
        factors(arrays: &Arrays<'_>, shape: [usize; 2], by_columns: bool) -> f64 = factor::factors;
        constrain(u: &dyn AnyArray, soft: bool) -> () = constrain::constrain;
        rnn(arrays: &Arrays<'_>, call: Call<'_>, save: bool) -> Option<AnySaved> = rnn::forward;
        rnn_backward(arrays: &Arrays<'_>, call: Call<'_>, saved: Option<&Held>, may_repeat: bool) -> () = rnn::backward;
        rnn_tape_width(dtype: DType, shape: (usize, usize), rows: usize, has: [bool; 2], names: [&str; 2]) -> usize
            = rnn::tape_width;
        recurrence(operands: &[Named<'_>; 12], sizes: rnn::Sizes, options: Described<String>, latent: Option<&dyn AnyArray>)
            -> Box<dyn Stepper> = recurrence::recurrence;
        recurrence_is_of(recurrence: &dyn Stepper, parameters: &[Named<'_>; 12]) -> bool = Stepper::is_of;
        recurrence_step(recurrence: &dyn Stepper, arrays: &Arrays<'_>) -> () = Stepper::step;
        recurrence_run(recurrence: &dyn Stepper, arrays: &Arrays<'_>, call: Call<'_>) -> () = Stepper::run;
        delta_rule(arrays: &Arrays<'_>, call: DeltaCall, in_place: bool) -> () = delta::forward;
        delta_rule_backward(arrays: &Arrays<'_>, call: DeltaCall) -> () = delta::backward;
        convolution(arrays: &Arrays<'_>, sizes: Sizes, silu: bool) -> () = convolution::forward;
        convolution_backward(arrays: &Arrays<'_>, sizes: Sizes, silu: bool) -> () = convolution::backward;
        gated_norm(arrays: &Arrays<'_>, options: NormOptions) -> () = gated_norm::forward;
        gated_norm_backward(arrays: &Arrays<'_>, options: NormOptions) -> () = gated_norm::backward;
        set_num_threads(k: usize) -> () = process::set_num_threads;
    }
    others {
        num_threads() -> usize = householder::threads::num_threads;
        share_torch_threads(path: &str) -> bool = process::share_torch_threads;
        instruction_set() -> &'static str = process::instruction_set;
        plan(n: usize, m: usize, rows: usize, sequence: bool, is_complex: bool) -> (&'static str, [f64; 3])
            = process::plan;
        release_memory() -> () = householder::release_memory;
    }
}

#[cfg(unix)]
impl Interface {
    /// That of the library in this file, which exports it as `householder_interface`, or why there is none.
    pub fn load(file: &Path) -> Result<&'static Self, String> {
        let text = |reason: String| format!("{}: {reason}: install the package again", file.display());
        let library = Library::load(file).map_err(text)?;
        let symbol = library.symbol(c"householder_interface").ok_or_else(|| text("it has no interface".to_owned()))?;
        // SAFETY: a table of some build, which begins with its number; the rest is read if it is of this build.
        unsafe {
            if *symbol.cast::<u64>() != BUILD {
                return Err(text("it was built with another version of the extension module".to_owned()));
            }
            Ok(&*symbol.cast::<Self>())
        }
    }
}
