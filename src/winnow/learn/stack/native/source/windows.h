// Windows that move over an image.
#pragma once

#include <algorithm>

namespace winnow {

struct Window {
    int rows, cols;
    int row_stride, col_stride;
    int row_padding, col_padding;
};

// Back through a convolution with strides: every stride-th row (or column) of its input meets the same rows of the
// kernel, every stride-th one of them. So each such phase is a plain convolution of the slopes with part of the kernel.
struct Phase {
    int places;  // rows of the input that belong to it
    int first;  // its first row of the kernel
    int size;  // how many rows of the kernel it has
    int padding;  // of the plain convolution; below zero where it begins inside the slopes

    Phase(int index, int length, int kernel, int stride, int pad)
        : places(index < length ? (length - index - 1) / stride + 1 : 0), first((index + pad) % stride),
          size(first < kernel ? (kernel - first - 1) / stride + 1 : 0), padding(size - 1 - (index + pad) / stride) {}
};

// Zeros on both sides of an image.
struct Margin {
    int left = 0, right = 0;
};

// What a convolution's slopes need beside them for the way back to an input with so many columns.
inline Margin slope_margin(int in_cols, int out_cols, int kernel, int stride, int pad) {
    Margin margin;
    for (int index = 0; index < std::min(stride, in_cols); index++) {
        const Phase phase(index, in_cols, kernel, stride, pad);
        if (phase.size == 0) continue;
        const int last = phase.places - 1 - phase.padding + phase.size - 1;
        margin = {std::max(margin.left, phase.padding), std::max(margin.right, last - (out_cols - 1))};
    }
    return margin;
}

}  // namespace winnow
