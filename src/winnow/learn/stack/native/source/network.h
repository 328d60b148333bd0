// A line of layers with the memory that a block of L samples needs on its way through and back.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>

#include "convolution.h"
#include "interface.h"
#include "pooling.h"

namespace winnow {

// Taps say in 32 bits where a value or a weight is.
constexpr std::int64_t MOST_VALUES = INT32_MAX;

template <class T, int L>
class Network {
  public:
    Network(const ModelSpec& spec, bool training) : spec_(spec) {
        if (spec.parameters > MOST_VALUES) throw std::length_error("there are too many parameters");
        plan_shapes();
        std::vector<Tensor<T>> tensors = {{allocate(shapes_[0], value_margin(0)), {}}};
        for (int i = 0; i < spec.count; i++) {
            slope_needed_.push_back(training && has_parameters_before(i));
            tensors.push_back(in_place(i) ? tensors[i] : tensor(i + 1, training && has_parameters_before(i + 1)));
            layers_.push_back(make_layer(spec.layers[i], tensors[i], tensors[i + 1]));
            shown_.push_back(tensors[i + 1].value);
        }
        input_ = tensors.front().value;
        output_ = tensors.back();
    }

    int outputs() const { return output_.value.shape.size(); }
    const Tensor<T>& output() const { return output_; }

    // Samples side by side; lanes without a sample hold zeros. False if x does not have such rows.
    bool read(const T* x, std::int64_t count, const std::int64_t* rows, int samples) {
        const T* from[L];
        for (int s = 0; s < samples; s++) {
            if (rows[s] < 0 || rows[s] >= count) return false;
            from[s] = x + rows[s] * input_.shape.size();
        }
        std::ptrdiff_t i = 0;
        input_.each([&](int c, int y, int x) {
            T* to = input_.at(c, y, x);
            for (int s = 0; s < samples; s++) to[s] = from[s][i];
            for (int s = samples; s < L; s++) to[s] = 0;
            i++;
        });
        return true;
    }

    void forward(const T* parameters, int first, int end) {
        for (int i = first; i < end; i++) layers_[i]->forward(parameters);
    }

    // What a layer has made, until the next one runs, which may overwrite it.
    const View<T>& after(int layer) const { return shown_[layer]; }

    // From the slope of the output, which has been set; gradients are added to.
    void backward(const T* parameters, T* gradients, int samples) {
        for (int i = int(layers_.size()) - 1; i >= 0; i--)
            layers_[i]->backward(parameters, gradients, samples, slope_needed_[i]);
    }

  private:
    void plan_shapes() {
        shapes_.push_back({int(spec_.channels), int(spec_.rows), int(spec_.cols)});
        for (int i = 0; i < spec_.count; i++) {
            const LayerSpec& layer = spec_.layers[i];
            Shape shape = shapes_.back();
            if (layer.kind == DENSE) shape = {int(layer.outputs), 1, 1};
            if (layer.kind == FLATTEN) shape = {shape.size(), 1, 1};
            if (layer.kind == CONVOLUTION || layer.kind == MAX_POOL || layer.kind == MEAN_POOL) {
                shape.rows = int((shape.rows + 2 * layer.row_padding - layer.rows) / layer.row_stride + 1);
                shape.cols = int((shape.cols + 2 * layer.col_padding - layer.cols) / layer.col_stride + 1);
            }
            if (layer.kind == CONVOLUTION) shape.channels = int(layer.outputs);
            shapes_.push_back(shape);
        }
    }

    static bool has_parameters(const LayerSpec& layer) { return layer.kind == DENSE || layer.kind == CONVOLUTION; }

    bool has_parameters_before(int tensor) const {
        return std::any_of(spec_.layers, spec_.layers + tensor, has_parameters);
    }

    static bool is_activation(const LayerSpec& layer) {
        return layer.kind == RELU || layer.kind == TANH || layer.kind == SIGMOID;
    }

    // An activation overwrites what a dense layer or convolution made: its maker does not look at it again.
    bool in_place(int layer) const {
        return layer > 0 && is_activation(spec_.layers[layer]) && has_parameters(spec_.layers[layer - 1]);
    }

    // Zeros beside the image, for the convolution that reads it.
    Margin value_margin(int tensor) const {
        while (tensor < spec_.count && in_place(tensor)) tensor++;
        if (tensor == spec_.count || spec_.layers[tensor].kind != CONVOLUTION) return {};
        const int padding = int(spec_.layers[tensor].col_padding);
        return {padding, padding};
    }

    // Zeros beside slopes, for the convolution that goes back from them.
    Margin slope_margin(int tensor) const {
        const LayerSpec& maker = spec_.layers[tensor - 1];
        if (maker.kind != CONVOLUTION || !has_parameters_before(tensor - 1)) return {};
        return winnow::slope_margin(shapes_[tensor - 1].cols, shapes_[tensor].cols, int(maker.cols),
                                    int(maker.col_stride), int(maker.col_padding));
    }

    Tensor<T> tensor(int index, bool with_slope) {
        const View<T> value = allocate(shapes_[index], value_margin(index));
        return {value, with_slope ? allocate(shapes_[index], slope_margin(index)) : View<T>{}};
    }

    View<T> allocate(Shape shape, Margin margin) {
        const std::int64_t cols = std::int64_t(shape.cols) + margin.left + margin.right;
        const std::int64_t plane = shape.rows * cols * L, values = shape.channels * plane;
        if (values > MOST_VALUES) throw std::length_error("an image has too many values");
        T* data = static_cast<T*>(std::aligned_alloc(64, (values * sizeof(T) + 63) / 64 * 64));
        if (!data) throw std::bad_alloc();
        memory_.emplace_back(data);
        std::fill(data, data + values, T(0));
        return {data + margin.left * L, shape, plane, cols * L, L};
    }

    static std::unique_ptr<Layer<T>> make_layer(const LayerSpec& spec, const Tensor<T>& in, const Tensor<T>& out) {
        const Weights weights = {spec.weight, spec.bias};
        const Window window = {int(spec.rows),       int(spec.cols),        int(spec.row_stride),
                               int(spec.col_stride), int(spec.row_padding), int(spec.col_padding)};
        switch (spec.kind) {
            case DENSE: return std::make_unique<Dense<T, L>>(in, out, weights);
            case CONVOLUTION: return std::make_unique<Convolution<T, L>>(in, out, weights, window);
            case RELU: return std::make_unique<Activation<T, L>>(in, out, Activation<T, L>::RELU);
            case TANH: return std::make_unique<Activation<T, L>>(in, out, Activation<T, L>::TANH);
            case SIGMOID: return std::make_unique<Activation<T, L>>(in, out, Activation<T, L>::SIGMOID);
            case MAX_POOL: return std::make_unique<Pool<T, L>>(in, out, Pool<T, L>::MAXIMUM, window);
            case MEAN_POOL: return std::make_unique<Pool<T, L>>(in, out, Pool<T, L>::MEAN, window);
            default: return std::make_unique<Flatten<T, L>>(in, out);
        }
    }

    struct Free {
        void operator()(T* data) const { std::free(data); }
    };

    ModelSpec spec_;
    std::vector<Shape> shapes_;  // of a sample, and of what each layer makes of it
    std::vector<std::unique_ptr<T, Free>> memory_;
    std::vector<std::unique_ptr<Layer<T>>> layers_;
    std::vector<View<T>> shown_;
    std::vector<bool> slope_needed_;  // by a layer's input
    View<T> input_;
    Tensor<T> output_;
};

}  // namespace winnow
