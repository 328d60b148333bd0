// Pooling of images.
#pragma once

#include "layers.h"
#include "windows.h"

namespace winnow {

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
        if (!tiling()) in_.slope.each([&](int c, int y, int x) { store<T, L>(in_.slope.at(c, y, x), zero); });
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
                store<T, L>(to, tiling() ? share : load<T, L>(to) + share);
            });
        });
    }

  private:
    T area() const { return T(window_.rows * window_.cols); }

    // Whether each place of the input belongs to one window. Otherwise some belong to several, or to none.
    bool tiling() const {
        const Shape in = in_.value.shape, out = out_.value.shape;
        return window_.rows == window_.row_stride && window_.cols == window_.col_stride &&
               out.rows * window_.rows == in.rows && out.cols * window_.cols == in.cols;
    }

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
