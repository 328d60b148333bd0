// Vectors of L samples' values, by the compiler's own vector types: no intrinsics, any processor.
#pragma once

#include <cstddef>
#include <cstring>

namespace winnow {

template <class T, int L>
struct VectorOf {
    typedef T type __attribute__((vector_size(L * sizeof(T))));
};

template <class T, int L>
using Vector = typename VectorOf<T, L>::type;

template <class T, int L>
inline Vector<T, L> load(const T* from) {
    Vector<T, L> value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

template <class T, int L>
inline void store(T* to, Vector<T, L> value) {
    std::memcpy(to, &value, sizeof value);
}

// Pairwise, so that the order of additions is fixed and short.
template <class T, int L>
inline T sum(Vector<T, L> value) {
    if constexpr (L == 1) {
        return value[0];
    } else {
        T halves[L];
        store<T, L>(halves, value);
        return sum<T, L / 2>(load<T, L / 2>(halves) + load<T, L / 2>(halves + L / 2));
    }
}

}  // namespace winnow
