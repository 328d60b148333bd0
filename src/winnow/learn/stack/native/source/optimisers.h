// Updates of all parameters of one client, as torch.optim.SGD and torch.optim.Adam make them, and accelerated ones.
#pragma once

#include <cmath>
#include <vector>

#include "interface.h"

namespace winnow {

// A client's own, or what all share; null where there is none.
template <class T>
const T* row(const ClientRows& rows, std::int64_t client) {
    return rows.values ? static_cast<const T*>(rows.values) + client * rows.step : nullptr;
}

// What is added to the gradients of one client: proximal_weight · (parameters - anchor) + gradient_offset.
template <class T>
class Correction {
  public:
    Correction(const RoundSpec& round, std::int64_t client)
        : proximal_weight_(T(round.proximal_weight)),
          anchor_(row<T>(round.anchor, client)),
          gradient_offset_(row<T>(round.gradient_offset, client)) {}

    void add_to(T* __restrict gradients, const T* __restrict parameters, std::size_t count) const {
        if (proximal_weight_ != 0)
            for (std::size_t i = 0; i < count; i++) gradients[i] += proximal_weight_ * (parameters[i] - anchor_[i]);
        if (gradient_offset_)
            for (std::size_t i = 0; i < count; i++) gradients[i] += gradient_offset_[i];
    }

  private:
    T proximal_weight_;
    const T *anchor_, *gradient_offset_;
};

template <class T>
class Optimiser {
  public:
    // `start` are the client's parameters; `first` and `second` its slots, where they do not start afresh.
    Optimiser(const OptimiserSpec& spec, std::size_t parameters, const T* start, const T* first, const T* second)
        : spec_(spec) {
        if (spec.kind == ADAM || spec.momentum != 0) first_.assign(parameters, T(0));
        if (spec.kind == ADAM) second_.assign(parameters, T(0));
        if (spec.kind == ACCELERATED) {
            if (!first) first = start;
            if (!second) second = start;
            first_.assign(first, first + parameters);
            second_.assign(second, second + parameters);
        }
    }

    // Steps are numbered from 1.
    void step(T* parameters, const T* gradients, std::size_t count, std::int64_t number) {
        if (spec_.kind == GRADIENT) std::copy(gradients, gradients + count, parameters);
        if (spec_.kind == SGD && first_.empty()) descend(parameters, gradients, count);
        if (spec_.kind == SGD && !first_.empty()) descend_with_momentum(parameters, gradients, count);
        if (spec_.kind == ADAM) adam(parameters, gradients, count, number);
        if (spec_.kind == ACCELERATED) accelerate(parameters, gradients, count);
    }

    // Leaves in the parameters what the training is to give.
    void finish(T* parameters) const {
        if (spec_.kind == ACCELERATED) std::copy(second_.begin(), second_.end(), parameters);
    }

    const std::vector<T>& first() const { return first_; }

  private:
    void descend(T* __restrict p, const T* __restrict g, std::size_t count) {
        const T rate = T(spec_.rate), decay = T(spec_.weight_decay);
        for (std::size_t i = 0; i < count; i++) p[i] -= rate * (g[i] + decay * p[i]);
    }

    void descend_with_momentum(T* __restrict p, const T* __restrict g, std::size_t count) {
        const T rate = T(spec_.rate), decay = T(spec_.weight_decay), momentum = T(spec_.momentum);
        const T ahead = spec_.nesterov != 0 ? momentum : T(1), now = spec_.nesterov != 0 ? T(1) : T(0);
        T* __restrict velocity = first_.data();
        for (std::size_t i = 0; i < count; i++) {
            const T gradient = g[i] + decay * p[i];
            velocity[i] = momentum * velocity[i] + gradient;
            p[i] -= rate * (now * gradient + ahead * velocity[i]);
        }
    }

    void adam(T* __restrict p, const T* __restrict g, std::size_t count, std::int64_t number) {
        const T beta1 = T(spec_.beta1), beta2 = T(spec_.beta2), decay = T(spec_.weight_decay);
        const T epsilon = T(spec_.epsilon);
        const T rate = T(spec_.rate / (1 - std::pow(spec_.beta1, double(number))));
        const T unbias = T(1 / std::sqrt(1 - std::pow(spec_.beta2, double(number))));
        T *__restrict mean = first_.data(), *__restrict square = second_.data();
        for (std::size_t i = 0; i < count; i++) {
            const T gradient = g[i] + decay * p[i];
            mean[i] = beta1 * mean[i] + (1 - beta1) * gradient;
            square[i] = beta2 * square[i] + (1 - beta2) * gradient * gradient;
            p[i] -= rate * mean[i] / (std::sqrt(square[i]) * unbias + epsilon);
        }
    }

    // Of the three sequences the parameters are md; the slots are w and ag.
    void accelerate(T* __restrict p, const T* __restrict g, std::size_t count) {
        const T rate = T(spec_.rate), decay = T(spec_.weight_decay), gain = T(spec_.gain);
        const T to_md = T(1 / spec_.alpha), to_w = T(1 / spec_.beta);
        T *__restrict w = first_.data(), *__restrict ag = second_.data();
        for (std::size_t i = 0; i < count; i++) {
            const T step = rate * (g[i] + decay * p[i]);
            ag[i] = p[i] - step;
            w[i] += to_md * (p[i] - w[i]) - gain * step;
            p[i] = ag[i] + to_w * (w[i] - ag[i]);
        }
    }

    OptimiserSpec spec_;
    std::vector<T> first_, second_;
};

}  // namespace winnow
