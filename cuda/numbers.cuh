// Arithmetic with one name for float, double and complex numbers.
namespace householder {

DEVICE float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
DEVICE double multiply_add(double a, double b, double c) { return fma(a, b, c); }
DEVICE float square_root(float x) { return sqrtf(x); }
DEVICE double square_root(double x) { return sqrt(x); }
DEVICE float larger(float a, float b) { return fmaxf(a, b); }
DEVICE double larger(double a, double b) { return fmax(a, b); }

// As NumPy, CuPy and torch lay it out.
template <class R>
struct alignas(2 * sizeof(R)) Complex {
  R re, im;

  DEVICE Complex operator-() const { return {-re, -im}; }
  DEVICE Complex operator+(Complex b) const { return {re + b.re, im + b.im}; }
  DEVICE Complex operator-(Complex b) const { return {re - b.re, im - b.im}; }
};

// The real type of a number, and the type in which sums of many products are formed.
template <class T>
struct Number {
  using Real = T;
  using Wide = double;
};

template <class R>
struct Number<Complex<R>> {
  using Real = R;
  using Wide = Complex<double>;
};

template <class T>
using RealOf = typename Number<T>::Real;
template <class T>
using WideOf = typename Number<T>::Wide;

template <class T>
constexpr bool IS_COMPLEX = sizeof(T) == 2 * sizeof(RealOf<T>);

// a b + c
template <class R>
DEVICE Complex<R> multiply_add(Complex<R> a, Complex<R> b, Complex<R> c) {
  return {multiply_add(a.re, b.re, multiply_add(-a.im, b.im, c.re)), multiply_add(a.re, b.im, multiply_add(a.im, b.re, c.im))};
}

DEVICE float conjugate(float x) { return x; }
DEVICE double conjugate(double x) { return x; }
template <class R>
DEVICE Complex<R> conjugate(Complex<R> x) {
  return {x.re, -x.im};
}

DEVICE float scaled(float a, float x) { return a * x; }
DEVICE double scaled(double a, double x) { return a * x; }
template <class R>
DEVICE Complex<R> scaled(R a, Complex<R> x) {
  return {a * x.re, a * x.im};
}

DEVICE float real_part(float x) { return x; }
DEVICE double real_part(double x) { return x; }
template <class R>
DEVICE R real_part(Complex<R> x) {
  return x.re;
}

DEVICE float imaginary_part(float) { return 0; }
DEVICE double imaginary_part(double) { return 0; }
template <class R>
DEVICE R imaginary_part(Complex<R> x) {
  return x.im;
}

// The larger of |re| and |im|.
template <class T>
DEVICE RealOf<T> size_of(T x) {
  const RealOf<T> re = real_part(x), im = imaginary_part(x);
  return larger(re < 0 ? -re : re, im < 0 ? -im : im);
}

template <class T>
DEVICE RealOf<T> squared_modulus(T x) {
  const RealOf<T> re = real_part(x), im = imaginary_part(x);
  return multiply_add(re, re, im * im);
}

template <class T>
DEVICE T number(RealOf<T> re, RealOf<T> im) {
  if constexpr (IS_COMPLEX<T>) {
    return {re, im};
  } else {
    return re;
  }
}

// To another precision.
template <class T, class F>
DEVICE T converted(F x) {
  return number<T>(static_cast<RealOf<T>>(real_part(x)), static_cast<RealOf<T>>(imaginary_part(x)));
}

// The smallest normal number: a column whose norm is less stands for the identity. (Chosen before it is narrowed: compilers
// refuse a number that does not fit even where it is not chosen.)
template <class R>
constexpr R TINY = static_cast<R>(sizeof(R) == 4 ? 0x1p-126 : 0x1p-1022);

}  // namespace householder
