//! The delta rule: a product of reflections, or of steps towards them, that depends on the data.
//!
//! ```text
//! S_t = (I - b_t k_t k_t') Diag(exp g_t) S_{t-1} + b_t k_t v_t',    o_t = scale S_t' q_t
//! ```
//!
//! With `b = 2`, unit keys, no gate and no values, `S_t` is `W S_0` for a product `W` of Householder reflections. Within a
//! chunk of time the same compact WY form holds. With `c` the sum of the gates from the chunk's beginning on and
//! `<a_i, b_j> = sum_x a_ix b_jx exp(c_ix - c_jx)`,
//!
//! ```text
//! E = V - K' S_0 - M D,   D = diag(b) E,    M_ij = <k_i, k_j>, j < i,     K' = K exp(c)
//! O = Q' S_0 + P D,                         P_ij = <q_i, k_j>, j <= i,    Q' = Q exp(c)
//! S = exp(c_end) S_0 + H' D,                                              H  = K exp(c_end - c)
//! ```
//!
//! so that nearly all work is in products of matrices. Decays are running products of `exp g`, never differences of sums.
//! They are at most one if the gates are at most zero, and a gate of minus infinity is a decay of zero.
//!
//! Without betas nothing is erased: `S_t = Diag(exp g_t) S_{t-1} + k_t v_t'`, which is linear attention. Then `D = V`, and there
//! is no `K'` and no `M`: keys are written to the state and do not read it. Mamba-2 has betas that erase nothing, `D = diag(b) V`,
//! and adds the values times a factor of their head to the outputs. Its `C`, `B`, `x`, `dt`, `dt A` and `D` are queries, keys,
//! values, betas, gates and [`Operands::skip`]:
//!
//! ```
//! use householder::Context;
//! use householder::delta::{Gate, Operands, Problem, Results, Sizes, forward};
//!
//! let (c, b) = ([1.0, 0.0, 1.0, 0.0], [1.0, 0.0, 1.0, 0.0]); // 2 tokens, states of 2 numbers
//! let (x, dt, a, d) = ([1.0, 2.0, 3.0, 4.0], [1.0, 0.5], -4.0_f64.ln(), [10.0]); // 1 head of 2 numbers
//! let decays = dt.map(|dt| dt * a); // the logarithm of 1 / 2 at the second token
//! let problem = Problem::new(Operands {
//!     gate: Gate::Head(&decays),
//!     skip: Some(&d),
//!     scale: 1.0,
//!     ..Operands::new(Sizes::new(1, 2, 2), &c, &b, &x, &dt)
//! })?;
//! let (mut y, mut state) = ([0.0; 4], [0.0; 4]);
//! let results = Results { out: Some((&mut y).into()), last: Some(&mut state), ..Results::default() };
//! forward(&mut Context::default(), &problem, results)?;
//! let expected = [1.0 + 10.0, 2.0 + 20.0, 0.5 + 1.5 + 30.0, 1.0 + 2.0 + 40.0];
//! assert!(y.iter().zip(expected).all(|(y, expected)| (y - expected).abs() < 1e-12));
//! assert!((state[0] - 2.0).abs() < 1e-12 && (state[1] - 3.0).abs() < 1e-12); // the next tokens begin there
//! # Ok::<(), householder::Error>(())
//! ```
//!
//! With one gate a head, decays multiply rows of products: `Q' S_0 = diag(exp c) (Q S_0)`, and `H' D = K' diag(exp(c_end - c)) D`.
//! So queries and keys are the same rows for all value heads of a key head, and so are the products of their pairs.
//!
//! Between the passes, one state per segment of chunks is saved ([`interval`]); the others are recomputed.
//!
//! Later tokens never change what belongs to earlier ones, not even by infinity or NaN.
//!
//! States after chosen tokens, for caches of prefixes, are final states of calls on the tokens between them, each of which
//! begins where the one before ended. Drafts of speculative decoding are verified without [`Results::last`], and the accepted
//! tokens are committed without [`Results::out`], with [`Results::in_place`]:
//!
//! ```
//! use householder::Context;
//! use householder::delta::{self, Operands, Problem, Results, Sizes};
//!
//! let (sizes, context) = (Sizes::new(1, 2, 1), &mut Context::default());
//! let (q, k) = ([1.0, 0.0, 0.0, 1.0, 1.0, 1.0], [1.0, 0.0, 0.0, 1.0, 1.0, 0.0]); // three drafted tokens
//! let (v, beta) = ([5.0, 6.0, 7.0], [1.0; 3]);
//! let (mut state, mut out) = ([1.0, 2.0], [0.0; 3]);
//! let draft = Operands { initial: Some(&state), scale: 1.0, ..Operands::new(sizes, &q, &k, &v, &beta) };
//! let results = Results { out: Some((&mut out).into()), ..Results::default() };
//! delta::forward(context, &Problem::new(draft)?, results)?;
//! assert_eq!((out, state), ([5.0, 6.0, 13.0], [1.0, 2.0]));
//! let accepted = Problem::new(Operands::new(sizes, &q[..4], &k[..4], &v[..2], &beta[..2]))?; // two of them
//! delta::forward(context, &accepted, Results { last: Some(&mut state), in_place: true, ..Results::default() })?;
//! assert_eq!(state, [5.0, 6.0]);
//! # Ok::<(), householder::Error>(())
//! ```

pub(crate) mod backward;
mod chunk;
mod chunk_backward;
mod decay;
pub(crate) mod forward;
mod gram;
mod gram_backward;
mod problem;
mod solve;

pub use backward::backward;
pub use forward::forward;
pub use problem::{Cotangents, Gate, Gradients, Lengths, Operands, Problem, Results, Sizes, interval};
