//! Options, by the names that they have in Python.

use householder::method::Method;
use householder::number::{Real, c64};
use householder::operator::Form;
use householder::rnn::Activation;
use householder::scalar::Scalar;

use crate::refusal::{Reading, Refusal};

const METHODS: [(&str, Option<Method>); 4] = [
    ("auto", None),
    ("reflections", Some(Method::Reflections)),
    ("wy", Some(Method::Wy)),
    ("dense", Some(Method::Dense)),
];

/// The method of that name; `None` for `"auto"`.
pub fn method(name: &str) -> Reading<Option<Method>> {
    let known = METHODS.iter().find(|(known, _)| *known == name).map(|(_, method)| *method);
    let text = || format!("method: expected 'auto', 'reflections', 'wy' or 'dense', got '{name}'");
    known.ok_or_else(|| Refusal::invalid(text()))
}

/// The name of a method.
pub fn name(method: Method) -> &'static str {
    METHODS.iter().find(|(_, known)| *known == Some(method)).map_or("auto", |(name, _)| name)
}

/// The form of columns. With `tau`, trapezoidal columns are LAPACK's, which begin with a one.
pub fn form(name: &str, has_tau: bool) -> Reading<Form> {
    match (name, has_tau) {
        ("trapezoidal", false) => Ok(Form::Trapezoidal),
        ("trapezoidal", true) => Ok(Form::UnitTrapezoidal),
        ("full", _) => Ok(Form::Full),
        _ => Err(Refusal::invalid(format!("columns: expected 'trapezoidal' or 'full', got '{name}'"))),
    }
}

/// How many numbers the bias of a nonlinearity has for states of `n` numbers.
pub fn moduli(name: &str, n: usize, is_complex: bool) -> Reading<usize> {
    Ok(if is_complex {
        activation::<c64>(name, 0.0, Some(&[]))?.moduli(n)
    } else {
        activation::<f64>(name, 0.0, Some(&[]))?.moduli(n)
    })
}

/// The nonlinearity of that name; `bias` is modReLU's, of all problems.
pub fn activation<'a, T: Scalar>(name: &str, slope: f64, bias: Option<&'a [T::Real]>) -> Reading<Activation<'a, T>> {
    let needed = || {
        let text = || format!("nonlinearity_bias: expected an array for '{name}', got None");
        bias.ok_or_else(|| Refusal::invalid(text()))
    };
    Ok(match name {
        "identity" => Activation::Identity,
        "relu" => Activation::Relu,
        "tanh" => Activation::Tanh,
        "oplu" => Activation::Oplu,
        "modrelu" => Activation::ModRelu(needed()?),
        "real_modrelu" => Activation::RealModRelu(needed()?),
        "leaky_relu" if slope == 0.0 => Activation::Relu,
        "leaky_relu" if slope == 1.0 => Activation::Identity,
        // Both parts: the slope multiplies real and imaginary parts alike.
        "leaky_relu" => Activation::LeakyRelu(T::from_parts(T::Real::of(slope), T::Real::of(slope))),
        _ => {
            return Err(Refusal::invalid(format!(
                "nonlinearity: expected 'identity', 'tanh', 'relu', 'leaky_relu', 'oplu', 'modrelu' or 'real_modrelu', got \
                 '{name}'"
            )));
        }
    })
}
