// exp, tanh and the logistic function of L samples at once, to the last bit or two: calling the library's own for one
// sample after another takes longer than the layers around them.
#pragma once

#include <cstdint>

#include "vectors.h"

namespace winnow {

template <class T>
struct Precision;

template <>
struct Precision<float> {
    using Bits = std::uint32_t;
    static constexpr int MANTISSA = 23, BIAS = 127, TERMS = 7;
    // log 2 in two parts; the first has so few digits that its product with a whole number is exact.
    static constexpr float LN2_HIGH = 0.693359375f, LN2_LOW = -2.12194440e-4f;
    static constexpr float LOWEST = -87, HIGHEST = 87;  // between them exp is a normal number
};

template <>
struct Precision<double> {
    using Bits = std::uint64_t;
    static constexpr int MANTISSA = 52, BIAS = 1023, TERMS = 13;
    static constexpr double LN2_HIGH = 6.93145751953125e-1, LN2_LOW = 1.42860682030941723212e-6;
    static constexpr double LOWEST = -708, HIGHEST = 708;
};

// e^x = scale · (1 + rest), where scale is a power of two and |rest| < 0.42.
template <class T, int L>
struct Power {
    Vector<T, L> scale, rest;
};

template <class T, int L>
inline Power<T, L> power_of_e(Vector<T, L> x) {
    using P = Precision<T>;
    using Bits = typename P::Bits;
    using V = Vector<T, L>;
    // Added to this, a number is rounded to a whole one, which then stands in the last bits.
    constexpr T SHIFT = T(1.5) * T(Bits(1) << P::MANTISSA), LOG2_E = T(1.44269504088896340736);
    const V shifted = x * LOG2_E + SHIFT, whole = shifted - SHIFT;
    const V r = (x - whole * P::LN2_HIGH) - whole * P::LN2_LOW;
    V series = {};  // Σ r^n / (n + 1)!
    T factorial = 1;
    for (int n = 2; n <= P::TERMS; n++) factorial *= T(n);
#pragma GCC unroll 16
    for (int n = P::TERMS; n > 0; n--) {
        series = series * r + T(1) / factorial;
        factorial /= T(n);
    }
    Vector<Bits, L> bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + Bits(P::BIAS)) << P::MANTISSA;
    V scale;
    std::memcpy(&scale, &bits, sizeof scale);
    return {scale, r * series};
}

// Very large arguments give a very large number, not infinity; NaN stays what it is.
template <class T, int L>
inline Vector<T, L> exp(Vector<T, L> x) {
    using P = Precision<T>;
    const Vector<T, L> low = x < P::LOWEST ? P::LOWEST + Vector<T, L>{} : x;
    const auto power = power_of_e<T, L>(low > P::HIGHEST ? P::HIGHEST + Vector<T, L>{} : low);
    return x < P::LOWEST ? Vector<T, L>{} : power.scale * power.rest + power.scale;
}

// -m / (m + 2) with m = e^(-2|x|) - 1, which loses nothing where x is small.
template <class T, int L>
inline Vector<T, L> tanh(Vector<T, L> x) {
    constexpr T ONE = 20;  // from here on it is 1 in any precision
    const Vector<T, L> size = x < 0 ? -x : x;
    const auto power = power_of_e<T, L>(-2 * (size > ONE ? ONE + Vector<T, L>{} : size));
    const Vector<T, L> m = power.scale * power.rest + (power.scale - 1), result = -m / (m + 2);
    return x < 0 ? -result : result;
}

template <class T, int L>
inline Vector<T, L> logistic(Vector<T, L> x) {
    return 1 / (1 + exp<T, L>(-x));
}

}  // namespace winnow
