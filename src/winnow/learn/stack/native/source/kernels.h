// The two loops in which all the time goes. Both keep a tile of sums in registers.
//
//   contract:   sum[o][p] = Σ_t  weight[o][t] · x[t][p]        a number times a vector of samples
//   correlate:  sum[o][t] = Σ_p  slope[o][p] · x[t][p]         a vector times a vector, p over an image's positions
//
// A tap is a place that a kernel looks at: an input of a dense layer, or one (channel, row, column) of a convolution.
#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "vectors.h"

namespace winnow {

// Tiles use most of the registers that a processor has: 32 with AVX-512, else 16.
#if defined(__AVX512F__)
constexpr int LONG_SIDE = 6, SHORT_SIDE = 4;
#else
constexpr int LONG_SIDE = 4, SHORT_SIDE = 3;
#endif

struct Tap {
    std::int32_t x;  // where its values begin, seen from the values of a kernel's first tap
    std::int32_t w;  // where its weight is, seen from the first weight of an output
};

template <class T, int L>
struct Contraction {
    const T* x;
    std::ptrdiff_t x_step;  // from one position to the next
    const T* w;
    std::ptrdiff_t w_step;  // from one output to the next
    const Tap* taps;
    std::ptrdiff_t count;
    Vector<T, L>* tile;  // [outputs][positions]
};

template <class T, int L, int OUTPUTS, int POSITIONS>
void contract_tile(const Contraction<T, L>& job) {
    Vector<T, L> sums[OUTPUTS][POSITIONS] = {};
    for (std::ptrdiff_t t = 0; t < job.count; t++) {
        const T* x = job.x + job.taps[t].x;
        const T* w = job.w + job.taps[t].w;
        Vector<T, L> values[POSITIONS];
#pragma GCC unroll 8
        for (int p = 0; p < POSITIONS; p++) values[p] = load<T, L>(x + p * job.x_step);
#pragma GCC unroll 8
        for (int o = 0; o < OUTPUTS; o++) {
            const T weight = w[o * job.w_step];
#pragma GCC unroll 8
            for (int p = 0; p < POSITIONS; p++) sums[o][p] += weight * values[p];
        }
    }
#pragma GCC unroll 8
    for (int o = 0; o < OUTPUTS; o++)
#pragma GCC unroll 8
        for (int p = 0; p < POSITIONS; p++) job.tile[o * POSITIONS + p] = sums[o][p];
}

template <class T, int L>
struct Correlation {
    const T* slope;
    std::ptrdiff_t slope_plane, slope_row, slope_col;
    const T* x;
    std::ptrdiff_t x_row, x_col;
    const Tap* taps;
    int rows, cols;
    Vector<T, L>* tile;  // [outputs][taps]
};

template <class T, int L, int OUTPUTS, int TAPS>
void correlate_tile(const Correlation<T, L>& job) {
    Vector<T, L> sums[OUTPUTS][TAPS] = {};
    for (int row = 0; row < job.rows; row++) {
        const T* slope = job.slope + row * job.slope_row;
        const T* x[TAPS];
#pragma GCC unroll 8
        for (int t = 0; t < TAPS; t++) x[t] = job.x + job.taps[t].x + row * job.x_row;
        for (int col = 0; col < job.cols; col++) {
            Vector<T, L> slopes[OUTPUTS];
#pragma GCC unroll 8
            for (int o = 0; o < OUTPUTS; o++) slopes[o] = load<T, L>(slope + o * job.slope_plane + col * job.slope_col);
#pragma GCC unroll 8
            for (int t = 0; t < TAPS; t++) {
                const Vector<T, L> value = load<T, L>(x[t] + col * job.x_col);
#pragma GCC unroll 8
                for (int o = 0; o < OUTPUTS; o++) sums[o][t] += slopes[o] * value;
            }
        }
    }
#pragma GCC unroll 8
    for (int o = 0; o < OUTPUTS; o++)
#pragma GCC unroll 8
        for (int t = 0; t < TAPS; t++) job.tile[o * TAPS + t] = sums[o][t];
}

// Tiles of every size up to the largest: kernels come in all numbers of channels and columns.
template <class Job>
using Kernel = void (*)(const Job&);

template <class T, int L, int... I>
constexpr auto contract_table(std::integer_sequence<int, I...>) {
    return std::array<Kernel<Contraction<T, L>>, sizeof...(I)>{
        contract_tile<T, L, I / SHORT_SIDE + 1, I % SHORT_SIDE + 1>...};
}

template <class T, int L, int... I>
constexpr auto correlate_table(std::integer_sequence<int, I...>) {
    return std::array<Kernel<Correlation<T, L>>, sizeof...(I)>{
        correlate_tile<T, L, I / LONG_SIDE + 1, I % LONG_SIDE + 1>...};
}

using AllTiles = std::make_integer_sequence<int, LONG_SIDE * SHORT_SIDE>;

template <class T, int L>
void contract(const Contraction<T, L>& job, int outputs, int positions) {
    static constexpr auto table = contract_table<T, L>(AllTiles{});
    table[(outputs - 1) * SHORT_SIDE + positions - 1](job);
}

template <class T, int L>
void correlate(const Correlation<T, L>& job, int outputs, int taps) {
    static constexpr auto table = correlate_table<T, L>(AllTiles{});
    table[(outputs - 1) * LONG_SIDE + taps - 1](job);
}

// Cut a length into pieces of nearly the same size, none above `most`: 10 by 4 is 4 + 3 + 3.
template <class Use>
void in_pieces(int length, int most, Use use) {
    const int pieces = (length + most - 1) / most;
    for (int piece = 0, first = 0; piece < pieces; piece++) {
        const int size = length / pieces + (piece < length % pieces);
        use(first, size);
        first += size;
    }
}

}  // namespace winnow
