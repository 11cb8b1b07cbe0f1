// h = phi(a) and dL/da from h, as the CPU core has them: the derivative at 0 is that of the left side, NaN goes through.
namespace householder {

enum { IDENTITY, RELU, LEAKY_RELU, TANH, OPLU, MODRELU, MODRELU_COMPLEX, REAL_MODRELU };

// |re + i im|. Numbers whose squares would leave the range of S are scaled; hypot() does as much in twice the registers.
template <class S>
DEVICE S modulus(S re, S im) {
  constexpr S BIG = static_cast<S>(sizeof(S) == 4 ? 0x1p62 : 0x1p510), DOWN = 1 / (4 * BIG);
  const S size = larger(re < 0 ? -re : re, im < 0 ? -im : im);
  const S scale = size > BIG ? DOWN : size < 1 / BIG ? 1 / DOWN : S(1);
  const S back = size > BIG ? 1 / DOWN : size < 1 / BIG ? DOWN : S(1);
  re *= scale;
  im *= scale;
  return square_root(multiply_add(re, re, im * im)) * back;
}

// Relative error below 2e-7. Without a branch: both formulas together are shorter than a divergent warp.
DEVICE float hyperbolic_tangent(float x) {
  const float square = x * x, size = fabsf(x);
  float p = -5.89515e-3f;  // (tanh x - x) / x^3 for |x| <= 0.6, a polynomial in x^2
  p = fmaf(p, square, 2.079597e-2f);
  p = fmaf(p, square, -5.378383e-2f);
  p = fmaf(p, square, 1.3331924e-1f);
  p = fmaf(p, square, -3.3333298e-1f);
  const float near_zero = fmaf(x * square, p, x);
  const float elsewhere = 1.0f - 2.0f * reciprocal_approximate(1.0f + exp2_approximate(2.885390082f * size));
  return size < 0.6f ? near_zero : copysignf(elsewhere, x);
}

DEVICE double hyperbolic_tangent(double x) { return tanh(x); }

// Nonlinearities of pairs see rows in an order of their own, in which the two of a pair are neighbours: the threads that
// own them exchange what they need by one shuffle.
template <int PHI>
constexpr bool PAIRED = PHI == OPLU || PHI == MODRELU || PHI == MODRELU_COMPLEX;

// Nonlinearities with a bias: one number for each pair, or for each row.
template <int PHI>
constexpr bool BIASED = PHI >= MODRELU;

// Which number of the bias belongs to a position, and how many there are for n rows.
template <int PHI>
DEVICE int modulus_at(int position) {
  return PHI == REAL_MODRELU ? position : position / 2;
}

// The row of the arrays at a position of the kernel's order.
template <int PHI>
DEVICE int row_at(int position, int n) {
  if constexpr (PHI == OPLU || PHI == MODRELU) return position / 2 + (position & 1 ? n / 2 : 0);
  return position;
}

// False for every nonlinearity: a kernel for one that lacks its mathematics does not compile.
template <int PHI>
constexpr bool MISSING = false;

// What the thread that owns one position (of an even number before padding, if paired) needs to know.
template <int PHI, class S>
struct Activation {
  S slope;
  S bias;        // modReLU's, of this pair or row
  bool second;   // of its pair
  S grad_bias = 0;

  DEVICE Activation(double slope, const S* phi_bias, int position, int n)
      : slope(static_cast<S>(slope)), bias(0), second(PAIRED<PHI> && (position & 1)) {
    if (BIASED<PHI> && position < n) bias = phi_bias[modulus_at<PHI>(position)];
  }

  // phi of the real number a, for nonlinearities that are not paired.
  DEVICE S pointwise(S a) const {
    if constexpr (PHI == IDENTITY || PAIRED<PHI>) {
      return a;
    } else if constexpr (PHI == RELU) {
      return a <= 0 ? S(0) : a;
    } else if constexpr (PHI == LEAKY_RELU) {
      return a <= 0 ? slope * a : a;
    } else if constexpr (PHI == TANH) {
      return hyperbolic_tangent(a);
    } else if constexpr (PHI == REAL_MODRELU) {
      const bool vanishes = (a < 0 ? -a : a) + bias <= 0 || a == 0;
      return vanishes ? S(0) : a < 0 ? a - bias : a + bias;
    } else {
      static_assert(MISSING<PHI>, "the nonlinearity has no phi");
    }
  }

  DEVICE S pointwise_gradient(S g, S h) {
    if constexpr (PHI == IDENTITY || PAIRED<PHI>) {
      return g;
    } else if constexpr (PHI == RELU) {
      return h <= 0 ? S(0) : g;
    } else if constexpr (PHI == LEAKY_RELU) {
      return h <= 0 ? (slope > 0 ? slope * g : S(0)) : g;
    } else if constexpr (PHI == TANH) {
      return g * (1 - h * h);
    } else if constexpr (PHI == REAL_MODRELU) {
      if (h == 0) return S(0);
      grad_bias += h < 0 ? -g : g;
      return g;
    } else {
      static_assert(MISSING<PHI>, "the nonlinearity has no derivative");
    }
  }

  // phi of a pair, this thread's entry of it. `exchanged` is OPLU's flag.
  DEVICE S paired(S own, S partner, bool& exchanged) const {
    static_assert(!PAIRED<PHI> || PHI == OPLU || PHI == MODRELU || PHI == MODRELU_COMPLEX, "the nonlinearity has no phi");
    const S first = second ? partner : own, last = second ? own : partner;
    if constexpr (PHI == OPLU) {
      exchanged = first < last;
      return exchanged ? partner : own;
    }
    const S size = modulus(first, last);
    const bool vanishes = size + bias <= 0 || size == 0;
    return vanishes ? S(0) : own / size * (size + bias);
  }

  DEVICE S paired_gradient(S g, S g_partner, S h, S h_partner, bool exchanged) {
    static_assert(!PAIRED<PHI> || PHI == OPLU || PHI == MODRELU || PHI == MODRELU_COMPLEX, "it has no derivative");
    if constexpr (PHI == OPLU) return exchanged ? g_partner : g;
    const S size = second ? modulus(h_partner, h) : modulus(h, h_partner);  // |h| = |z| + b
    if (size == 0) return 0;
    const S inverse = 1 / size, along = h * inverse, along_partner = h_partner * inverse;
    const S radial = second ? along_partner * g_partner + along * g : along * g + along_partner * g_partner;
    grad_bias += radial;
    const S inward = along * radial;
    constexpr S EPSILON = static_cast<S>(sizeof(S) == 4 ? 0x1p-23 : 0x1p-52);
    return inward + size * (1 / larger(size - bias, size * EPSILON)) * (g - inward);  // |z| may be lost next to a large b
  }
};

}  // namespace householder
