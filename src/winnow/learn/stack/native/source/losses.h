// Losses of a block of samples, and their slopes. Lanes without a sample get a slope of zero.
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
void cross_entropy(const Tensor<T>& output, const std::int64_t* right, int samples, T weight, T* losses) {
    using V = Vector<T, L>;
    const int outputs = output.value.shape.size();
    const T* values = output.value.data;
    T* slopes = output.slope.data;
    V largest = load<T, L>(values), total = {}, weights = {};
    for (int o = 1; o < outputs; o++) {
        const V value = load<T, L>(values + o * L);
        largest = value > largest ? value : largest;
    }
    for (int o = 0; o < outputs; o++) {
        const V power = exp<T, L>(load<T, L>(values + o * L) - largest);
        store<T, L>(slopes + o * L, power);
        total += power;
    }
    for (int s = 0; s < samples; s++) weights[s] = weight;
    weights /= total;
    for (int o = 0; o < outputs; o++) store<T, L>(slopes + o * L, load<T, L>(slopes + o * L) * weights);
    for (int s = 0; s < samples; s++) {
        slopes[right[s] * L + s] -= weight;
        losses[s] = std::log(total[s]) + largest[s] - values[right[s] * L + s];
    }
}

}  // namespace winnow
