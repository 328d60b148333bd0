// Convolution of images.
#pragma once

#include "layers.h"
#include "windows.h"

namespace winnow {

// A window's taps, row after row. Rows outside the image are left out by taking fewer taps; columns outside it are
// zeros that lie in memory around the image.
struct Stencil {
    std::vector<Tap> taps;
    int taps_a_row, rows, row_stride, col_stride, row_padding, col_padding;
};

template <class T, int L>
class Convolution : public Layer<T> {
    using V = Vector<T, L>;

  public:
    Convolution(Tensor<T> in, Tensor<T> out, Weights weights, Window window)
        : in_(in), out_(out), weights_(weights), channels_(in.value.shape.channels),
          outputs_(out.value.shape.channels), window_(window) {
        forward_ = {{}, channels_ * window.cols, window.rows, window.row_stride, window.col_stride,
                    window.row_padding, window.col_padding};
        for (int y = 0; y < window.rows; y++)
            for (int c = 0; c < channels_; c++)
                for (int x = 0; x < window.cols; x++) forward_.taps.push_back(tap(in.value, c, y, x, c, y, x));
        for (int row = 0; row < std::min(window.row_stride, in.value.shape.rows); row++)
            for (int col = 0; col < std::min(window.col_stride, in.value.shape.cols); col++)
                backward_.push_back(way_back(row, col));
    }

    void forward(const T* parameters) override {
        const T* bias = weights_.bias < 0 ? nullptr : parameters + weights_.bias;
        convolve(in_.value, out_.value, forward_, parameters + weights_.weight, channels_ * weights_a_channel(), bias);
    }

    void backward(const T* parameters, T* gradients, int, bool to_input) override {
        if (weights_.bias >= 0) add_bias_gradients(gradients + weights_.bias);
        add_weight_gradients(gradients + weights_.weight);
        if (!to_input) return;
        for (const WayBack& way : backward_)
            convolve(out_.slope, way.to, way.stencil, parameters + weights_.weight, weights_a_channel(), nullptr);
    }

  private:
    struct WayBack {
        View<T> to;  // some of the input's slopes
        Stencil stencil;
    };

    int weights_a_channel() const { return window_.rows * window_.cols; }

    Tap tap(const View<T>& view, int plane, int row, int col, int channel, int y, int x) const {
        const int weight = (channel * window_.rows + y) * window_.cols + x;
        return {std::int32_t(plane * view.plane + row * view.row + col * view.col), weight};
    }

    // The slope of a convolution's input is the convolution of its output's slope with the kernel turned round.
    WayBack way_back(int row, int col) const {
        const Shape in = in_.value.shape;
        const Phase rows(row, in.rows, window_.rows, window_.row_stride, window_.row_padding);
        const Phase cols(col, in.cols, window_.cols, window_.col_stride, window_.col_padding);
        const View<T>& slope = in_.slope;
        WayBack way = {{slope.at(0, row, col), {in.channels, rows.places, cols.places}, slope.plane,
                        slope.row * window_.row_stride, slope.col * window_.col_stride},
                       {{}, outputs_ * cols.size, rows.size, 1, 1, rows.padding, cols.padding}};
        for (int y = 0; y < rows.size; y++)
            for (int o = 0; o < outputs_; o++)
                for (int x = 0; x < cols.size; x++)
                    way.stencil.taps.push_back(tap(out_.slope, o, y, x, o * channels_,
                                                   rows.first + (rows.size - 1 - y) * window_.row_stride,
                                                   cols.first + (cols.size - 1 - x) * window_.col_stride));
        return way;
    }

    static void convolve(const View<T>& in, const View<T>& out, const Stencil& stencil, const T* w,
                         std::ptrdiff_t w_step, const T* bias) {
        for (int y = 0; y < out.shape.rows; y++) {
            const int top = y * stencil.row_stride - stencil.row_padding;
            const int first = std::max(0, -top), end = std::max(first, std::min(stencil.rows, in.shape.rows - top));
            const Tap* taps = stencil.taps.data() + first * stencil.taps_a_row;
            const int count = (end - first) * stencil.taps_a_row;
            const std::ptrdiff_t step = stencil.col_stride * in.col;
            in_pieces(out.shape.cols, SHORT_SIDE, [&](int x, int cols) {
                const T* from = in.at(0, top, x * stencil.col_stride - stencil.col_padding);
                in_pieces(out.shape.channels, LONG_SIDE, [&](int c, int channels) {
                    V tile[LONG_SIDE * SHORT_SIDE];
                    contract<T, L>({from, step, w + c * w_step, w_step, taps, count, tile}, channels, cols);
                    for (int o = 0; o < channels; o++)
                        for (int p = 0; p < cols; p++)
                            store<T, L>(out.at(c + o, y, x + p),
                                        bias ? tile[o * cols + p] + bias[c + o] : tile[o * cols + p]);
                });
            });
        }
    }

    void add_bias_gradients(T* gradient) {
        for (int o = 0; o < outputs_; o++) {
            V sums[4] = {};  // four, because an addition takes as long as four of them do side by side
            for (int y = 0; y < out_.slope.shape.rows; y++)
                for (int x = 0; x < out_.slope.shape.cols; x++) sums[x % 4] += load<T, L>(out_.slope.at(o, y, x));
            gradient[o] += sum<T, L>((sums[0] + sums[1]) + (sums[2] + sums[3]));
        }
    }

    void add_weight_gradients(T* gradient) {
        const Stencil& stencil = forward_;
        const int out_rows = out_.slope.shape.rows, in_rows = in_.value.shape.rows;
        for (int k = 0; k < stencil.rows; k++) {
            // Rows of the output for which the kernel's row k lies inside the image.
            const int lead = stencil.row_padding - k, stride = stencil.row_stride;
            const int first = lead > 0 ? (lead + stride - 1) / stride : 0;
            const int end = std::min(out_rows, (in_rows - 1 + lead + stride) / stride);
            if (end <= first) continue;
            const T* x = in_.value.at(0, first * stride - stencil.row_padding, -stencil.col_padding);
            in_pieces(stencil.taps_a_row, LONG_SIDE, [&](int t, int count) {
                const Tap* taps = stencil.taps.data() + k * stencil.taps_a_row + t;
                in_pieces(outputs_, SHORT_SIDE, [&](int o, int size) {
                    V tile[LONG_SIDE * SHORT_SIDE];
                    correlate<T, L>({out_.slope.at(o, first, 0), out_.slope.plane, out_.slope.row, out_.slope.col, x,
                                     stride * in_.value.row, stencil.col_stride * in_.value.col, taps, end - first,
                                     out_.slope.shape.cols, tile},
                                    size, count);
                    for (int i = 0; i < size; i++)
                        for (int j = 0; j < count; j++)
                            gradient[(o + i) * channels_ * weights_a_channel() + taps[j].w] +=
                                sum<T, L>(tile[i * count + j]);
                });
            });
        }
    }

    Tensor<T> in_, out_;
    Weights weights_;
    int channels_, outputs_;
    Window window_;
    Stencil forward_;
    std::vector<WayBack> backward_;  // one for each phase of rows and columns
};

}  // namespace winnow
