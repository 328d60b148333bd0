// Layers on a block of L samples. Values are [channel][row][column][sample]: every inner loop runs over samples.
#pragma once

#include <algorithm>
#include <vector>

#include "functions.h"
#include "kernels.h"

namespace winnow {

struct Shape {
    int channels, rows, cols;
    int size() const { return channels * rows * cols; }
};

// An image of vectors in memory; rows and columns may lie apart, and zeros may lie around it.
template <class T>
struct View {
    T* data;
    Shape shape;
    std::ptrdiff_t plane, row, col;

    T* at(int c, int y, int x) const { return data + c * plane + y * row + x * col; }

    template <class Use>
    void each(Use use) const {
        for (int c = 0; c < shape.channels; c++)
            for (int y = 0; y < shape.rows; y++)
                for (int x = 0; x < shape.cols; x++) use(c, y, x);
    }
};

// What a layer reads or writes, and the slope of the loss with respect to it.
template <class T>
struct Tensor {
    View<T> value, slope;
};

template <class T>
class Layer {
  public:
    virtual ~Layer() = default;
    virtual void forward(const T* parameters) = 0;
    // Adds to the parameters' gradients and, where somebody needs it, sets the input's slope.
    virtual void backward(const T* parameters, T* gradients, int samples, bool to_input) = 0;
};

struct Weights {
    std::ptrdiff_t weight, bias;  // where they begin among the parameters; no bias: -1
};

template <class T, int L>
class Dense : public Layer<T> {
    using V = Vector<T, L>;

  public:
    Dense(Tensor<T> in, Tensor<T> out, Weights weights)
        : in_(in), out_(out), weights_(weights), inputs_(in.value.shape.size()), outputs_(out.value.shape.size()),
          pitch_((inputs_ + L - 1) / L * L), by_sample_(pitch_ * L) {
        for (int i = 0; i < inputs_; i++) forward_.push_back({i * L, i});
        for (int o = 0; o < outputs_; o++) backward_.push_back({o * L, o * inputs_});
        for (int s = 0; s < L; s++) samples_.push_back({s * pitch_, s});
    }

    void forward(const T* parameters) override {
        const T* bias = weights_.bias < 0 ? nullptr : parameters + weights_.bias;
        in_pieces(outputs_, LONG_SIDE, [&](int first, int size) {
            V tile[LONG_SIDE];
            const T* w = parameters + weights_.weight + first * inputs_;
            contract<T, L>({in_.value.data, 0, w, inputs_, forward_.data(), inputs_, tile}, size, 1);
            for (int o = 0; o < size; o++)
                store<T, L>(out_.value.data + (first + o) * L, bias ? tile[o] + bias[first + o] : tile[o]);
        });
    }

    void backward(const T* parameters, T* gradients, int samples, bool to_input) override {
        if (weights_.bias >= 0)
            for (int o = 0; o < outputs_; o++)
                gradients[weights_.bias + o] += sum<T, L>(load<T, L>(out_.slope.data + o * L));
        add_weight_gradients(gradients + weights_.weight, samples);
        if (to_input) set_input_slope(parameters + weights_.weight);
    }

  private:
    void set_input_slope(const T* weight) {
        in_pieces(inputs_, LONG_SIDE, [&](int first, int size) {
            V tile[LONG_SIDE];
            contract<T, L>({out_.slope.data, 0, weight + first, 1, backward_.data(), outputs_, tile}, size, 1);
            for (int i = 0; i < size; i++) store<T, L>(in_.slope.data + (first + i) * L, tile[i]);
        });
    }

    // With one position an image, vectors over samples would have to be summed up at once; so vectors over inputs.
    void add_weight_gradients(T* gradient, int samples) {
        for (int i = 0; i < inputs_; i++)
            for (int s = 0; s < L; s++) by_sample_[s * pitch_ + i] = in_.value.data[i * L + s];
        in_pieces(pitch_ / L, SHORT_SIDE, [&](int vector, int vectors) {
            in_pieces(outputs_, LONG_SIDE, [&](int first, int size) {
                V tile[LONG_SIDE * SHORT_SIDE];
                const T* x = by_sample_.data() + vector * L;
                contract<T, L>({x, L, out_.slope.data + first * L, L, samples_.data(), samples, tile}, size, vectors);
                for (int o = 0; o < size; o++)
                    for (int v = 0; v < vectors; v++)
                        add(gradient + (first + o) * inputs_, (vector + v) * L, tile[o * vectors + v]);
            });
        });
    }

    void add(T* row, int from, V values) {
        if (from + L <= inputs_) {
            store<T, L>(row + from, load<T, L>(row + from) + values);
        } else {
            for (int i = from; i < inputs_; i++) row[i] += values[i - from];
        }
    }

    Tensor<T> in_, out_;
    Weights weights_;
    int inputs_, outputs_, pitch_;
    std::vector<T> by_sample_;  // [sample][input]
    std::vector<Tap> forward_, backward_, samples_;
};

template <class T, int L>
class Activation : public Layer<T> {
    using V = Vector<T, L>;

  public:
    enum Kind { RELU, TANH, SIGMOID };

    Activation(Tensor<T> in, Tensor<T> out, Kind kind) : in_(in), out_(out), kind_(kind) {}

    void forward(const T*) override {
        if (kind_ == RELU) apply([](V x) { return x < 0 ? V{} : x; });
        if (kind_ == TANH) apply([](V x) { return tanh<T, L>(x); });
        if (kind_ == SIGMOID) apply([](V x) { return logistic<T, L>(x); });
    }

    // All three derivatives follow from the output.
    void backward(const T*, T*, int, bool to_input) override {
        if (!to_input) return;
        if (kind_ == RELU) apply_slope([](V slope, V y) { return y <= 0 ? V{} : slope; });
        if (kind_ == TANH) apply_slope([](V slope, V y) { return slope * (1 - y * y); });
        if (kind_ == SIGMOID) apply_slope([](V slope, V y) { return slope * y * (1 - y); });
    }

  private:
    template <class Function>
    void apply(Function function) {
        in_.value.each([&](int c, int y, int x) {
            store<T, L>(out_.value.at(c, y, x), function(load<T, L>(in_.value.at(c, y, x))));
        });
    }

    template <class Function>
    void apply_slope(Function function) {
        in_.slope.each([&](int c, int y, int x) {
            const V slope = load<T, L>(out_.slope.at(c, y, x)), value = load<T, L>(out_.value.at(c, y, x));
            store<T, L>(in_.slope.at(c, y, x), function(slope, value));
        });
    }

    Tensor<T> in_, out_;
    Kind kind_;
};

// Images become plain lists of values.
template <class T, int L>
class Flatten : public Layer<T> {
  public:
    Flatten(Tensor<T> in, Tensor<T> out) : in_(in), out_(out) {}

    void forward(const T*) override {
        T* to = out_.value.data;
        in_.value.each([&](int c, int y, int x) { store<T, L>(to, load<T, L>(in_.value.at(c, y, x))), to += L; });
    }

    void backward(const T*, T*, int, bool to_input) override {
        if (!to_input) return;
        const T* from = out_.slope.data;
        in_.slope.each([&](int c, int y, int x) { store<T, L>(in_.slope.at(c, y, x), load<T, L>(from)), from += L; });
    }

  private:
    Tensor<T> in_, out_;
};

}  // namespace winnow
