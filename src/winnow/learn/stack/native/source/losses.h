// Losses of single samples, and their slopes.
#pragma once

#include <cmath>

#include "layers.h"

namespace winnow {

// The mean over outputs of (output - target)²; the slope is times the sample's weight in its batch.
template <class T, int L>
T squared_error(const Tensor<T>& output, const T* target, int sample, T weight) {
    const int outputs = output.value.shape.size();
    T total = 0;
    for (int o = 0; o < outputs; o++) {
        const T difference = output.value.data[o * L + sample] - target[o];
        total += difference * difference;
        output.slope.data[o * L + sample] = 2 * weight / outputs * difference;
    }
    return total / outputs;
}

// log Σ exp(output) - output of the right class; its slope is softmax - one-hot.
template <class T, int L>
T cross_entropy(const Tensor<T>& output, std::int64_t right, int sample, T weight) {
    const int outputs = output.value.shape.size();
    const T* values = output.value.data + sample;
    T* slopes = output.slope.data + sample;
    T largest = values[0], total = 0;
    for (int o = 1; o < outputs; o++) largest = std::max(largest, values[o * L]);
    for (int o = 0; o < outputs; o++) total += slopes[o * L] = std::exp(values[o * L] - largest);
    for (int o = 0; o < outputs; o++) slopes[o * L] *= weight / total;
    slopes[right * L] -= weight;
    return std::log(total) + largest - values[right * L];
}

}  // namespace winnow
