//! The operations, compiled in this crate once for each type of numbers.
//!
//! Rust compiles a generic function in every crate that calls it, and those of this crate have all kernels within them: minutes
//! for each change of a caller's program. A public function therefore calls a method of its number type. That is no generic
//! function, so callers link to the kernels that are in this crate.

use crate::apply::{self, Gradients};
use crate::arrays::stored::{NumbersMut, Tokens};
use crate::error::Result;
use crate::factor;
use crate::linear_attention::convolution;
use crate::linear_attention::delta;
use crate::linear_attention::gated_norm;
use crate::numbers::exponential::Exponential;
use crate::numbers::number::{Number, c32, c64};
use crate::numbers::scalar::Scalar;
use crate::operator::Operator;
use crate::rnn::weights::StepWeights;
use crate::rnn::{self, Recurrence, Sequence, SequenceGradients, States, Trace};
use crate::threads::Context;
use crate::wy;

/// Declares a trait of these functions, and implements it for each type by the generic functions behind the equals signs.
macro_rules! compiled {
    ($(#[$attribute:meta])* $name:ident for $($t:ident)+, where Self: $bound:ident $functions:tt) => {
        compiled!(@declare [$(#[$attribute])*] $name $bound $functions);
        $(compiled!(@implement $name $t $functions);)+
    };
    (@declare [$($attribute:tt)*] $name:ident $bound:ident {
        $(fn $function:ident($($argument:ident: $type:ty),+) -> $output:ty = $generic:path;)+
    }) => {
        $($attribute)*
        pub trait $name: Number {
            $(#[doc(hidden)]
            fn $function($($argument: $type),+) -> $output
            where
                Self: $bound;)+
        }
    };
    (@implement $name:ident $t:ident {
        $(fn $function:ident($($argument:ident: $type:ty),+) -> $output:ty = $generic:path;)+
    }) => {
        impl $name for $t {
            $(fn $function($($argument: $type),+) -> $output {
                $generic($($argument),+)
            })+
        }
    };
}

compiled! {
    /// What every type of numbers can do.
    Operations for f32 f64 c32 c64, where Self: Scalar {
        fn apply(context: &mut Context<'_>, w: &Operator<'_, Self>, h: &[Self], out: &mut [Self]) -> Result<()>
            = apply::forward::contiguous;
        fn apply_and_save(context: &mut Context<'_>, w: &Operator<'_, Self>, h: &[Self], out: &mut [Self])
            -> Result<Option<apply::Saved<Self>>> = apply::forward::contiguous_and_save;
        fn apply_backward(context: &mut Context<'_>, w: &Operator<'_, Self>, h: &[Self], g: &[Self],
            gradients: Gradients<'_, Self>, saved: Option<&apply::Saved<Self>>) -> Result<()>
            = apply::backward::contiguous;
        fn apply_backward_in_place(context: &mut Context<'_>, w: &Operator<'_, Self>, h: &[Self], g: &mut [Self],
            gradients: Gradients<'_, Self>, saved: Option<&apply::Saved<Self>>) -> Result<()>
            = apply::backward::in_place;
        fn apply_tape(context: &mut Context<'_>, w: &Operator<'_, Self>, h: &[Self], tape: &mut [Self]) -> Result<()>
            = apply::sequential::tape::forward;
        fn apply_tape_backward(context: &mut Context<'_>, w: &Operator<'_, Self>, tape: &[Self], g: &[Self],
            gradients: Gradients<'_, Self>) -> Result<()> = apply::sequential::tape::backward;
        fn matrix(context: &mut Context<'_>, w: &Operator<'_, Self>, out: &mut [Self], save: bool)
            -> Result<Option<apply::Saved<Self>>> = apply::matrix::write_and_save;
        fn matrix_backward(context: &mut Context<'_>, w: &Operator<'_, Self>, grad_w: &[Self], grad_u: &mut [Self],
            saved: Option<&apply::Saved<Self>>) -> Result<()> = apply::matrix::gradient;
        fn compact_wy(context: &mut Context<'_>, w: &Operator<'_, Self>, v: &mut [Self], t: &mut [Self], s: &mut [Self])
            -> Result<()> = wy::write;
        fn rnn(context: &mut Context<'_>, sequence: &Sequence<'_, Self>, states: States<'_, Self>, save: bool,
            prepared: Option<&StepWeights<Self>>) -> Result<rnn::Saved<Self>> = rnn::forward::run;
        fn rnn_backward(context: &mut Context<'_>, sequence: &Sequence<'_, Self>, trace: Trace<'_, Self>,
            cotangents: rnn::Cotangents<'_, Self>, gradients: SequenceGradients<'_, Self>) -> Result<()>
            = rnn::backward::run;
        fn recurrence(context: &mut Context<'_>, sequence: &Sequence<'_, Self>, rows: usize)
            -> Result<Recurrence<Self>> = Recurrence::prepare;
        fn recurrent_step(recurrence: &Recurrence<Self>, x: &[Self], h: &[Self], out: &mut [Self]) -> Result<()>
            = Recurrence::advance;
        fn factor(context: &mut Context<'_>, n: usize, m: usize, q: &[Self], u: &mut [Self],
            phases: Option<&mut [Self::Real]>) -> Result<f64> = factor::search;
        fn factor_by_columns(context: &mut Context<'_>, n: usize, m: usize, q: &[Self], u: &mut [Self],
            phases: Option<&mut [Self::Real]>) -> Result<f64> = factor::reduce_columns;
        fn departure(context: &mut Context<'_>, n: usize, q: &[Self]) -> Result<f64> = factor::distance;
    }
}

compiled! {
    /// What real numbers can do besides.
    RealOperations for f32 f64, where Self: Exponential {
        fn delta(context: &mut Context<'_>, problem: &delta::Problem<'_, Self>, results: delta::Results<'_, Self>)
            -> Result<()> = delta::forward::run;
        fn delta_backward(context: &mut Context<'_>, problem: &delta::Problem<'_, Self>, saved: Option<&[Self]>,
            cotangents: delta::Cotangents<'_, Self>, gradients: delta::Gradients<'_, Self>) -> Result<()>
            = delta::backward::run;
        fn convolution(context: &mut Context<'_>, operands: convolution::Operands<'_, Self>,
            state: Option<&mut [Self]>, out: NumbersMut<'_, Self>) -> Result<()>
            = convolution::forward::forward_of_type;
        fn convolution_backward(context: &mut Context<'_>, operands: convolution::Operands<'_, Self>,
            grad_out: Tokens<'_, Self>, gradients: convolution::Gradients<'_, Self>) -> Result<()>
            = convolution::backward::backward_of_type;
        fn gated_norm(context: &mut Context<'_>, operands: gated_norm::Operands<'_, Self>, out: NumbersMut<'_, Self>)
            -> Result<()> = gated_norm::forward_of_type;
        fn gated_norm_backward(context: &mut Context<'_>, operands: gated_norm::Operands<'_, Self>,
            grad_out: Tokens<'_, Self>, gradients: gated_norm::Gradients<'_, Self>) -> Result<()>
            = gated_norm::backward_of_type;
    }
}
