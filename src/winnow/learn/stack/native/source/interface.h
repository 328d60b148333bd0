// What is passed between Python and compiled code; ctypes_structures.py has the same structures.
#pragma once

#include <cstdint>

namespace winnow {

enum LayerKind : std::int64_t { DENSE, CONVOLUTION, RELU, TANH, SIGMOID, MAX_POOL, MEAN_POOL, FLATTEN };
enum LossKind : std::int64_t { SQUARED_ERROR, CROSS_ENTROPY };
enum Failure : int { NONE, BAD_CLASS, BAD_ROW, TOO_LARGE, NO_MEMORY };
enum OptimiserKind : std::int64_t { GRADIENT, SGD, ADAM, ACCELERATED };

struct LayerSpec {
    std::int64_t kind;
    std::int64_t outputs;  // of a dense layer or a convolution
    std::int64_t rows, cols, row_stride, col_stride, row_padding, col_padding;  // of a window
    std::int64_t weight, bias;  // where they begin among the parameters; no bias: -1
};

struct ModelSpec {
    const LayerSpec* layers;
    std::int64_t count;
    std::int64_t channels, rows, cols;  // of a sample
    std::int64_t parameters;
    std::int64_t loss;
};

struct OptimiserSpec {
    std::int64_t kind;  // GRADIENT leaves the last gradient in the place of the parameters
    double rate, momentum, nesterov, weight_decay, beta1, beta2, epsilon;
    double alpha, beta, gain;  // of accelerated steps; the gain is gamma / rate
};

struct ClientRows {
    const void* values;  // [K, P], or [P] for all clients
    std::int64_t step;  // from one client's to the next: P or 0
};

struct RoundSpec {
    const void* x;  // [N, sample]
    const void* y;  // [N, outputs], or [N] classes of 64 bits
    std::int64_t samples;  // N
    const std::int64_t* batches;  // [S, K, B] rows of x and y
    const std::int64_t* sizes;  // [S, K] samples in each batch; a client ends at its first 0
    std::int64_t steps, clients, width;
    std::int64_t threads;
    ClientRows start;
    double proximal_weight;  // how much of (parameters - anchor) is added to gradients
    ClientRows anchor;
    ClientRows gradient_offset;  // added to gradients; null: none
    const std::uint8_t* trainable;  // [P] whether a parameter is trained; null: all are
    ClientRows first_slot, second_slot;  // where the optimiser's own tensors start; null: afresh
    void* result;  // [K, P]
    void* first_slot_result;  // [K, P]; null: not needed
    void* losses;  // [S, K, B]
};

struct ForwardSpec {
    const void* parameters;  // [P]
    const void* x;  // [N, sample]
    std::int64_t samples;  // N
    const std::int64_t* rows;  // [n] of x
    std::int64_t count;
    std::int64_t threads;
    std::int64_t watched_layer;  // a layer whose output is kept, summed over each channel's image; -1: none
    void* watched_outputs;  // [n, channels]
    void* outputs;  // [n, outputs]; null: not needed
};

}  // namespace winnow
