// Layers of images: convolution and pooling.
#pragma once

#include "layers.h"

namespace winnow {

struct Window {
    int rows, cols;
    int row_stride, col_stride;
    int row_padding, col_padding;
};

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
          outputs_(out.value.shape.channels), weights_a_channel_(window.rows * window.cols),
          spread_(spread(out.slope, window)) {
        forward_ = {{}, channels_ * window.cols, window.rows, window.row_stride, window.col_stride,
                    window.row_padding, window.col_padding};
        for (int y = 0; y < window.rows; y++)
            for (int c = 0; c < channels_; c++)
                for (int x = 0; x < window.cols; x++) forward_.taps.push_back(tap(in.value, c, y, x, c, y, x, window));
        // The slope of a convolution's input is the convolution of its output's slope with the kernel turned round.
        backward_ = {{}, outputs_ * window.cols, window.rows, 1, 1,
                     window.rows - 1 - window.row_padding, window.cols - 1 - window.col_padding};
        for (int y = window.rows - 1; y >= 0; y--)
            for (int o = 0; o < outputs_; o++)
                for (int x = window.cols - 1; x >= 0; x--)
                    backward_.taps.push_back(tap(spread_, o, window.rows - 1 - y, window.cols - 1 - x,
                                                 o * channels_, y, x, window));
    }

    void forward(const T* parameters) override {
        const T* bias = weights_.bias < 0 ? nullptr : parameters + weights_.bias;
        convolve(in_.value, out_.value, forward_, parameters + weights_.weight, channels_ * weights_a_channel_, bias);
    }

    void backward(const T* parameters, T* gradients, int, bool to_input) override {
        if (weights_.bias >= 0) add_bias_gradients(gradients + weights_.bias);
        add_weight_gradients(gradients + weights_.weight);
        if (to_input)
            convolve(spread_, in_.slope, backward_, parameters + weights_.weight, weights_a_channel_, nullptr);
    }

  private:
    static Tap tap(const View<T>& view, int plane, int row, int col, int channel, int y, int x, const Window& window) {
        const int weight = (channel * window.rows + y) * window.cols + x;
        return {std::int32_t(plane * view.plane + row * view.row + col * view.col), weight};
    }

    // Seen from the input, the slopes of a convolution with strides lie apart, with zeros between them.
    static View<T> spread(View<T> slope, const Window& window) {
        Shape& shape = slope.shape;
        shape.rows = (shape.rows - 1) * window.row_stride + 1;
        shape.cols = (shape.cols - 1) * window.col_stride + 1;
        slope.row /= window.row_stride;
        slope.col /= window.col_stride;
        return slope;
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
                            gradient[(o + i) * channels_ * weights_a_channel_ + taps[j].w] +=
                                sum<T, L>(tile[i * count + j]);
                });
            });
        }
    }

    Tensor<T> in_, out_;
    Weights weights_;
    int channels_, outputs_, weights_a_channel_;
    View<T> spread_;
    Stencil forward_, backward_;
};

template <class T, int L>
class Pool : public Layer<T> {
    using V = Vector<T, L>;

  public:
    enum Kind { MAXIMUM, MEAN };

    Pool(Tensor<T> in, Tensor<T> out, Kind kind, Window window) : in_(in), out_(out), kind_(kind), window_(window) {}

    void forward(const T*) override {
        out_.value.each([&](int c, int y, int x) {
            V result = {};
            if (kind_ == MAXIMUM) result = load<T, L>(place(in_.value, c, y, x, 0, 0));
            in_window([&](int dy, int dx) {
                const V value = load<T, L>(place(in_.value, c, y, x, dy, dx));
                result = kind_ == MEAN ? result + value : ((value > result) | (value != value)) ? value : result;
            });
            store<T, L>(out_.value.at(c, y, x), kind_ == MEAN ? result / area() : result);
        });
    }

    void backward(const T*, T*, int, bool to_input) override {
        if (!to_input) return;
        const V zero = {};
        if (overlapping()) in_.slope.each([&](int c, int y, int x) { store<T, L>(in_.slope.at(c, y, x), zero); });
        out_.slope.each([&](int c, int y, int x) {
            V left = load<T, L>(out_.slope.at(c, y, x));
            if (kind_ == MEAN) left /= area();
            const V largest = load<T, L>(out_.value.at(c, y, x));
            in_window([&](int dy, int dx) {
                V share = left;
                if (kind_ == MAXIMUM) {  // the first of equals takes it all
                    const auto smaller = load<T, L>(place(in_.value, c, y, x, dy, dx)) < largest;
                    share = smaller ? zero : left;
                    left = smaller ? left : zero;
                }
                T* to = place(in_.slope, c, y, x, dy, dx);
                store<T, L>(to, overlapping() ? load<T, L>(to) + share : share);
            });
        });
    }

  private:
    T area() const { return T(window_.rows * window_.cols); }

    // Otherwise each place belongs to one window at most, and those between windows stay at zero.
    bool overlapping() const { return window_.rows > window_.row_stride || window_.cols > window_.col_stride; }

    T* place(const View<T>& view, int c, int y, int x, int dy, int dx) const {
        return view.at(c, y * window_.row_stride + dy, x * window_.col_stride + dx);
    }

    template <class Use>
    void in_window(Use use) const {
        for (int y = 0; y < window_.rows; y++)
            for (int x = 0; x < window_.cols; x++) use(y, x);
    }

    Tensor<T> in_, out_;
    Kind kind_;
    Window window_;
};

}  // namespace winnow
