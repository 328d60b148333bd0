// Local training of many clients, one client after another on each thread.
//
// A client's arithmetic is done by one thread in one order, whoever else is in the cohort and however many threads there
// are: results do not depend on either, bit for bit.
#include <atomic>
#include <system_error>
#include <thread>

#include "losses.h"
#include "network.h"
#include "optimisers.h"

namespace winnow {
namespace {

constexpr int BAD_CLASS = 1, NO_MEMORY = 2;

// Work through jobs 0 … count - 1 on several threads; `begin` makes what a thread needs, a callable for one job.
template <class Begin>
int on_threads(std::int64_t count, std::int64_t threads, Begin begin) {
    std::atomic<std::int64_t> next{0};
    std::atomic<int> failure{0};
    const auto work = [&] {
        try {
            auto job = begin();
            for (std::int64_t i = next++; i < count && !failure; i = next++)
                if (const int code = job(i)) failure = code;
        } catch (const std::bad_alloc&) {
            failure = NO_MEMORY;
        }
    };
    std::vector<std::thread> helpers;
    try {
        for (std::int64_t i = 1; i < std::min(threads, count); i++) helpers.emplace_back(work);
    } catch (const std::system_error&) {
        // No more threads to be had: those that there are do the work.
    }
    work();
    for (auto& helper : helpers) helper.join();
    return failure;
}

template <class T, int L>
class ClientTraining {
  public:
    ClientTraining(const ModelSpec& model, const OptimiserSpec& optimiser, const RoundSpec& round)
        : model_(model), how_(optimiser), round_(round), network_(model, true), parameters_(model.parameters),
          gradients_(model.parameters) {}

    int operator()(std::int64_t client) {
        const T* start = static_cast<const T*>(round_.start) + client * round_.start_step;
        std::copy(start, start + model_.parameters, parameters_.begin());
        Optimiser<T> optimiser(how_, parameters_.size());
        for (std::int64_t step = 0; step < round_.steps; step++) {
            const std::int64_t place = step * round_.clients + client, size = round_.sizes[place];
            if (size == 0) break;
            std::fill(gradients_.begin(), gradients_.end(), T(0));
            for (std::int64_t first = 0; first < size; first += L)
                if (!add_gradients(place * round_.width + first, int(std::min<std::int64_t>(L, size - first)), size))
                    return BAD_CLASS;
            optimiser.step(parameters_.data(), gradients_.data(), parameters_.size(), step + 1);
        }
        std::copy(parameters_.begin(), parameters_.end(), static_cast<T*>(round_.result) + client * model_.parameters);
        return 0;
    }

  private:
    bool add_gradients(std::int64_t first, int samples, std::int64_t batch) {
        const std::int64_t* rows = round_.batches + first;
        const Tensor<T>& output = network_.output();
        network_.read(static_cast<const T*>(round_.x), rows, samples);
        network_.forward(parameters_.data(), 0, int(model_.count));
        std::fill(output.slope.data, output.slope.data + network_.outputs() * L, T(0));
        T* losses = static_cast<T*>(round_.losses) + first;
        for (int s = 0; s < samples; s++) {
            if (model_.loss == SQUARED_ERROR) {
                const T* target = static_cast<const T*>(round_.y) + rows[s] * network_.outputs();
                losses[s] = squared_error<T, L>(output, target, s, T(1) / T(batch));
            } else {
                const std::int64_t right = static_cast<const std::int64_t*>(round_.y)[rows[s]];
                if (right < 0 || right >= network_.outputs()) return false;
                losses[s] = cross_entropy<T, L>(output, right, s, T(1) / T(batch));
            }
        }
        network_.backward(parameters_.data(), gradients_.data(), samples);
        return true;
    }

    const ModelSpec& model_;
    const OptimiserSpec& how_;
    const RoundSpec& round_;
    Network<T, L> network_;
    std::vector<T> parameters_, gradients_;
};

template <class T, int L>
int train(const ModelSpec& model, const OptimiserSpec& optimiser, const RoundSpec& round) {
    return on_threads(round.clients, round.threads, [&] { return ClientTraining<T, L>(model, optimiser, round); });
}

// One model's view of samples: its outputs, and what one of its layers makes of them.
template <class T, int L>
class Look {
  public:
    Look(const ModelSpec& model, const LookSpec& look) : model_(model), look_(look), network_(model, false) {}

    int operator()(std::int64_t block) {
        const T* parameters = static_cast<const T*>(look_.parameters);
        const std::int64_t first = block * L;
        const int samples = int(std::min<std::int64_t>(L, look_.count - first)), watched = int(look_.watched);
        network_.read(static_cast<const T*>(look_.x), look_.rows + first, samples);
        network_.forward(parameters, 0, watched + 1);
        if (watched >= 0) write(network_.after(watched), static_cast<T*>(look_.seen), first, samples);
        if (look_.outputs) {
            network_.forward(parameters, watched + 1, int(model_.count));
            write(network_.output().value, static_cast<T*>(look_.outputs), first, samples);
        }
        return 0;
    }

  private:
    // Each channel's image summed up, row by row so that rounding stays small.
    static void write(const View<T>& view, T* all, std::int64_t first, int samples) {
        const Shape shape = view.shape;
        for (int c = 0; c < shape.channels; c++) {
            Vector<T, L> total = {};
            for (int y = 0; y < shape.rows; y++) {
                Vector<T, L> row = {};
                for (int x = 0; x < shape.cols; x++) row += load<T, L>(view.at(c, y, x));
                total += row;
            }
            for (int s = 0; s < samples; s++) all[(first + s) * shape.channels + c] = total[s];
        }
    }

    const ModelSpec& model_;
    const LookSpec& look_;
    Network<T, L> network_;
};

template <class T, int L>
int look(const ModelSpec& model, const LookSpec& look) {
    return on_threads((look.count + L - 1) / L, look.threads, [&] { return Look<T, L>(model, look); });
}

#if defined(__AVX512F__)
constexpr int WIDE = 16;
#else
constexpr int WIDE = 8;
#endif

}  // namespace
}  // namespace winnow

using namespace winnow;

extern "C" {

int winnow_train_f32(const ModelSpec* model, const OptimiserSpec* optimiser, const RoundSpec* round) {
    return round->batch_size <= 8 ? train<float, 8>(*model, *optimiser, *round)
                                  : train<float, WIDE>(*model, *optimiser, *round);
}

int winnow_train_f64(const ModelSpec* model, const OptimiserSpec* optimiser, const RoundSpec* round) {
    return train<double, 8>(*model, *optimiser, *round);
}

int winnow_look_f32(const ModelSpec* model, const LookSpec* spec) { return look<float, WIDE>(*model, *spec); }

int winnow_look_f64(const ModelSpec* model, const LookSpec* spec) { return look<double, 8>(*model, *spec); }
}
