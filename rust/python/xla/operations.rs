//! The operations and their gradients, of the shapes and attributes of a frame. Shapes begin with the number of problems.

use householder::delta::{self as core, Sizes};
use householder::rnn::Steps;
use householder_binding::columns::Columns;
use householder_binding::refusal::{Reading, Refusal};
use householder_binding::{apply as application, delta, matrix as formed, options, rnn as sequences};

use super::frame::Frame;
use crate::library::library;

/// `u (count, n, m)`, and in the slot `tau`, perhaps, `tau (count, m)`.
fn columns(frame: &Frame<'_>, tau: usize) -> Reading<Columns> {
    Columns::of_many(frame.shape(0)?, frame.text("form")?, frame.has(tau)?)
}

/// `h (count, rows, n)`.
fn vectors(frame: &Frame<'_>) -> Reading<application::ApplyCall> {
    let (columns, [_, rows, _]) = (columns(frame, application::TAU)?, frame.shape(application::H)?);
    let (transpose, method) = (frame.flag("transpose")?, options::method(frame.text("method")?)?);
    Ok(application::ApplyCall { columns, rows, transpose, method })
}

pub fn apply(frame: &Frame<'_>) -> Reading<()> {
    frame.run((application::OPERANDS, ["c"]), |arrays| (library().apply)(arrays, &vectors(frame)?, false).map(drop))
}

pub fn apply_backward(frame: &Frame<'_>) -> Reading<()> {
    frame.run((application::OPERANDS, application::GRADIENTS), |arrays| {
        (library().apply_backward)(arrays, &vectors(frame)?, None)
    })
}

/// `u (count, n, m)` of layers.
fn of_layers(frame: &Frame<'_>) -> Reading<Columns> {
    Columns::of_many(frame.shape(0)?, "trapezoidal", false)
}

pub fn matrix(frame: &Frame<'_>) -> Reading<()> {
    frame.run((formed::OPERANDS, ["w"]), |arrays| (library().matrix)(arrays, &of_layers(frame)?, false).map(drop))
}

pub fn matrix_backward(frame: &Frame<'_>) -> Reading<()> {
    frame.run((formed::OPERANDS, ["grad_u"]), |arrays| (library().matrix_backward)(arrays, &of_layers(frame)?, None))
}

/// `x (count, steps, batch, d)` or, if `batch_sizes` are not empty, `(count, rows, d)`; what else there is of a sequence.
fn sequence<'a>(frame: &Frame<'a>) -> Reading<sequences::Call<'a>> {
    let columns = columns(frame, sequences::TAU)?;
    let (steps, vectors, batch, d) = match frame.integers("batch_sizes")? {
        [] => {
            let [_, steps, batch, d] = frame.shape(sequences::X)?;
            (Steps::uniform(steps, batch)?, (steps, Some(batch)), batch, d)
        }
        sizes @ [first, ..] => {
            let [_, rows, d] = frame.shape(sequences::X)?;
            (Steps::ragged(sizes)?, (rows, None), usize::try_from(*first).unwrap_or(0), d)
        }
    };
    let options = sequences::RecurrenceOptions {
        nonlinearity: frame.text("nonlinearity")?,
        slope: frame.real("negative_slope")?,
        transpose: frame.flag("transpose")?,
        reverse: frame.flag("reverse")?,
        form: frame.text("form")?,
        method: frame.text("method")?,
    };
    let is_complex = frame.dtype(0)?.is_complex();
    let moduli = options::moduli(options.nonlinearity, columns.n, is_complex)?;
    Ok(sequences::Call::new(sequences::Sizes { columns, d, vectors, batch, moduli }, options, steps)?)
}

pub fn rnn(frame: &Frame<'_>) -> Reading<()> {
    frame.run((sequences::OPERANDS, ["h", "last", "tape"]), |arrays| {
        (library().rnn)(arrays, sequence(frame)?, false).map(drop)
    })
}

pub fn rnn_backward(frame: &Frame<'_>) -> Reading<()> {
    frame.run((sequences::OPERANDS, sequences::GRADIENTS), |arrays| {
        (library().rnn_backward)(arrays, sequence(frame)?, None, false)
    })
}

/// `q (B, T, H, K)`, `v (B, T r, HV, V)`, and what else there is of the delta rule. `B` sequences have states each.
fn rule(frame: &Frame<'_>) -> Reading<delta::DeltaCall> {
    let [batch, tokens, heads, key_width] = frame.shape(0)?;
    let [_, steps, value_heads, value_width] = frame.shape(2)?;
    let reflections = usize::try_from(frame.integer("reflections")?).unwrap_or(0);
    let sizes = Sizes { heads, value_heads, key_width, value_width, reflections };
    if Some(steps) != tokens.checked_mul(reflections) {
        let text = format!("sizes: got {sizes:?}, {tokens} tokens and {steps} steps, which do not fit");
        return Err(Refusal::invalid(text));
    }
    Ok(delta::DeltaCall {
        sizes,
        sequences: (0..batch).map(|i| i * tokens..(i + 1) * tokens).collect(),
        tokens: [batch, tokens],
        steps: [batch, steps],
        saved: [batch, steps.saturating_sub(1) / core::interval(key_width, value_width)?],
        by_channel: frame.flag("by_channel")?,
        scale: frame.real("scale")?,
        normalize: frame.flag("normalize")?,
    })
}

pub fn delta_rule(frame: &Frame<'_>) -> Reading<()> {
    frame.run((delta::OPERANDS, ["out", "last", "saved"]), |arrays| (library().delta_rule)(arrays, rule(frame)?, false))
}

pub fn delta_rule_backward(frame: &Frame<'_>) -> Reading<()> {
    frame.run((delta::OPERANDS, delta::GRADIENTS), |arrays| (library().delta_rule_backward)(arrays, rule(frame)?))
}
